// Time series charts as SVG, each with a table of its values, and a cursor controlled by the pointer or the arrow keys.
// Used by `pages/overview.js` and `pages/queue.js`; sparklines in tables are in `dom.js`.

import { h, replace, setAttribute, setText, svg } from "./dom.js";
import { bothTimes, moment } from "./format.js";
import { settings } from "./settings.js";

const HEIGHT = 180;
const LEFT = 58;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 22;
const TABLE_ROWS_MAX = 180;

const GAP_SECONDS = 12; // between two rows: the line is interrupted

/** series: [{name, read(row), format}]; rows are [wall seconds, ...]; marks: [{at, text}] are drawn as lines. An unknown value
 *  (null) interrupts its line. */
export function chart({ caption, series, empty = "No samples yet. The first ones arrive within a few seconds." }) {
  const lines = series.map((one, n) => svg("path", { class: `line series-${n}`, d: "" }));
  const axis = svg("g", { class: "axis" });
  const markers = svg("g", { class: "marks" });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const picture = svg(
    "svg",
    { class: "plot", height: HEIGHT, role: "img", tabindex: "0", "aria-label": caption },
    axis,
    markers,
    ...lines,
    cursor,
  );
  const values = series.map((one, n) => {
    const value = h("span", { class: "value" });
    return {
      value,
      item: h("li", {}, h("span", { class: `swatch series-${n}`, "aria-hidden": "true" }), `${one.name} `, value),
    };
  });
  const when = h("span", { class: "when" });
  const body = h("tbody");
  const numbers = h(
    "details",
    { class: "numbers", on: { toggle: () => fillTable() } },
    h("summary", {}, "Show values as a table"),
    h(
      "div",
      { class: "scroll short", tabindex: "0", role: "region", "aria-label": `${caption}, values` },
      h(
        "table",
        {},
        h("caption", {}, caption),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Time"),
            series.map((one) => h("th", { scope: "col", class: "num" }, one.name)),
          ),
        ),
        body,
      ),
    ),
  );
  const placeholder = h("p", { class: "empty" }, empty);
  const element = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, caption), when),
    h(
      "ul",
      { class: "legend" },
      values.map((one) => one.item),
    ),
    picture,
    placeholder,
    numbers,
  );

  let rows = [];
  let present = null; // the present values as a row; null = those of the newest row
  let marks = [];
  let drawn = "";
  let width = 720; // pixels available in the page
  let chosen = null; // time of the row at the cursor in seconds since the epoch; null = the newest row

  const x = (wall) => {
    const span = rows[rows.length - 1][0] - rows[0][0] || 1;
    return LEFT + ((wall - rows[0][0]) / span) * (width - LEFT - RIGHT);
  };

  function draw() {
    const enough = rows.length > 1;
    placeholder.hidden = enough;
    picture.toggleAttribute("hidden", !enough);
    numbers.hidden = !enough;
    if (!enough) return;
    const top = scale(Math.max(...rows.map((row) => Math.max(...series.map((one) => one.read(row) ?? 0)))));
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    series.forEach((one, n) => setAttribute(lines[n], "d", lineOf(rows, one.read, x, y)));
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }));
      parts.push(
        svg("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, series[0].format(top * share)),
      );
    }
    const [first, last] = [rows[0][0], rows[rows.length - 1][0]];
    for (const [share, anchor] of [
      [0, "start"],
      [0.5, "middle"],
      [1, "end"],
    ]) {
      const wall = first + (last - first) * share;
      parts.push(svg("text", { x: x(wall), y: HEIGHT - 6, "text-anchor": anchor }, moment(wall, settings.utc)));
    }
    replace(axis, parts);
    replace(
      markers,
      marks
        .filter((mark) => mark.at >= first && mark.at <= last)
        .map((mark) =>
          svg(
            "g",
            {},
            svg("line", { x1: x(mark.at), x2: x(mark.at), y1: TOP, y2: HEIGHT - BOTTOM }),
            svg("path", { d: `M${x(mark.at) - 4},${TOP - 6} h8 l-4,7 z` }),
            svg("title", {}, mark.text),
          ),
        ),
    );
    updateCursor();
    if (numbers.open) fillTable();
  }

  function updateCursor() {
    if (rows.length === 0) return;
    const row =
      chosen === null
        ? (present ?? rows[rows.length - 1])
        : rows.reduce((best, one) => (Math.abs(one[0] - chosen) < Math.abs(best[0] - chosen) ? one : best));
    series.forEach((one, n) => setText(values[n].value, one.format(one.read(row))));
    setText(when, chosen === null ? "now" : moment(row[0], settings.utc));
    setAttribute(when, "title", bothTimes(row[0]));
    setAttribute(cursor, "visibility", chosen === null ? "hidden" : "visible");
    if (chosen !== null && rows.length > 1) {
      setAttribute(cursor, "x1", x(row[0]).toFixed(1));
      setAttribute(cursor, "x2", x(row[0]).toFixed(1));
    }
    setAttribute(
      picture,
      "aria-label",
      `${caption}, ${moment(row[0], settings.utc)}: ${series
        .map((one) => `${one.name} ${one.format(one.read(row))}`)
        .join(", ")}`,
    );
  }

  function fillTable() {
    if (!numbers.open) return;
    replace(
      body,
      rows
        .slice(-TABLE_ROWS_MAX)
        .reverse()
        .map((row) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", class: "nowrap", title: bothTimes(row[0]) }, moment(row[0], settings.utc)),
            series.map((one) => h("td", { class: "num" }, one.format(one.read(row)))),
          ),
        ),
    );
  }

  picture.addEventListener("pointermove", (event) => {
    if (rows.length < 2) return;
    const box = picture.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * width;
    const part = Math.min(1, Math.max(0, (share - LEFT) / (width - LEFT - RIGHT)));
    chosen = rows[0][0] + part * (rows[rows.length - 1][0] - rows[0][0]);
    updateCursor();
  });
  const resetCursor = () => {
    chosen = null;
    updateCursor();
  };
  picture.addEventListener("pointerleave", resetCursor);
  picture.addEventListener("blur", resetCursor);
  picture.addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || rows.length < 2) return;
    event.preventDefault();
    const now = chosen === null ? rows.length - 1 : rows.findIndex((row) => row[0] >= chosen);
    const wanted = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: rows.length - 1 }[event.key];
    chosen = rows[Math.min(rows.length - 1, Math.max(0, wanted))][0];
    updateCursor();
  });

  new ResizeObserver(([entry]) => {
    const wide = Math.round(entry.contentRect.width);
    if (wide < 50 || wide === width) return;
    width = wide;
    draw();
  }).observe(element.querySelector(".legend"));

  return {
    element,
    /** given: the history; now: the present values, which tiles and tables show, too. */
    show(given, events = [], now = null) {
      marks = events;
      present = now;
      rows = (given ?? []).filter((row) => Array.isArray(row) && typeof row[0] === "number");
      const state = JSON.stringify([rows.length, rows[0], rows[rows.length - 1], events, settings.utc]);
      if (state === drawn) {
        if (chosen === null) updateCursor(); // most documents have no new row
        return;
      }
      drawn = state;
      draw();
    },
  };
}

/** Returns the path of a line; it is interrupted where a value is unknown or rows are missing. */
export function lineOf(rows, read, x, y) {
  let path = "";
  let before = null; // time of the previous known value
  for (const row of rows) {
    const value = read(row);
    if (typeof value !== "number") {
      before = null;
      continue;
    }
    const connected = before !== null && row[0] - before <= GAP_SECONDS;
    const point = `${x(row[0]).toFixed(1)},${y(value).toFixed(1)}`;
    path += connected ? `L${point}` : `M${point}h0.1`; // a value without neighbours is a dot
    before = row[0];
  }
  return path;
}

/** Returns the smallest number of the form 1, 2 or 5 times a power of ten that is not below the value. */
export function scale(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
