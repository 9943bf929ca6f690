// Tools of one queue: post test messages, test a subscription, purge.

import { post } from "./api.js";
import { emptyNote, h, replace } from "./dom.js";
import { actionButton, ask, field, openDialog, toast } from "./dialog.js";
import { bytes, count, counted } from "./format.js";
import { state, table, text } from "./table.js";

const TYPES = ["string", "int32", "int64", "short", "char", "bool", "binary"];
const COUNT_MAX = 100;
const PAYLOAD_MAX = 48 * 1024;

export function publishButton(uri) {
  return actionButton("Publish test messages …", "operator", () =>
    ask({
      title: "Publish test messages",
      button: "Publish",
      intro: [h("p", { class: "long" }, `They go into ${uri} as any client's messages do, and consumers get them.`)],
      fields: {
        payload: field("Payload", { kind: "area", rows: 4, max: PAYLOAD_MAX }),
        encoding: field("The payload is", {
          options: [
            { value: "text", label: "text" },
            { value: "base64", label: "base64 (for bytes)" },
          ],
          value: "text",
        }),
        properties: field("Properties", {
          kind: "area",
          hint: `One a line: name=value, or name:type=value with a type of ${TYPES.join(", ")}.`,
          max: 20_000,
        }),
        count: field("How many", { kind: "number", value: "1" }),
      },
      send: (values) => {
        const number = Number(values.count);
        if (!Number.isInteger(number) || number < 1 || number > COUNT_MAX)
          throw refused("count", `This must be a whole number from 1 to ${COUNT_MAX}.`);
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
          toast(`${counted(good, "message was", "messages were")} acknowledged.`);
        else
          toast(
            `${count(good)} of ${count(results.length)} messages were acknowledged; the others: ${
              answer.error ??
              [...new Set(results.map((one) => one.status).filter((one) => one !== "SUCCESS"))].join(", ")
            }.`,
            "bad",
          );
      },
    }),
  );
}

export function purgeButton(uri) {
  return actionButton(
    "Purge …",
    "admin",
    () =>
      ask({
        title: "Purge the queue",
        danger: true,
        typed: uri,
        button: "Delete these messages",
        fields: {
          app: field("App", { hint: "Empty: all messages for all apps." }),
          reason: field("Reason", { hint: "It stands in the audit log.", required: true }),
        },
        intro: [
          h("p", {}, "All its messages are deleted, whether anybody has read them or not. This cannot be undone."),
        ],
        send: ({ app, reason }, confirm) => post("/api/v1/queues/purge", { uri, app: app || null, confirm, reason }),
        done: (answer) =>
          toast(
            `${counted(answer.messages, "message")} with ${bytes(answer.bytes)} ${answer.messages === 1 ? "is" : "are"} deleted.`,
          ),
      }),
    { cls: "danger" },
  );
}

/** The tester stays open for repeated tests of expressions. */
export function subscriptionButton(uri) {
  return actionButton("Try a subscription …", "viewer", () => {
    const expression = field("Expression", {
      kind: "area",
      rows: 2,
      hint: 'For instance: firmId == "ABC" && price > 100',
      max: 4000,
    });
    const properties = field("Properties", {
      kind: "area",
      rows: 3,
      hint: "Empty: it is tried on the last 50 stored messages. Else one a line: name=value or name:type=value.",
      max: 20_000,
    });
    const result = h("div", { class: "stack", role: "status" });
    const title = h("h2", { id: "subscription-title" }, "Try a subscription");
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
        h("button", { type: "submit", class: "primary" }, "Try it"),
      ),
    );
    const dialog = openDialog(form, "subscription-title", "wide");
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      properties.refuse("");
      expression.refuse("");
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
        if (error.field === "properties") properties.refuse(error.message);
        else if (error.field === "expression") expression.refuse(error.message);
        else replace(result, h("p", { class: "problem" }, error.message));
      }
    });
  });
}

function showResult(box, expression, answer) {
  if (answer.error) {
    const { message, offset = 0, length = 1 } = answer.error;
    const words = expression.value;
    expression.refuse(message);
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
    empty: emptyNote("There is no stored message to try it on: give properties instead."),
    columns: [
      text("Message", (row) => row.guid ?? "these properties", { head: true, cls: "mono" }),
      state(
        "Matches",
        (row) => (row.matches ? "matches" : "does not match"),
        (row) => (row.matches ? "good" : "unknown"),
      ),
      text("Why", (row) => row.reason || "–", { cls: "text" }),
      text("Would go to", routed, { cls: "text" }),
    ],
  });
  list.show(answer.results ?? []);
  replace(box, list.element);
}

function refused(name, words) {
  const error = new Error(words);
  error.field = name;
  return error;
}

/** Lines name=value or name:type=value as {name: {type, value}}. */
export function parseProperties(words) {
  const properties = {};
  for (const [n, line] of words.split("\n").entries()) {
    if (!line.trim()) continue;
    const match = /^\s*([^:=]+?)\s*(?::\s*(\w+)\s*)?=(.*)$/.exec(line);
    if (!match) throw refused("properties", `Line ${n + 1} must be name=value or name:type=value.`);
    const [, name, type = "string", value] = match;
    if (!TYPES.includes(type))
      throw refused("properties", `Line ${n + 1} has the type ${type}; it must be one of ${TYPES.join(", ")}.`);
    properties[name] = { type, value: typed(type, value.trim(), n + 1) };
  }
  return properties;
}

function typed(type, value, line) {
  if (type === "bool") {
    if (value !== "true" && value !== "false") throw refused("properties", `Line ${line} must be true or false.`);
    return value === "true";
  }
  if (["int32", "int64", "short", "char"].includes(type)) {
    if (!/^-?\d+$/.test(value)) throw refused("properties", `Line ${line} must be a whole number.`);
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }
  return value;
}
