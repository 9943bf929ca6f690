// Active alarms with buttons to acknowledge and clear them, then cleared alarms.

import { get, post } from "../api.js";
import { emptyNote, find, h } from "../dom.js";
import { actionButton, ask, field, toast } from "../dialog.js";
import { rowsOf } from "../merge.js";
import { alarmColumns } from "../parts.js";
import { buttons, table, text, time } from "../table.js";

const TEXT_MAX = 1000;

export function start({ onCluster }) {
  let newest = null;
  find("#raise").append(actionButton("Raise an alarm …", "operator", () => raise(newest)));
  const seen = new Map(); // cleared alarms from the page's own request
  const open = table({
    caption: "Open alarms",
    key: (alarm) => alarm.id,
    empty: emptyNote("No alarm is open."),
    columns: [
      ...alarmColumns,
      buttons("Actions", (current, row) => [
        actionButton("Acknowledge", "operator", (button) => tell(current(), "acknowledge", "acknowledged", button), {
          name: `Acknowledge alarm ${row.category} of ${row.node}`,
        }),
        clearButton(current, row),
      ]),
    ],
  });
  const past = table({
    caption: "Alarms that somebody acknowledged, or that are over",
    key: (alarm) => `${alarm.id} ${Boolean(alarm.clearedAt)}`,
    empty: emptyNote("No alarm has been acknowledged or cleared yet."),
    columns: [
      ...alarmColumns,
      text("Acknowledged by", (alarm) => alarm.acknowledgedBy || "–"),
      time("Cleared", (alarm) => alarm.clearedAt),
      buttons("Actions", (current, row) => (row.clearedAt ? [] : [clearButton(current, row)])),
    ],
  });
  find("#open").append(open.element);
  find("#past").append(past.element);

  function show(cluster) {
    const all = new Map(seen);
    for (const alarm of rowsOf(cluster?.alarms)) all.set(alarm.id, alarm);
    const list = [...all.values()].sort((a, b) => b.raisedAt - a.raisedAt);
    const isOpen = (alarm) => !alarm.clearedAt && !alarm.acknowledgedBy;
    open.show(list.filter(isOpen));
    past.show(list.filter((alarm) => !isOpen(alarm)));
  }

  onCluster((cluster) => {
    newest = cluster;
    show(cluster);
  });
  get("/api/v1/alarms")
    .then(({ alarms }) => {
      for (const alarm of rowsOf(alarms)) seen.set(alarm.id, alarm);
      show(newest);
    })
    .catch((error) => toast(`Alarms that are over cannot be read: ${error.message}`, "warning"));
}

/** Raises an operator's alarm, which is logged and listed like an alarm of the broker. */
function raise(cluster) {
  const names = rowsOf(cluster?.nodes, cluster?.nodesOrder).filter((node) => node.state === "up");
  ask({
    title: "Raise an alarm",
    button: "Raise it",
    intro: [
      h("p", {}, "It goes into the log and to the alarm channel, and stays in this list until somebody clears it."),
    ],
    fields: {
      text: field("What somebody has to know", { kind: "area", rows: 3, max: TEXT_MAX, required: true }),
      category: field("Category", { value: "OPERATOR", max: 64, hint: "Capital letters, digits and _." }),
      severity: field("Severity", {
        options: [
          { value: "ALARM", label: "ALARM: somebody has to act" },
          { value: "PANIC", label: "PANIC: somebody has to act now" },
        ],
        value: "ALARM",
      }),
      node: field("At node", {
        options: [
          { value: "", label: "the one that serves this page" },
          ...names.map(({ name }) => ({ value: name, label: name })),
        ],
        value: "",
      }),
    },
    send: (values) => post("/api/v1/alarms", values),
    done: () => toast("The alarm is raised."),
  });
}

/** Clears an alarm; the broker raises it again if its condition persists. */
function clearButton(current, row) {
  return actionButton("Clear", "operator", (button) => tell(current(), "clear", "cleared", button), {
    name: `Clear alarm ${row.category} of ${row.node}`,
  });
}

async function tell(alarm, what, done, button) {
  button.disabled = true;
  try {
    await post(`/api/v1/alarms/${encodeURIComponent(alarm.id)}/${what}`, {});
    toast(`The alarm is ${done}.`);
  } catch (error) {
    toast(`The alarm could not be ${done}: ${error.message}`, "bad");
  } finally {
    button.disabled = false;
  }
}
