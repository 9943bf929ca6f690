// Creation of elements. Values from the broker are inserted as text, never as markup. Used by every module that shows
// values; components of several elements are in `parts.js`, tables in `table.js`.

import { bothTimes, moment } from "./format.js";
import { settings } from "./settings.js";

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN_ATTRIBUTES = new Set(["style", "innerhtml", "outerhtml", "srcdoc"]);

/** Creates an element: h("p", {class: "x", on: {click: f}}, "text", otherElement). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else setAttribute(element, name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Sets an attribute if it differs; null removes it. */
export function setAttribute(element, name, value) {
  if (FORBIDDEN_ATTRIBUTES.has(name.toLowerCase()) || name.toLowerCase().startsWith("on"))
    throw new Error(`attribute ${name} is forbidden`);
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Sets the text if it differs, to avoid repainting. */
export function setText(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export const find = (selector, within = document) => within.querySelector(selector);

/** Shows or hides an element, also for screen readers. */
export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// --- states: shape, text and colour ---------------------------------------------------------------------------------

const SHAPES = { good: "●", warning: "▲", bad: "■", unknown: "○" };
const LEVELS = {
  good: "good",
  up: "good",
  primary: "good",
  active: "good",
  healed: "good",
  confirmed: "good",
  live: "good",
  ok: "good",
  replica: "good",
  connected: "good",
  leader: "good",
  available: "good",
  open: "good",
  warning: "warning",
  healing: "warning",
  starting: "warning",
  stopping: "warning",
  "stop scheduled": "warning",
  stale: "warning",
  pending: "warning",
  delivered: "warning",
  passive: "warning",
  reconnecting: "warning",
  stuck: "bad",
  "no primary": "bad",
  closed: "bad",
  failing: "bad",
  opening: "warning",
  bad: "bad",
  down: "bad",
  unreachable: "bad",
  "cannot write": "bad",
  error: "bad",
  failed: "bad",
  disconnected: "bad",
  unavailable: "bad",
};

export function levelOf(word) {
  const key = String(word ?? "").toLowerCase();
  return Object.hasOwn(LEVELS, key) ? LEVELS[key] : "unknown";
}

/** State mark: mark.set("up"), mark.set("lagging", "warning"). */
export function stateMark(word = "", level = undefined) {
  const shape = h("span", { class: "shape", "aria-hidden": "true" });
  const label = h("span", { class: "word" });
  const element = h("span", { class: "state" }, shape, label);
  element.set = (text, given) => {
    const wanted = given ?? levelOf(text);
    setAttribute(element, "data-level", wanted);
    setText(shape, SHAPES[wanted] ?? SHAPES.unknown);
    setText(label, text);
    return element;
  };
  return element.set(word, level);
}

/** Time in the time zone that the user chose; the tooltip has both. */
export function timeMark(wallSeconds) {
  const element = h("time");
  element.refresh = () => element.set(wallSeconds);
  element.set = (wall) => {
    wallSeconds = wall;
    const valid = typeof wall === "number" && Math.abs(wall) < 8e12;
    setText(element, valid ? moment(wall, settings.utc) : "–");
    setAttribute(element, "title", valid ? bothTimes(wall) : null);
    setAttribute(element, "datetime", valid ? new Date(wall * 1000).toISOString() : null);
    return element;
  };
  return element.set(wallSeconds);
}

/** Bar from 0 to 1 with a text. */
export function barMark() {
  const fillRect = svg("rect", { class: "fill", height: "100%", width: "0%", rx: 2 });
  const picture = svg(
    "svg",
    { class: "bar", "aria-hidden": "true" },
    svg("rect", { class: "track", width: "100%", height: "100%", rx: 2 }),
    fillRect,
  );
  const label = h("span", { class: "bar-label" });
  const element = h("span", { class: "with-bar" }, picture, label);
  element.set = (share, text, level = share >= 0.9 ? "bad" : share >= 0.75 ? "warning" : "good") => {
    const valid = typeof share === "number" && Number.isFinite(share);
    const part = valid ? Math.min(1, Math.max(0, share)) : 0;
    setAttribute(fillRect, "width", `${(part * 100).toFixed(1)}%`);
    setAttribute(element, "data-level", valid ? level : "unknown");
    setText(label, text);
    return element;
  };
  return element;
}

/** Small line chart; its text has the first, last and largest value. */
export function sparkMark() {
  const line = svg("polyline", { class: "spark-line", points: "" });
  const element = svg(
    "svg",
    { class: "spark", viewBox: "0 0 90 20", preserveAspectRatio: "none", role: "img", "aria-label": "no samples" },
    line,
  );
  element.set = (values) => {
    const numbers = (values ?? []).filter((value) => typeof value === "number" && Number.isFinite(value));
    const top = Math.max(1, ...numbers);
    const step = numbers.length > 1 ? 90 / (numbers.length - 1) : 0;
    setAttribute(
      line,
      "points",
      numbers.map((value, n) => `${(n * step).toFixed(1)},${(19 - (value / top) * 18).toFixed(1)}`).join(" "),
    );
    setAttribute(
      element,
      "aria-label",
      numbers.length
        ? `depth from ${numbers[0]} to ${numbers[numbers.length - 1]}, at most ${Math.max(...numbers)}`
        : "no samples",
    );
    return element;
  };
  return element;
}

/** Placeholder of an empty list, with possible actions. */
export function emptyNote(text, ...more) {
  return h("p", { class: "empty" }, text, ...more);
}
