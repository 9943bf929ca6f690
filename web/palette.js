// Command palette (Ctrl-K): search for pages, nodes, queues and actions. `app.js` opens it.

import { path } from "./api.js";
import { h, replace, setAttribute } from "./dom.js";
import { openDialog } from "./dialog.js";
import { rowsOf } from "./merge.js";

const SHOWN_MAX = 12;
const PAGES = [
  ["Overview", "/"],
  ["Partitions", "/partitions"],
  ["Queues", "/queues"],
  ["Nodes", "/nodes"],
  ["Elections", "/elections"],
  ["Topology", "/topology"],
  ["Clients", "/clients"],
  ["Domains", "/domains"],
  ["Storage", "/storage"],
  ["Alarms", "/alarms"],
  ["Audit log", "/audit"],
];

/** Returns the targets that match the typed text: [label, path, kind]. */
export function findTargets(cluster, typed) {
  const all = PAGES.map(([words, to]) => [words, path(to), "page"]);
  for (const node of rowsOf(cluster?.nodes)) {
    all.push([`Node ${node.name}`, path("/node", { name: node.name }), "node"]);
    all.push([`Stop ${node.name} gracefully`, path("/node", { name: node.name, stop: "1" }), "action"]);
  }
  for (const queue of rowsOf(cluster?.queuesTop)) all.push([queue.uri, path("/queue", { uri: queue.uri }), "queue"]);
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all
    .filter(([text]) => words.every((word) => text.toLowerCase().includes(word)))
    .slice(0, SHOWN_MAX - 2);
  if (typed.startsWith("bmq://")) found.unshift([`Open ${typed}`, path("/queue", { uri: typed.trim() }), "queue"]);
  if (typed.trim())
    found.push([`Find queues matching “${typed.trim()}”`, path("/queues", { filter: typed.trim() }), "search"]);
  return found;
}

let dialog = null;

export function openPalette(getCluster) {
  if (dialog !== null) return;
  let found = [];
  let at = 0;
  const list = h("ul", { role: "listbox", id: "palette-list", "aria-label": "Results" });
  const input = h("input", {
    type: "text",
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "palette-list",
    "aria-autocomplete": "list",
    "aria-label": "Go to a page, a node or a queue",
    placeholder: "Page, node or queue …",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "500",
  });
  const select = (n) => {
    at = found.length ? (n + found.length) % found.length : 0;
    [...list.children].forEach((item, i) => {
      setAttribute(item, "aria-selected", String(i === at));
      if (i === at) item.scrollIntoView({ block: "nearest" });
    });
    setAttribute(input, "aria-activedescendant", found.length ? `palette-${at}` : null);
  };
  const refresh = () => {
    found = findTargets(getCluster(), input.value);
    replace(
      list,
      found.map(([text, to, kind], n) =>
        h(
          "li",
          { role: "option", id: `palette-${n}`, "aria-selected": "false", on: { click: () => location.assign(to) } },
          h("span", { class: "palette-text" }, text),
          h("span", { class: "kind" }, kind),
        ),
      ),
    );
    select(0);
  };
  const heading = h("h2", { id: "palette-title", class: "visually-hidden" }, "Go to");
  dialog = openDialog(
    h("div", {}, heading, input, list, h("p", { class: "hint" }, "↑ ↓ to select, Enter to go, Esc to close")),
    "palette-title",
    "palette",
  );
  dialog.addEventListener("close", () => {
    dialog = null;
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  input.addEventListener("input", refresh);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") select(at + 1);
    else if (event.key === "ArrowUp") select(at - 1);
    else if (event.key === "Enter" && found[at]) location.assign(found[at][1]);
    else return;
    event.preventDefault();
  });
  refresh();
  input.focus();
}
