// The chart of one job: each attempt's time, the best so far, the baseline and the roofline.

import { byId, microseconds, setText, svgElement } from "./dom.js";

const HEIGHT = 270;
const LEFT = 64;
const RIGHT = 16;
const TOP = 34;
const BOTTOM = 34;

let shown = { attempts: [], best: null };

export function drawChart(attempts, best) {
  shown = { attempts, best };
  draw();
}

// Drawn in pixels of the element, so that its text has the size of other text at any width.
new ResizeObserver(draw).observe(byId("chart"));

function draw() {
  const { attempts, best } = shown;
  const chart = byId("chart");
  const width = Math.max(chart.clientWidth, 240);
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.replaceChildren();
  const timed = attempts.filter((attempt) => attempt.candidate_us !== null);
  setText("chart-text", describe(attempts, best));
  if (!timed.length) return;

  const baseline = best?.baseline_us;
  const roofline = best?.roofline_us;
  const top = 1.08 * Math.max(baseline ?? 0, ...timed.map((attempt) => attempt.candidate_us));
  const last = Math.max(2, attempts.at(-1).number);
  const right = width - RIGHT;
  const x = (number) => LEFT + 8 + ((number - 1) / (last - 1)) * (right - LEFT - 16);
  const y = (us) => HEIGHT - BOTTOM - (us / top) * (HEIGHT - TOP - BOTTOM);

  drawAxes(chart, x, y, { top, last, right, kind: timed[0].kind });
  if (baseline) drawLevel(chart, y(baseline), right, "baseline", `baseline ${microseconds(baseline)}`);
  if (roofline) drawLevel(chart, y(roofline), right, "roofline", `roofline ${microseconds(roofline)}`);
  chart.append(svgElement("path", { class: "best-line", d: bestPath(attempts, x, y) }));
  for (const attempt of attempts) drawAttempt(chart, attempt, x, y);
}

function describe(attempts, best) {
  const failed = attempts.filter((attempt) => !["correct", "pending"].includes(attempt.status)).length;
  const ending = `${failed} of ${attempts.length} attempts are not correct (crosses at the bottom).`;
  if (!best) return ending;
  return `Times are ${best.kind}. Best ${microseconds(best.candidate_us)}, baseline `
    + `${microseconds(best.baseline_us)}, roofline ${microseconds(best.roofline_us)}. `
    + `Rings were judged in full. ${ending}`;
}

const correct = (attempts) =>
  attempts.filter((attempt) => attempt.status === "correct" && attempt.candidate_us !== null);

function drawAxes(chart, x, y, { top, last, right, kind }) {
  const floor = y(0);
  chart.append(svgElement("line", { class: "axis", x1: LEFT, x2: right, y1: floor, y2: floor }));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const label = { x: LEFT - 8, y: y(top * share) + 4, "text-anchor": "end" };
    chart.append(svgElement("text", label, String(Number((top * share).toPrecision(3)))));
  }
  const step = Math.max(1, Math.ceil((last * 28) / (right - LEFT)));
  for (let number = 1; number <= last; number += step) {
    chart.append(svgElement("text", { x: x(number), y: floor + 18, "text-anchor": "middle" }, String(number)));
  }
  chart.append(svgElement("text", { x: 8, y: 16 }, `\u00b5s ${kind}, by attempt`));
}

function drawLevel(chart, level, right, name, label) {
  chart.append(svgElement("line", { class: name, x1: LEFT, x2: right, y1: level, y2: level }));
  chart.append(svgElement("text", { x: right - 4, y: level - 5, "text-anchor": "end" }, label));
}

function bestPath(attempts, x, y) {
  let best = Infinity;
  let path = "";
  for (const attempt of correct(attempts)) {
    const next = Math.min(best, attempt.candidate_us);
    path += path ? ` H${x(attempt.number)} V${y(next)}` : `M${x(attempt.number)} ${y(next)}`;
    best = next;
  }
  return path;
}

function drawAttempt(chart, attempt, x, y) {
  const centre = x(attempt.number);
  const label = `attempt ${attempt.number}: ${attempt.status}, ${microseconds(attempt.candidate_us)}`;
  let mark;
  if (attempt.status === "correct" && attempt.candidate_us !== null) {
    const look = attempt.phase === "confirm" ? "confirm" : "good";
    const radius = attempt.phase === "confirm" ? 7 : 4;
    mark = svgElement("circle", { class: look, cx: centre, cy: y(attempt.candidate_us), r: radius });
  } else if (attempt.status !== "pending") {
    const floor = y(0);
    const d = `M${centre - 4} ${floor - 4} l8 8 m0 -8 l-8 8`;
    mark = svgElement("path", { class: "bad", d });
  } else {
    return;
  }
  mark.append(svgElement("title", {}, label));
  chart.append(mark);
}
