// Components that several pages use: tiles, lists of events, columns of alarms, details. Used by the modules in `pages/`;
// single elements are in `dom.js`, tables in `table.js`.

import { path } from "./api.js";
import { emptyNote, h, replace, setAttribute, setText, show, stateMark, timeMark } from "./dom.js";
import { bytes, count, moment } from "./format.js";
import { rowsOf } from "./merge.js";
import { settings } from "./settings.js";
import { bar, custom, number, text, time } from "./table.js";

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

const OLD_SECONDS = 5; // a value of this age is shown with its time

/** Returns "as of TIME" for a value that is not current, else "". */
export function asOf(sampledAt, now) {
  return typeof sampledAt === "number" && now - sampledAt > OLD_SECONDS ? `as of ${moment(sampledAt, settings.utc)}` : "";
}

/** Returns the nodes of a cluster document whose consoles do not answer. */
export const silentNodes = (cluster) =>
  rowsOf(cluster?.nodes, cluster?.nodesOrder).filter((node) => node.answers === false);

/** Placeholder of a list that nodes contribute to: show(cluster) adds which nodes are missing in it. */
export function emptyOfNodes(text, what) {
  const element = emptyNote(text);
  element.show = (cluster) => {
    const silent = silentNodes(cluster);
    const never = silent.filter((node) => typeof node.lastAnswerAt !== "number").map((node) => node.name);
    const old = silent.filter((node) => !never.includes(node.name));
    setText(
      element,
      [
        silent.length ? text.replace(/\.$/, " at the nodes that answer.") : text,
        never.length ? `The ${what} of ${never.join(", ")} are unknown.` : "",
        ...old.map((node) => `${node.name} had none at ${moment(node.lastAnswerAt, settings.utc)}.`),
      ]
        .filter(Boolean)
        .join(" "),
    );
  };
  return element;
}

/** Text in place of an empty list of queues. */
export const noQueuesText = ({ unknown = [] } = {}) =>
  unknown.length
    ? `No known queues. The queues of ${unknown.length === 1 ? "partition" : "partitions"} ${unknown.join(", ")} are unknown: no node with a copy answers.`
    : "No queues. A queue is created when a client first opens it.";

/** Notice about the nodes that do not answer: show(cluster). */
export function silentNotice() {
  const element = h("p", { class: "notice", role: "status", hidden: true });
  element.show = (cluster) => {
    const silent = silentNodes(cluster);
    show(element, silent.length > 0);
    if (!silent.length) return;
    const names = silent.map((node) =>
      typeof node.lastAnswerAt === "number"
        ? `${node.name} has not answered since ${moment(node.lastAnswerAt, settings.utc)}`
        : `${node.name} has not answered yet`,
    );
    setText(
      element,
      `${names.join(", ")}. Queues and stored messages are those of the replicas, other values of ${
        silent.length === 1 ? "this node" : "these nodes"
      } are the last known ones or unknown. Rates are those of the other nodes.`,
    );
  };
  return element;
}

/** State of a node; if the node does not answer, the time of its values. */
export function nodeStateColumn(read = (node) => node.state) {
  return custom("State", () => {
    const mark = stateMark();
    const age = h("span", { class: "lag" });
    return [
      h("span", {}, mark, " ", age),
      (node) => {
        mark.set(read(node));
        setText(
          age,
          node.answers === false && typeof node.lastAnswerAt === "number"
            ? `last answer ${moment(node.lastAnswerAt, settings.utc)}`
            : "",
        );
      },
    ];
  });
}

const SPACE_BAD = 0.05; // free part of the file system, as in the verdict
const SPACE_WARNING = 0.15;

/** Used and free space of the file system of a node's storage. */
export function diskColumn() {
  const free = ({ storage }) => (storage?.totalBytes ? storage.freeBytes / storage.totalBytes : null);
  return bar(
    "Disk",
    (node) => (free(node) === null ? null : 1 - free(node)),
    (node) => (node.storage ? `${bytes(node.storage.freeBytes)} free of ${bytes(node.storage.totalBytes)}` : "–"),
    { level: (node) => (free(node) < SPACE_BAD ? "bad" : free(node) < SPACE_WARNING ? "warning" : "good") },
  );
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

/** Note on rates, which all pages show with the same window. */
export const rateNote = (cluster) =>
  typeof cluster?.rateSeconds === "number" ? `Rates are means of ${count(cluster.rateSeconds)} s.` : "";

/** Text of an alarm; of a node that does not answer with the time of its last answer. */
export const alarmText = (alarm) =>
  typeof alarm.asOf === "number" ? `${alarm.text} (as of ${moment(alarm.asOf, settings.utc)})` : alarm.text;

export const alarmColumns = [
  time("Raised", (alarm) => alarm.raisedAt),
  text("Message", alarmText, { cls: "text" }),
  nodeColumn("Node", (alarm) => alarm.node),
  number("Occurrences", (alarm) => count(alarm.count ?? 1)),
];
