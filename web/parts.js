// Components that several pages use: tiles, lists of events, columns of alarms, details. Used by the modules in `pages/`;
// single elements are in `dom.js`, tables in `table.js`.

import { path } from "./api.js";
import { emptyNote, h, replace, setAttribute, setText, stateMark, timeMark } from "./dom.js";
import { count } from "./format.js";
import { custom, number, text, time } from "./table.js";

/** Current values in large type: names = [[key, label]]; set(key, value, more). */
export function tiles(box, names) {
  const made = new Map(
    names.map(([key, label]) => {
      const value = h("p", { class: "value" }, "–");
      const more = h("p", { class: "more" });
      return [
        key,
        {
          value,
          more,
          element: h("div", { class: "tile", "data-tile": key }, h("p", { class: "label" }, label), value, more),
        },
      ];
    }),
  );
  replace(
    box,
    [...made.values()].map((one) => one.element),
  );
  return {
    set(key, value, more = "") {
      setText(made.get(key).value, value);
      setText(made.get(key).more, more);
    },
  };
}

const EVENT_LEVELS = { election: "warning", primary: "warning", alarm: "bad", stop: "warning" };

/** List of events, newest first, at most `most`. */
export function eventList(box, { empty, most = 50 }) {
  const shown = new Map();
  const list = h("ol", { class: "events", tabindex: "0", "aria-label": "Events, newest first" });
  const placeholder = emptyNote(empty);
  replace(box, list, placeholder);
  return {
    show(events) {
      const wanted = [...events].sort((a, b) => b.at - a.at || b.n - a.n).slice(0, most);
      list.hidden = wanted.length === 0;
      placeholder.hidden = wanted.length > 0;
      const next = new Map();
      for (const event of wanted) {
        const key = `${event.node} ${event.n} ${event.at} ${event.kind}`;
        if (!next.has(key)) next.set(key, shown.get(key) ?? makeEvent(event));
      }
      for (const one of next.values()) one.moment();
      const elements = [...next.values()].map((one) => one.element);
      if (elements.length !== list.children.length || elements.some((one, n) => list.children[n] !== one))
        list.replaceChildren(...elements);
      shown.clear();
      next.forEach((one, key) => shown.set(key, one));
    },
  };
}

function makeEvent(event) {
  const mark = timeMark(event.at);
  const element = h(
    "li",
    { "data-kind": event.kind },
    mark,
    stateMark(event.kind, EVENT_LEVELS[event.kind] ?? "unknown"),
    h("span", { class: "event-text" }, event.text, event.node ? h("span", { class: "node" }, ` · ${event.node}`) : null),
  );
  return { element, moment: () => mark.set(event.at) };
}

/** Returns the number of events of each kind as texts: "2 election", "1 primary". */
export function countByKind(events) {
  const counts = new Map();
  for (const event of events) counts.set(event.kind, (counts.get(event.kind) ?? 0) + 1);
  return [...counts].map(([kind, n]) => `${n} ${kind}`);
}

/** List of names and values: facts(box).show([[name, text or element]]). */
export function facts(box) {
  const list = h("dl", { class: "facts" });
  const values = new Map();
  replace(box, list);
  return {
    show(pairs) {
      for (const [name, value] of pairs) {
        if (!values.has(name)) {
          const cell = h("dd");
          values.set(name, cell);
          list.append(h("div", {}, h("dt", {}, name), cell));
        }
        const cell = values.get(name);
        if (value instanceof Node) {
          if (cell.firstChild !== value) replace(cell, value);
        } else setText(cell, value ?? "–");
      }
    },
  };
}

/** Group of buttons with one selected: choices = [[value, label]]. */
export function segments(box, choices, chosen, choose) {
  const buttons = choices.map(([value, label]) =>
    h(
      "button",
      {
        type: "button",
        "data-value": value,
        on: {
          click: () => {
            set(value);
            choose(value);
          },
        },
      },
      label,
    ),
  );
  const set = (value) =>
    buttons.forEach((button) => setAttribute(button, "aria-pressed", String(button.dataset.value === value)));
  replace(box, buttons);
  set(chosen);
  return { set };
}

const LAG_MS_MAX = 1000;

/** Returns whether a replica lacks records that its primary has had for more than a second. */
export const isLagging = ({ lagRecords, lagMs }) => lagRecords > 0 && (typeof lagMs !== "number" || lagMs > LAG_MS_MAX);

export const nodeLink = (name) => path("/node", { name });
export const queueLink = (uri) => path("/queue", { uri });

/** Link to a node, or a text if there is none; a proxy (`isProxy(row)`) has no page of its own. */
export function nodeColumn(label, read, options = {}, isProxy = () => false) {
  return custom(
    label,
    () => {
      const anchor = h("a");
      const none = h("span", { class: "muted" }, "none");
      const element = h("span", {}, anchor, none);
      return [
        element,
        (row) => {
          const name = read(row);
          const linked = name && !isProxy(row);
          anchor.hidden = !linked;
          none.hidden = Boolean(linked);
          setText(none, name && !linked ? `proxy ${name}` : "none");
          setText(anchor, linked ? name : "");
          setAttribute(anchor, "href", linked ? nodeLink(name) : null);
        },
      ];
    },
    options,
  );
}

/** Note that names the nodes and proxies whose clients are not listed: show({name: reason}). */
export function missingClientsNote() {
  const element = h("div", { class: "missing", role: "status" });
  let shown = "";
  return {
    element,
    show(missing) {
      const lines = Object.entries(missing ?? {}).map(([name, why]) => `Clients of ${name} are not shown: ${why}`);
      if (lines.join("\n") === shown) return;
      shown = lines.join("\n");
      replace(
        element,
        lines.map((line) => h("p", {}, line.endsWith(".") ? line : `${line}.`)),
      );
    },
  };
}

export const alarmColumns = [
  time("Raised", (alarm) => alarm.raisedAt),
  text("Message", (alarm) => alarm.text, { cls: "text" }),
  nodeColumn("Node", (alarm) => alarm.node),
  number("Occurrences", (alarm) => count(alarm.count ?? 1)),
];
