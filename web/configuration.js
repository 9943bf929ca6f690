// Configuration of one node, and its differences from other nodes.

import { get } from "./api.js";
import { emptyNote, h, replace } from "./dom.js";
import { counted } from "./format.js";
import { table, text } from "./table.js";

/** Builds the panel in the box; nodes(names) sets the nodes to compare with. */
export function configurationPanel(box, name) {
  let peers = [];
  const compare = h("button", { type: "button", on: { click: () => load(true) } }, "Compare with the other nodes");
  const whole = h("button", { type: "button", on: { click: () => load(false) } }, "Show all of it");
  const result = h("div", { class: "stack", role: "status" });
  replace(box, h("div", { class: "stack" }, h("div", { class: "buttons" }, compare, whole), result));

  async function load(differences) {
    replace(result, emptyNote("The configuration is being read …"));
    const asked = differences ? [name, ...peers.filter((one) => one !== name)] : [name];
    const answers = await Promise.allSettled(asked.map((node) => get("/api/v1/config", { node })));
    const silent = asked.filter((_, n) => answers[n].status === "rejected");
    const known = asked.filter((_, n) => answers[n].status === "fulfilled");
    if (!known.includes(name)) {
      replace(result, h("p", { class: "problem" }, `The configuration cannot be read: ${answers[0].reason.message}`));
      return;
    }
    const flat = new Map(known.map((node) => [node, flatten(answers[asked.indexOf(node)].value.config)]));
    const paths = [...new Set([...flat.values()].flatMap((one) => [...one.keys()]))].sort();
    const rows = paths.filter(
      (path) => !differences || known.some((node) => flat.get(node).get(path) !== flat.get(name).get(path)),
    );
    const list = table({
      caption: differences
        ? `${counted(rows.length, "value")} that not all of ${known.join(", ")} have`
        : `${counted(rows.length, "value")} of ${name}`,
      key: (path) => path,
      empty: emptyNote(`All of ${known.join(", ")} have the same configuration.`),
      columns: [
        text("Member", (path) => path, { head: true, cls: "text mono" }),
        ...known.map((node) => text(node, (path) => flat.get(node).get(path) ?? "not there", { cls: "text" })),
      ],
    });
    list.show(rows);
    replace(
      result,
      list.element,
      silent.length ? h("p", { class: "notice" }, `No answer from ${silent.join(", ")}.`) : null,
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
