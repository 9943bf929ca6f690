// Open alarms with buttons to acknowledge and clear them, then acknowledged and cleared alarms. Loaded by `app.js`; the
// columns are in `parts.js`, the state of alarms is in `bmqtwist/view/alarms.py`.

import { get, post } from "../api.js";
import { emptyNote, find, h, replace, setText } from "../dom.js";
import { actionButton, confirmAction, field, openDialog, toast } from "../dialog.js";
import { rowsOf } from "../merge.js";
import { alarmColumns, emptyOfNodes } from "../parts.js";
import { buttons, custom, table, text, time } from "../table.js";

const TEXT_MAX = 1000;

export function start({ onCluster }) {
  let newest = null;
  find("#raise").append(actionButton("Raise an alarm …", "operator", () => openRaiseDialog(newest)));
  const listed = new Map(); // all alarms at the time of loading; live documents update them
  const noAlarms = emptyOfNodes("No open alarms.", "alarms");
  const open = table({
    caption: "Open alarms",
    key: (alarm) => alarm.id,
    empty: noAlarms,
    columns: [
      alarmColumns[0],
      kindColumn,
      ...alarmColumns.slice(1),
      buttons("Actions", (current, row) => [
        actionButton("Acknowledge", "operator", (button) => postAction(current(), "acknowledge", "acknowledged", button), {
          name: `Acknowledge alarm ${row.category} of ${row.node}`,
        }),
        clearButton(current, row),
      ]),
    ],
  });
  const past = table({
    caption: "Acknowledged and cleared alarms",
    key: (alarm) => `${alarm.id} ${Boolean(alarm.clearedAt)}`,
    empty: emptyNote("No acknowledged or cleared alarms."),
    columns: [
      alarmColumns[0],
      kindColumn,
      ...alarmColumns.slice(1),
      text("Acknowledged by", (alarm) => alarm.acknowledgedBy || "–"),
      time("Cleared", (alarm) => alarm.clearedAt),
      buttons("Actions", (current, row) => (row.clearedAt ? [] : [clearButton(current, row)])),
    ],
  });
  find("#open").append(open.element);
  find("#past").append(past.element);

  function show(cluster) {
    const all = new Map(listed);
    for (const alarm of rowsOf(cluster?.alarms)) all.set(alarm.id, alarm);
    const list = [...all.values()].sort((a, b) => b.raisedAt - a.raisedAt);
    const isOpen = (alarm) => !alarm.clearedAt && !alarm.acknowledgedBy;
    open.show(list.filter(isOpen));
    past.show(list.filter((alarm) => !isOpen(alarm)));
    noAlarms.show(cluster);
  }

  onCluster((cluster) => {
    newest = cluster;
    show(cluster);
  });
  get("/api/v1/alarms")
    .then(({ alarms }) => {
      for (const alarm of rowsOf(alarms)) listed.set(alarm.id, alarm);
      show(newest);
    })
    .catch((error) => toast(`Failed to load acknowledged and cleared alarms: ${error.message}`, "warning"));
}

// Id and category of an alarm; the id opens the alarm's meaning, effect and remedy.
const kindColumn = custom(
  "Alarm",
  () => {
    const button = h("button", { type: "button", class: "plain link", on: { click: () => openReference(button.textContent) } });
    const category = h("span", { class: "lag" });
    return [
      h("span", {}, button, category),
      (alarm) => {
        setText(button, alarm.kind ?? "–");
        setText(category, alarm.severity === "PANIC" ? `PANIC ${alarm.category}` : alarm.category);
      },
    ];
  },
  { head: true },
);

/** Shows the declaration of an alarm, which docs/alarms.md has, too. */
async function openReference(id) {
  const body = h("div", { class: "stack" }, h("p", { class: "empty" }, "Loading …"));
  const close = h("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const title = h("h2", { id: "reference-title", class: "long" }, `Alarm ${id}`);
  const dialog = openDialog(
    h("div", { class: "stack" }, title, body, h("div", { class: "dialog-buttons" }, close)),
    "reference-title",
    "wide",
  );
  try {
    const { alarms } = await get("/api/v1/alarms/catalogue");
    const kind = alarms.find((one) => one.id === id);
    if (!kind) {
      replace(body, emptyNote("The serving node does not declare this alarm."));
      return;
    }
    const rows = [
      ["Severity and category", `${kind.severity} ${kind.category}`],
      ["Meaning", kind.meaning],
      ["Effect", kind.effect],
      ["What to do", kind.remedy],
      ["Cleared by the broker when", kind.clears || "never"],
    ];
    replace(
      body,
      h(
        "dl",
        { class: "reference" },
        rows.map(([name, words]) => h("div", {}, h("dt", {}, name), h("dd", {}, withCode(words)))),
      ),
    );
  } catch (error) {
    replace(body, h("p", { class: "problem", role: "alert" }, `Failed to load the alarm catalogue: ${error.message}`));
  }
}

/** Returns a text with the parts in backticks as code elements. */
function withCode(words) {
  return words.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

/** Opens the dialog to raise an operator's alarm, which is logged and listed like an alarm of the broker. */
function openRaiseDialog(cluster) {
  const names = rowsOf(cluster?.nodes, cluster?.nodesOrder).filter((node) => node.state === "up");
  confirmAction({
    title: "Raise an alarm",
    button: "Raise alarm",
    intro: [
      h("p", {}, "The alarm is written to the log and to the alarm channel, and stays listed until it is cleared."),
    ],
    fields: {
      text: field("Message", { kind: "area", rows: 3, max: TEXT_MAX, required: true }),
      category: field("Category", { value: "OPERATOR", max: 64, hint: "Capital letters, digits and _." }),
      severity: field("Severity", {
        options: [
          { value: "ALARM", label: "ALARM: action required" },
          { value: "PANIC", label: "PANIC: immediate action required" },
        ],
        value: "ALARM",
      }),
      node: field("Node", {
        options: [
          { value: "", label: "the node that serves this page" },
          ...names.map(({ name }) => ({ value: name, label: name })),
        ],
        value: "",
      }),
    },
    send: (values) => post("/api/v1/alarms", values),
    done: () => toast("Alarm raised."),
  });
}

/** Button that clears an alarm; the broker raises it again if its condition persists. */
function clearButton(current, row) {
  return actionButton("Clear", "operator", (button) => postAction(current(), "clear", "cleared", button), {
    name: `Clear alarm ${row.category} of ${row.node}`,
  });
}

/** Acknowledges or clears an alarm and reports the result; `verb` is the action, `participle` its past participle. */
async function postAction(alarm, verb, participle, button) {
  button.disabled = true;
  try {
    await post(`/api/v1/alarms/${encodeURIComponent(alarm.id)}/${verb}`, {});
    toast(`Alarm ${participle}.`);
  } catch (error) {
    toast(`Failed to ${verb} the alarm: ${error.message}`, "bad");
  } finally {
    button.disabled = false;
  }
}
