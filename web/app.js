// The page: a list of jobs, and one job followed live. The address holds what is shown:
// #/jobs/ID and #/jobs/ID/attempts/NUMBER.

import { drawChart } from "./chart.js";
import { byId, element, microseconds, orDash, pairs, percent, setText, times, when } from "./dom.js";

const EVENT_TYPES = [
  "job.queued", "job.started", "job.resumed", "job.finished", "attempt.proposed", "attempt.stage",
  "attempt.judged", "best.updated", "llm.call", "budget.warn", "plateau.called", "cancel.requested",
];
const JOBS_EVERY_MS = 5000;
const REFRESH_AFTER_MS = 150;
const PAGE = 50;

const state = {
  job: null, attempts: [], stages: new Map(), selected: null, detail: null, source: null,
  refresh: null, pages: 1,
};

async function request(path, options = {}) {
  const response = await fetch(path, { headers: { Accept: "application/json" }, ...options });
  const body = await response.json();
  if (!response.ok) throw new Error(`${body.detail ?? response.statusText} ${body.advice ?? ""}`);
  return body;
}

function connection(name, text) {
  byId("connection").dataset.state = name;
  setText("connection", text);
}

function complain(error) {
  setText("message", error.message);
  byId("message").hidden = false;
}

// --- the list of jobs ---

async function loadJobs() {
  const jobs = [];
  let cursor = null;
  for (let page = 0; page < state.pages; page += 1) {
    const query = new URLSearchParams({ limit: PAGE, ...(cursor ? { cursor } : {}) });
    const answer = await request(`/v1/jobs?${query}`);
    jobs.push(...answer.items);
    cursor = answer.next_cursor;
    if (!cursor) break;
  }
  byId("more-jobs").hidden = !cursor;
  setText("jobs-note", jobs.length ? "" : "No jobs yet. Submit one: pkforge job submit gemm_reducescatter --target sim:h200x4");
  byId("jobs").replaceChildren(...jobs.map(jobEntry));
}

function jobEntry(job) {
  const current = state.job?.id === job.id ? "page" : null;
  const link = element("a", { href: `#/jobs/${job.id}`, "aria-current": current },
    `${job.problem} on ${job.target}`,
    element("small", {}, `${stateOf(job)}${job.best ? `, ${times(job.best.speedup)} ${job.best.kind}` : ""}`),
    element("small", {}, when(job.created_at)));
  return element("li", {}, link);
}

function stateOf(job) {
  if (job.cancel_requested && !job.finished_at) return "cancelling";
  return job.stop_reason ? `${job.status} (${job.stop_reason})` : job.status;
}

async function keepJobsFresh() {
  try {
    if (!document.hidden) await loadJobs();
    if (!state.source) connection("idle", "service answers");
  } catch {
    connection("lost", "service does not answer");
  }
  setTimeout(keepJobsFresh, JOBS_EVERY_MS);
}

// --- one job ---

function follow(id) {
  state.source?.close();
  const source = new EventSource(`/v1/jobs/${encodeURIComponent(id)}/events`);
  state.source = source;
  connection("idle", "connecting");
  source.onopen = () => connection("live", "live");
  source.onerror = () => {
    const over = source.readyState === EventSource.CLOSED;
    connection("lost", over ? "disconnected: reload the page" : "connection lost, trying again");
  };
  for (const type of EVENT_TYPES) source.addEventListener(type, (message) => onEvent(source, message));
}

function onEvent(source, message) {
  const event = JSON.parse(message.data);
  if (event.type === "attempt.stage") {
    state.stages.set(event.payload.number, event.payload.stage);
    renderAttempts();
    return;
  }
  if (event.type === "job.finished") {
    source.close();
    state.source = null;
    connection("idle", "the job has ended");
  }
  scheduleRefresh();
}

function scheduleRefresh() {
  state.refresh ??= setTimeout(async () => {
    state.refresh = null;
    if (!state.job) return;
    try {
      await loadJob(state.job.id);
    } catch (error) {
      complain(error);
    }
  }, REFRESH_AFTER_MS);
}

async function loadJob(id) {
  const job = await request(`/v1/jobs/${encodeURIComponent(id)}`);
  const attempts = state.job?.id === id ? settledAttempts() : [];
  let cursor = attempts.length ? String(attempts.at(-1).number) : null;
  do {
    const query = new URLSearchParams({ limit: 100, ...(cursor ? { cursor } : {}) });
    const page = await request(`${job.links.attempts}?${query}`);
    attempts.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor);
  if (wanted().job !== id) return;
  state.job = job;
  state.attempts = attempts;
  renderJob();
  renderAttempts();
  drawChart(state.attempts, job.best);
  await showAttempt();
}

// What is judged does not change any more: only what follows it is fetched again.
function settledAttempts() {
  const pending = state.attempts.findIndex((attempt) => attempt.status === "pending");
  return pending < 0 ? [...state.attempts] : state.attempts.slice(0, pending);
}

