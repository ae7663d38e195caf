// The chart of one job: each attempt's time, the best so far, the baseline and the roofline.

import { byId, microseconds, setText, svgElement } from "./dom.js";

const WIDTH = 900;
const HEIGHT = 270;
const LEFT = 70;
const RIGHT = 120;
const TOP = 16;
const BOTTOM = 34;

export function drawChart(attempts, best) {
  const chart = byId("chart");
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  chart.replaceChildren();
  const timed = attempts.filter((attempt) => attempt.candidate_us !== null);
  setText("chart-text", describe(attempts, best));
  if (!timed.length) return;

  const baseline = best?.baseline_us;
  const roofline = best?.roofline_us;
  const top = 1.08 * Math.max(baseline ?? 0, ...timed.map((attempt) => attempt.candidate_us));
  const last = Math.max(2, attempts.at(-1).number);
  const x = (number) => LEFT + ((number - 1) / (last - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (us) => HEIGHT - BOTTOM - (us / top) * (HEIGHT - TOP - BOTTOM);

  drawAxes(chart, x, y, top, last, timed[0].kind);
  if (baseline) drawLevel(chart, y(baseline), "baseline", `baseline ${microseconds(baseline)}`);
  if (roofline) drawLevel(chart, y(roofline), "roofline", `roofline ${microseconds(roofline)}`);
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

function drawAxes(chart, x, y, top, last, kind) {
  const floor = y(0);
  chart.append(svgElement("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: floor, y2: floor }));
  for (const share of [0, 0.25, 0.5, 0.75]) {
    const label = { x: LEFT - 8, y: y(top * share) + 4, "text-anchor": "end" };
    chart.append(svgElement("text", label, microseconds(top * share)));
  }
  const step = Math.max(1, Math.ceil(last / 15));
  for (let number = 1; number <= last; number += step) {
    chart.append(svgElement("text", { x: x(number), y: floor + 16, "text-anchor": "middle" }, String(number)));
  }
  chart.append(svgElement("text", { x: WIDTH - RIGHT + 8, y: floor + 16 }, "attempt"));
  chart.append(svgElement("text", { x: WIDTH - RIGHT + 8, y: TOP + 4 }, `${kind} time`));
}

function drawLevel(chart, level, name, label) {
  chart.append(svgElement("line", { class: name, x1: LEFT, x2: WIDTH - RIGHT, y1: level, y2: level }));
  chart.append(svgElement("text", { x: WIDTH - RIGHT + 8, y: level + 4 }, label));
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
