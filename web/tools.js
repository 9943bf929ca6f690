// Tools of one queue: post test messages, test a subscription, purge. Used by `pages/queue.js`; stored messages are shown
// by `messages.js`.

import { post } from "./api.js";
import { emptyNote, h, replace } from "./dom.js";
import { actionButton, confirmAction, field, openDialog, toast } from "./dialog.js";
import { bytes, count, counted } from "./format.js";
import { state, table, text } from "./table.js";

const TYPES = ["string", "int32", "int64", "short", "char", "bool", "binary"];
const COUNT_MAX = 100;
const PAYLOAD_MAX = 48 * 1024;

export function publishButton(uri) {
  return actionButton("Publish test messages …", "operator", () =>
    confirmAction({
      title: "Publish test messages",
      button: "Publish",
      intro: [h("p", { class: "long" }, `The messages are posted to ${uri} like those of any client, and are delivered to its consumers.`)],
      fields: {
        payload: field("Payload", { kind: "area", rows: 4, max: PAYLOAD_MAX }),
        encoding: field("Payload encoding", {
          options: [
            { value: "text", label: "text" },
            { value: "base64", label: "base64" },
          ],
          value: "text",
        }),
        properties: field("Properties", {
          kind: "area",
          hint: `One per line: name=value or name:type=value. Types: ${TYPES.join(", ")}.`,
          max: 20_000,
        }),
        count: field("Number of messages", { kind: "number", value: "1" }),
      },
      send: (values) => {
        const number = Number(values.count);
        if (!Number.isInteger(number) || number < 1 || number > COUNT_MAX)
          throw fieldError("count", `Enter a whole number from 1 to ${COUNT_MAX}.`);
        return post("/api/v1/publish", {
          uri,
          payload: values.payload,
          encoding: values.encoding,
          properties: parseProperties(values.properties),
          count: number,
        });
      },
      done: (answer) => {
        const results = answer.results ?? [];
        const good = results.filter((one) => one.status === "SUCCESS").length;
        if (good === results.length && !answer.error)
          toast(`${counted(good, "message")} acknowledged.`);
        else
          toast(
            `${count(good)} of ${count(results.length)} messages acknowledged. Status of the others: ${
              answer.error ??
              [...new Set(results.map((one) => one.status).filter((one) => one !== "SUCCESS"))].join(", ")
            }.`,
            "bad",
          );
      },
    }),
  );
}

export function purgeButton(uri, afterwards) {
  return actionButton(
    "Purge …",
    "admin",
    () =>
      confirmAction({
        title: "Purge queue",
        danger: true,
        typed: uri,
        button: "Purge messages",
        fields: {
          app: field("App", { hint: "Leave empty to purge all apps." }),
          reason: field("Reason", { hint: "Recorded in the audit log.", required: true }),
        },
        intro: [
          h("p", {}, "All messages are deleted, including unconfirmed ones. This cannot be undone."),
        ],
        send: ({ app, reason }, confirm) => post("/api/v1/queues/purge", { uri, app: app || null, confirm, reason }),
        done: (answer) => {
          toast(`${counted(answer.messages, "message")} (${bytes(answer.bytes)}) purged.`);
          afterwards();
        },
      }),
    { cls: "danger" },
  );
}

/** Button of the dialog that tests expressions; the dialog stays open for further tests. */
export function subscriptionButton(uri) {
  return actionButton("Test subscription …", "viewer", () => {
    const expression = field("Expression", {
      kind: "area",
      rows: 2,
      hint: 'Example: firmId == "ABC" && price > 100',
      max: 4000,
    });
    const properties = field("Properties", {
      kind: "area",
      rows: 3,
      hint: "Leave empty to test the 50 newest stored messages. Otherwise one per line: name=value or name:type=value.",
      max: 20_000,
    });
    const result = h("div", { class: "stack", role: "status" });
    const title = h("h2", { id: "subscription-title" }, "Test subscription");
    const form = h(
      "form",
      { class: "stack" },
      title,
      expression.element,
      properties.element,
      result,
      h(
        "div",
        { class: "dialog-buttons" },
        h("button", { type: "button", on: { click: () => dialog.close() } }, "Close"),
        h("button", { type: "submit", class: "primary" }, "Run test"),
      ),
    );
    const dialog = openDialog(form, "subscription-title", "wide");
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      properties.setError("");
      expression.setError("");
      try {
        const given = properties.value.trim() ? parseProperties(properties.value) : null;
        const answer = await post("/api/v1/subscriptions/test", {
          uri,
          expression: expression.value,
          properties: given,
          last: 50,
        });
        showResult(result, expression, answer);
      } catch (error) {
        if (error.field === "properties") properties.setError(error.message);
        else if (error.field === "expression") expression.setError(error.message);
        else replace(result, h("p", { class: "problem" }, error.message));
      }
    });
  });
}

function showResult(box, expression, answer) {
  if (answer.error) {
    const { message, offset = 0, length = 1 } = answer.error;
    const words = expression.value;
    expression.setError(message);
    replace(
      box,
      h(
        "pre",
        { class: "payload" },
        words.slice(0, offset),
        h("mark", {}, words.slice(offset, offset + Math.max(1, length)) || " "),
        words.slice(offset + Math.max(1, length)),
      ),
    );
    return;
  }
  const routed = (row) =>
    (row.routing ?? []).map((one) => `${one.appId || "default"}: ${one.to ?? one.outcome}`).join(", ") || "–";
  const list = table({
    caption: `${counted(answer.matched ?? 0, "match", "matches")} of ${counted(answer.examined ?? 0, "message")}`,
    key: (row, n) => row.guid ?? n,
    empty: emptyNote("The queue has no stored messages. Enter properties to test the expression."),
    columns: [
      text("Message", (row) => row.guid ?? "(properties)", { head: true, cls: "mono" }),
      state(
        "Matches",
        (row) => (row.matches ? "matches" : "does not match"),
        (row) => (row.matches ? "good" : "unknown"),
      ),
      text("Reason", (row) => row.reason || "–", { cls: "text" }),
      text("Routed to", routed, { cls: "text" }),
    ],
  });
  list.show(answer.results ?? []);
  replace(box, list.element);
}

function fieldError(name, words) {
  const error = new Error(words);
  error.field = name;
  return error;
}

/** Parses lines name=value or name:type=value into {name: {type, value}}; throws an error of the field "properties". */
export function parseProperties(words) {
  const properties = {};
  for (const [n, line] of words.split("\n").entries()) {
    if (!line.trim()) continue;
    const match = /^\s*([^:=]+?)\s*(?::\s*(\w+)\s*)?=(.*)$/.exec(line);
    if (!match) throw fieldError("properties", `Line ${n + 1} must be name=value or name:type=value.`);
    const [, name, type = "string", value] = match;
    if (!TYPES.includes(type))
      throw fieldError("properties", `Line ${n + 1} has the type ${type}; it expected one of ${TYPES.join(", ")}.`);
    properties[name] = { type, value: typed(type, value.trim(), n + 1) };
  }
  return properties;
}

function typed(type, value, line) {
  if (type === "bool") {
    if (value !== "true" && value !== "false") throw fieldError("properties", `Line ${line} must be true or false.`);
    return value === "true";
  }
  if (["int32", "int64", "short", "char"].includes(type)) {
    if (!/^-?\d+$/.test(value)) throw fieldError("properties", `Line ${line} must be a whole number.`);
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }
  return value;
}
