// Command palette (Ctrl-K): navigation by typing.

import { path } from "./api.js";
import { h, replace, setAttribute } from "./dom.js";
import { openDialog } from "./dialog.js";
import { rowsOf } from "./merge.js";

const SHOWN_MAX = 12;
const PAGES = [
  ["Overview", "/"],
  ["Shards", "/shards"],
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

/** Targets: [words, path, kind]. */
export function choices(cluster, typed) {
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
    found.push([`Find queues with “${typed.trim()}”`, path("/queues", { filter: typed.trim() }), "search"]);
  return found;
}

let dialog = null;

export function openPalette(getCluster) {
  if (dialog !== null) return;
  let found = [];
  let at = 0;
  const list = h("ul", { role: "listbox", id: "palette-list", "aria-label": "Where to go" });
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
  const choose = (n) => {
    at = found.length ? (n + found.length) % found.length : 0;
    [...list.children].forEach((item, i) => {
      setAttribute(item, "aria-selected", String(i === at));
      if (i === at) item.scrollIntoView({ block: "nearest" });
    });
    setAttribute(input, "aria-activedescendant", found.length ? `palette-${at}` : null);
  };
  const refill = () => {
    found = choices(getCluster(), input.value);
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
    choose(0);
  };
  const heading = h("h2", { id: "palette-title", class: "visually-hidden" }, "Go to");
  dialog = openDialog(
    h("div", {}, heading, input, list, h("p", { class: "hint" }, "↑ ↓ to choose, Enter to go, Esc to close")),
    "palette-title",
    "palette",
  );
  dialog.addEventListener("close", () => {
    dialog = null;
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  input.addEventListener("input", refill);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(at + 1);
    else if (event.key === "ArrowUp") choose(at - 1);
    else if (event.key === "Enter" && found[at]) location.assign(found[at][1]);
    else return;
    event.preventDefault();
  });
  refill();
  input.focus();
}
