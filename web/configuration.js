// Configuration of one node, and comparison with other nodes. Used by `pages/node.js`; `pages/domains.js` shows and
// compares the configurations of domains.

import { get } from "./api.js";
import { emptyNote, h, replace } from "./dom.js";
import { counted } from "./format.js";
import { table, text } from "./table.js";

/** Builds the panel in the box; nodes(names) sets the nodes to compare with. */
export function configurationPanel(box, name) {
  let peers = [];
  const compare = h("button", { type: "button", on: { click: () => load(true) } }, "Compare with other nodes");
  const whole = h("button", { type: "button", on: { click: () => load(false) } }, "Show full configuration");
  const result = h("div", { class: "stack", role: "status" });
  replace(box, h("div", { class: "stack" }, h("div", { class: "buttons" }, compare, whole), result));

  async function load(differences) {
    replace(result, emptyNote("Loading configuration …"));
    const requested = differences ? [name, ...peers.filter((one) => one !== name)] : [name];
    const answers = await Promise.allSettled(requested.map((node) => get("/api/v1/config", { node })));
    const unreachable = requested.filter((_, n) => answers[n].status === "rejected");
    const known = requested.filter((_, n) => answers[n].status === "fulfilled");
    if (!known.includes(name)) {
      replace(result, h("p", { class: "problem" }, `Failed to load the configuration: ${answers[0].reason.message}`));
      return;
    }
    const flat = new Map(known.map((node) => [node, flatten(answers[requested.indexOf(node)].value.config)]));
    const paths = [...new Set([...flat.values()].flatMap((one) => [...one.keys()]))].sort();
    const rows = paths.filter(
      (path) => !differences || known.some((node) => flat.get(node).get(path) !== flat.get(name).get(path)),
    );
    const list = table({
      caption: differences
        ? `${counted(rows.length, "setting differs", "settings differ")} between ${known.join(", ")}`
        : `${counted(rows.length, "setting")} of ${name}`,
      key: (path) => path,
      empty: emptyNote(`${known.join(", ")} have the same configuration.`),
      columns: [
        text("Setting", (path) => path, { head: true, cls: "text mono" }),
        ...known.map((node) => text(node, (path) => flat.get(node).get(path) ?? "not set", { cls: "text" })),
      ],
    });
    list.show(rows);
    replace(
      result,
      list.element,
      unreachable.length ? h("p", { class: "notice" }, `No response from ${unreachable.join(", ")}.`) : null,
    );
  }

  return {
    nodes(names) {
      peers = names;
      compare.disabled = names.length < 2;
    },
  };
}

/** Every value by its path: {"a": [{"b": 1}]} gives a.0.b = 1; members of lists with a name are keyed by it. */
export function flatten(value, path = "", found = new Map()) {
  if (value !== null && typeof value === "object" && Object.keys(value).length > 0) {
    for (const [key, one] of Object.entries(value)) {
      const part = Array.isArray(value) && typeof one?.name === "string" ? one.name : key;
      flatten(one, path ? `${path}.${part}` : part, found);
    }
  } else found.set(path, JSON.stringify(value));
  return found;
}
