// Building and filling elements. Text only ever becomes text nodes: what a candidate, a model or a
// problem file wrote can never become markup.

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function svgElement(name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
}

// Text only changes when it differs, so that screen readers and selections are left alone.
export function setText(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

const unknown = "\u2013";

export function microseconds(value) {
  if (value === null || value === undefined) return unknown;
  return `${value >= 100 ? value.toFixed(0) : value.toPrecision(3)} \u00b5s`;
}

export const times = (value) =>
  value === null || value === undefined ? unknown : `${value.toFixed(3)}\u00d7`;

export const percent = (value) =>
  value === null || value === undefined ? unknown : `${(value * 100).toFixed(0)} %`;

export const orDash = (value) => (value === null || value === undefined || value === "" ? unknown : String(value));

export function pairs(object) {
  const text = Object.entries(object ?? {}).map(([key, value]) => `${key}=${value}`).join(" ");
  return text || "defaults";
}

export function when(iso) {
  const date = new Date(iso);
  return element("time", { datetime: iso, title: date.toISOString() }, date.toLocaleString());
}
