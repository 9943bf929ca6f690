// Audit log: user, action, reason and result. Loaded by `app.js`; the entries are those of `bmqtwist/console/audit.py`.

import { get } from "../api.js";
import { emptyNote, find, h, replace } from "../dom.js";
import { rowsOf } from "../merge.js";
import { nodeColumn } from "../parts.js";
import { state, table, text, time } from "../table.js";

export async function start() {
  const list = table({
    caption: "Actions, newest first",
    key: (entry, n) => `${entry.at} ${entry.user} ${entry.action} ${entry.target} ${n}`,
    empty: emptyNote("No recorded actions."),
    columns: [
      time("Time", (entry) => entry.at),
      text("User", (entry) => entry.user || "(no login)", { head: true }),
      text("Role", (entry) => entry.role ?? "–"),
      text("Address", (entry) => entry.from ?? "–"),
      text("Action", (entry) => entry.action, { cls: "nowrap" }),
      text("Target", (entry) => entry.target ?? "–", { cls: "text" }),
      text("Reason", (entry) => entry.reason || "–", { cls: "text" }),
      nodeColumn("Node", (entry) => entry.node),
      state(
        "Result",
        (entry) => entry.outcome ?? "–",
        (entry) => (/^(ok|done|accepted)/i.test(entry.outcome ?? "") ? "good" : "warning"),
      ),
    ],
  });
  const box = find("#list");
  replace(box, emptyNote("Loading audit log …"));
  try {
    const { entries } = await get("/api/v1/audit");
    list.show(rowsOf(entries));
    replace(box, list.element);
  } catch (error) {
    replace(box, h("p", { class: "problem", role: "alert" }, `Failed to load the audit log: ${error.message}`));
  }
}
