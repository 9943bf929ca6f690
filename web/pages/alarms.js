// What needs somebody: open alarms, with the button that says "I have seen it"; then those that are over.

import { get, post } from "../api.js";
import { emptyNote, find } from "../dom.js";
import { actionButton, toast } from "../dialog.js";
import { rowsOf } from "../merge.js";
import { alarmColumns } from "../parts.js";
import { buttons, table, text, time } from "../table.js";

export function start({ onCluster }) {
  const seen = new Map(); // past ones that came with the page's own request
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

  let newest = null;
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

/** What an alarm is about is over; the broker raises it again when it is not. */
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
