// Audit log: user, action, reason and result.

import { get } from "../api.js";
import { emptyNote, find, h, replace } from "../dom.js";
import { rowsOf } from "../merge.js";
import { nodeColumn } from "../parts.js";
import { state, table, text, time } from "../table.js";

export async function start() {
  const list = table({
    caption: "Actions, the newest first",
    key: (entry, n) => `${entry.at} ${entry.user} ${entry.action} ${entry.target} ${n}`,
    empty: emptyNote("No action has been asked for yet."),
    columns: [
      time("When", (entry) => entry.at),
      text("Who", (entry) => entry.user || "nobody logged in", { head: true }),
      text("Role", (entry) => entry.role ?? "–"),
      text("From", (entry) => entry.from ?? "–"),
      text("Action", (entry) => entry.action, { cls: "nowrap" }),
      text("On what", (entry) => entry.target ?? "–", { cls: "text" }),
      text("Reason", (entry) => entry.reason || "–", { cls: "text" }),
      nodeColumn("Node", (entry) => entry.node),
      state(
        "Outcome",
        (entry) => entry.outcome ?? "–",
        (entry) => (/^(ok|done|accepted)/i.test(entry.outcome ?? "") ? "good" : "warning"),
      ),
    ],
  });
  const box = find("#list");
  replace(box, emptyNote("The log is being read …"));
  try {
    const { entries } = await get("/api/v1/audit");
    list.show(rowsOf(entries));
    replace(box, list.element);
  } catch (error) {
    replace(box, h("p", { class: "problem", role: "alert" }, `The audit log cannot be read: ${error.message}`));
  }
}