function renderJob() {
  const job = state.job;
  byId("message").hidden = true;
  byId("job").hidden = false;
  document.title = `${job.problem} on ${job.target} \u2013 pkforge`;
  setText("job-title", `${job.problem} on ${job.target}`);
  setText("job-state", [stateOf(job), job.detail].filter(Boolean).join(": "));
  setText("job-best", bestText(job));
  showStanding(job);
  const facts = {
    Job: job.id,
    Policy: job.policy,
    Shape: job.shape ?? "all bench shapes",
    Attempts: `${job.spent.attempts} of ${job.budget.attempts}`,
    Dollars: `${job.spent.usd.toFixed(2)} of ${job.budget.usd.toFixed(2)}`,
    "Target speedup": job.target_speedup === null ? null : times(job.target_speedup),
    "Taken up": job.runs > 1 ? `${job.runs} times` : null,
  };
  byId("job-facts").replaceChildren(...Object.entries(facts)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const over = job.finished_at !== null;
  byId("cancel").hidden = over;
  byId("cancel").disabled = job.cancel_requested;
  setText("cancel", job.cancel_requested ? "Cancelling" : "Cancel the job");
  const ready = job.kernel_sha256 !== null;
  byId("download").hidden = !ready;
  if (ready) byId("download").setAttribute("href", job.links.kernel);
}

// A win is void once the problem, the judge or the machine class has changed: it says so and can be judged anew.
function showStanding(job) {
  const reasons = job.best?.void ?? [];
  byId("standing").hidden = reasons.length === 0;
  setText("standing-text", `This result is void: ${reasons.join("; ")}.`);
  byId("verify").hidden = job.kernel_sha256 === null;
}

async function verifyKernel() {
  byId("verify").disabled = true;
  let evaluation = await request(state.job.links.verify, { method: "POST" });
  while (evaluation.verdict === null && evaluation.finished_at === null) {
    setText("standing-text", `Judging it anew as ${evaluation.id}: ${evaluation.status}.`);
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
    evaluation = await request(evaluation.links.self);
  }
  const said = evaluation.verdict ? `${evaluation.verdict.status}. ${evaluation.verdict.evidence.summary}` : evaluation.detail;
  setText("standing-text", `Judged anew as ${evaluation.id}: ${said}`);
  byId("verify").disabled = false;
}

function bestText(job) {
  const best = job.best;
  if (!best) return job.finished_at ? "No correct attempt." : "No correct attempt yet.";
  const share = best.roofline_us && best.candidate_us ? best.roofline_us / best.candidate_us : null;
  return `${job.finished_at ? "Best" : "Best so far"}: ${times(best.speedup)} as fast as the baseline, `
    + `${microseconds(best.candidate_us)} against ${microseconds(best.baseline_us)} (both ${best.kind}), `
    + `${percent(share)} of the roofline, in attempt ${best.number}`
    + `${best.verified ? ", judged in full." : "."}`;
}

function renderAttempts() {
  const focused = document.activeElement?.dataset?.number;
  byId("attempts").replaceChildren(...state.attempts.map(attemptRow));
  if (focused) byId("attempts").querySelector(`[data-number="${CSS.escape(focused)}"]`)?.focus();
}

function attemptRow(attempt) {
  const selected = attempt.number === state.selected;
  const show = element("button", {
    type: "button", "data-number": attempt.number, "aria-pressed": String(selected),
    "aria-label": `Show attempt ${attempt.number}`,
  }, String(attempt.number));
  show.addEventListener("click", () => {
    location.hash = `#/jobs/${state.job.id}/attempts/${attempt.number}`;
  });
  const time = element("td", { class: "number" }, microseconds(attempt.candidate_us));
  if (attempt.kind) time.append(" ", element("span", { class: "kind" }, attempt.kind));
  return element("tr", { "aria-selected": String(selected) },
    element("td", {}, show),
    element("td", {}, orDash(attempt.parent)),
    element("td", {}, attempt.phase),
    element("td", {}, statusMark(attempt)),
    element("td", { class: "knobs" }, pairs(attempt.knobs)),
    time,
    element("td", { class: "number" }, times(attempt.speedup)),
    element("td", {}, orDash(attempt.bottleneck)));
}

function statusMark(attempt) {
  if (attempt.status === "pending") {
    const stage = state.stages.get(attempt.number);
    return element("span", { class: "status-wait" }, stage ? `pending: ${stage}` : "pending");
  }
  const look = attempt.status === "correct" ? "status-good" : "status-bad";
  return element("span", { class: look }, attempt.status);
}

// --- one attempt ---

async function showAttempt() {
  const summary = state.attempts.find((attempt) => attempt.number === state.selected);
  byId("attempt").hidden = !summary;
  if (!summary) return;
  const known = state.detail;
  if (known?.id !== summary.id || known.status !== summary.status) {
    state.detail = await request(`${state.job.links.attempts}/${summary.number}`);
  }
  renderAttempt(state.detail);
}

function renderAttempt(attempt) {
  setText("attempt-title", `Attempt ${attempt.number}: ${attempt.status}`);
  setText("attempt-hypothesis", attempt.hypothesis);
  setText("attempt-summary", attempt.summary ?? "Not judged yet.");
  setText("attempt-evidence", JSON.stringify(attempt.verdict ?? {}, null, 2));
  setText("attempt-diff", changeText(attempt));
  byId("attempt-source").replaceChildren(...Object.entries(attempt.files).flatMap(
    ([name, text]) => [element("h4", {}, name), element("pre", { tabindex: "0" }, text)]));
  renderTimings(attempt.verdict?.timings ?? []);
}

function changeText(attempt) {
  if (attempt.parent === null) return "It has no parent.";
  const knobs = Object.entries(attempt.knob_changes)
    .map(([name, [before, after]]) => `knob ${name}: ${orDash(before)} \u2192 ${orDash(after)}\n`);
  return knobs.join("") + attempt.diff || `Nothing: the same candidate as attempt ${attempt.parent}.`;
}

function renderTimings(timings) {
  const table = byId("attempt-timings");
  table.hidden = timings.length === 0;
  const names = ["Shape", "Time", "Baseline", "Speedup", "Roofline", "Of roofline", "Bottleneck"];
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const rows = timings.map((timing) => element("tr", {}, ...[
    timing.shape,
    `${microseconds(timing.candidate_us)} ${timing.kind}`,
    `${microseconds(timing.baseline_us)} ${timing.kind}`,
    times(timing.speedup),
    microseconds(timing.roofline_us),
    percent(timing.roofline_fraction),
    orDash(timing.bottleneck),
  ].map((text) => element("td", {}, text))));
  byId("attempt-why").replaceChildren(
    ...timings.flatMap(whyLines).map((line) => element("li", {}, line)));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

// What the simulator or the profiler says of one timed shape.
function whyLines(timing) {
  const { why, utilization, exposed_us: exposed } = timing.detail.bottleneck ?? {};
  const listed = (figures, unit) => Object.entries(figures ?? {})
    .sort(([, a], [, b]) => b - a).map(([name, value]) => `${name} ${unit(value)}`).join(", ");
  return [
    why && `${timing.shape}: ${why}`,
    utilization && `${timing.shape}: busy ${listed(utilization, percent)}`,
    exposed && `${timing.shape}: exposed ${listed(exposed, microseconds)}`,
    ...reportLines(timing, listed),
  ].filter(Boolean);
}

// Where the time above the floor goes, and what could change it; timings stored by older versions have no report.
function reportLines({ shape, detail: { report } }, listed) {
  if (!report) return [];
  const gap = Object.fromEntries(Object.entries(report.gap).filter(([, us]) => us >= 0.05));
  const above = microseconds(report.time_us - report.floor_us);
  return [
    `${shape}: ${above} above the floor of ${microseconds(report.floor_us)} (${report.binding}): ${listed(gap, microseconds)}`,
    `${shape}: taxes of this kernel ${listed(report.taxes, microseconds)}; of PyTorch + NCCL ${listed(report.baseline_taxes, microseconds)}`,
    ...report.knobs.map((knob) => `${shape}: try knob ${knob.name}=${knob.value}: ${knob.direction} to ${knob.values.join(" or ")}`),
  ];
}

// --- what the address asks for ---

function wanted() {
  const found = /^#\/jobs\/([\w-]+)(?:\/attempts\/(\d+))?$/.exec(location.hash);
  return { job: found?.[1] ?? null, attempt: found?.[2] ? Number(found[2]) : null };
}

async function route() {
  const { job, attempt } = wanted();
  if (!job) {
    // "#main" is the skip link: what is shown stays.
    if (location.hash === "#main") return;
    state.source?.close();
    Object.assign(state, { job: null, attempts: [], selected: null, detail: null, source: null });
    byId("job").hidden = true;
    byId("message").hidden = false;
    setText("message", "Choose a job.");
    return;
  }
  state.selected = attempt;
  try {
    if (state.job?.id === job) {
      renderAttempts();
      await showAttempt();
    } else {
      Object.assign(state, { detail: null, stages: new Map() });
      await loadJob(job);
      follow(job);
      await loadJobs();
    }
    if (attempt !== null) byId("attempt").scrollIntoView({ block: "nearest" });
  } catch (error) {
    byId("job").hidden = true;
    complain(error);
  }
}

byId("verify").addEventListener("click", () => { verifyKernel().catch(complain); });
byId("cancel").addEventListener("click", async () => {
  byId("cancel").disabled = true;
  try {
    await request(state.job.links.cancel, { method: "POST" });
  } catch (error) {
    complain(error);
  }
  scheduleRefresh();
});
byId("more-jobs").addEventListener("click", () => {
  state.pages += 1;
  loadJobs().catch(complain);
});
window.addEventListener("hashchange", route);
route();
keepJobsFresh();
