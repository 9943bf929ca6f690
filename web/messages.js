// Browser of the stored messages of one queue. Reading a message does not consume it. Used by `pages/queue.js`; posting
// test messages and purging are in `tools.js`.

import { get, path, query, setQuery } from "./api.js";
import { emptyNote, h, replace, setText, stateMark, timeMark } from "./dom.js";
import { field, openDialog } from "./dialog.js";
import { bytes, count, counted } from "./format.js";
import { custom, number, table, text, time } from "./table.js";

const PAGE = 50;
const GUID = /^[0-9A-Fa-f]{32}$/;
const SHOWN_BYTES = 65536;

/** Builds the browser in the box; nodes(names) sets the nodes to read from. */
export function messageBrowser(box, uri) {
  const given = query();
  const node = field("Node", { options: [{ value: "", label: "the primary" }] });
  const guid = field("GUID", { kind: "search", value: given.get("guid") ?? "" });
  const since = field("Stored since (local time)", { kind: "datetime-local" });
  const submit = h("button", { type: "submit" }, "Load");
  const form = h(
    "form",
    { class: "toolbar", role: "search", "aria-label": "Messages" },
    [node, guid, since].map((one) => {
      one.element.classList.add("inline");
      return one.element;
    }),
    submit,
  );
  const note = h("p", { class: "empty", role: "status" });
  const list = table({
    caption: "Stored messages, oldest first",
    key: (message) => message.guid,
    columns: [
      custom(
        "GUID",
        () => {
          const button = h("button", {
            type: "button",
            class: "plain mono",
            on: { click: () => open(button.textContent) },
          });
          return [button, (message) => setText(button, message.guid)];
        },
        { head: true },
      ),
      time("Stored", (message) => message.storedAt ?? message.at),
      number("Size", (message) => bytes(message.bytes)),
      text("Properties", (message) => propertiesText(message), { cls: "text" }),
      text(
        "Apps",
        (message) => (message.apps ?? []).map((app) => `${appName(app) || "default"} ${app.state}`).join(", ") || "–",
        { cls: "text" },
      ),
    ],
  });
  const more = h("button", { type: "button", on: { click: () => load(next) } }, "Next page");
  const first = h("button", { type: "button", on: { click: () => load(null) } }, "First page");
  replace(box, h("div", { class: "stack" }, form, note, list.element, h("div", { class: "buttons" }, first, more)));
  let next = null;
  const controls = () => {
    more.disabled = next === null;
    first.disabled = false;
  };

  async function load(after) {
    const wanted = guid.value.trim();
    if (wanted && !GUID.test(wanted)) {
      guid.setError("A GUID has 32 digits 0-9 and A-F.");
      guid.input.focus();
      return;
    }
    guid.setError("");
    setQuery({ guid: wanted });
    setText(note, "Loading messages …");
    const sinceSeconds = since.value ? new Date(since.value).getTime() / 1000 : undefined;
    try {
      const answer = await get("/api/v1/messages", {
        uri,
        node: node.value,
        guid: wanted,
        after,
        since: sinceSeconds,
        limit: PAGE,
      });
      const found = answer.messages ?? [];
      next = answer.next ?? null;
      list.show(found);
      list.element.hidden = found.length === 0;
      setText(
        note,
        found.length
          ? `${counted(found.length, "message")}${typeof answer.total === "number" ? ` of ${count(answer.total)}` : ""}${
              answer.role ? `, from the ${answer.role}` : ""
            }.`
          : wanted
            ? "No stored message has this GUID: all apps confirmed it, it expired, or this node never stored it."
            : after !== null
              ? "No further messages."
              : since.value
                ? "No message was stored since this time."
                : "No stored messages.",
      );
    } catch (error) {
      list.element.hidden = true;
      next = null;
      setText(note, `Failed to load messages: ${error.message}`);
    }
    controls();
  }

  async function open(id) {
    const body = h("div", { class: "stack" }, h("p", { class: "empty" }, "Loading message …"));
    const title = h("h2", { id: "message-title", class: "long" }, "Message ", h("span", { class: "mono" }, id));
    const dialog = openDialog(
      h(
        "div",
        { class: "stack" },
        title,
        body,
        h(
          "div",
          { class: "dialog-buttons" },
          h("button", { type: "button", on: { click: () => dialog.close() } }, "Close"),
        ),
      ),
      "message-title",
      "wide",
    );
    try {
      showMessage(body, await get("/api/v1/message", { uri, guid: id, node: node.value }), uri, node.value);
    } catch (error) {
      replace(body, h("p", { class: "problem", role: "alert" }, `Failed to load the message: ${error.message}`));
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load(null);
  });
  list.element.hidden = true;
  controls();
  load(null);
  let known = "";
  return {
    /** Loads the first page again. */
    reload: () => load(null),
    nodes(names) {
      if (names.join("\n") === known) return;
      known = names.join("\n");
      const chosen = node.input.value;
      replace(
        node.input,
        h("option", { value: "" }, "the primary"),
        names.map((name) => h("option", { value: name }, name)),
      );
      node.input.value = names.includes(chosen) ? chosen : "";
    },
  };
}

const appName = (app) => app.appId ?? app.app ?? "";

function propertiesText(message) {
  const words = Object.entries(message.properties ?? {})
    .map(([name, one]) => `${name}=${one.value}`)
    .join(", ");
  return words ? words + (message.propertiesTruncated ? " …" : "") : "none";
}

function showMessage(box, message, uri, node) {
  const payload = decode(message.payload ?? "");
  const download = h(
    "a",
    { href: path("/api/v1/message/payload", { uri, guid: message.guid, node }), download: `${message.guid}.bin` },
    "Download payload",
  );
  const properties = table({
    caption: "Properties",
    key: ([name]) => name,
    empty: emptyNote("The message has no properties."),
    columns: [
      text("Name", ([name]) => name, { head: true }),
      text("Type", ([, one]) => one.type),
      text("Value", ([, one]) => String(one.value), { cls: "text" }),
    ],
  });
  properties.show(Object.entries(message.properties ?? {}));
  const apps = table({
    caption: "State by app",
    key: (app) => appName(app),
    empty: emptyNote("The message is pending for no app."),
    columns: [
      text("App", (app) => appName(app) || "(default)", { head: true }),
      custom("State", () => {
        const mark = stateMark();
        return [mark, (app) => mark.set(app.state)];
      }),
      text("Delivered to", (app) => [app.to ?? app.consumer ?? []].flat().join(", ") || "–", { cls: "text" }),
      number("Attempts left", (app) => count(app.attemptsLeft)),
    ],
  });
  apps.show(message.apps ?? []);
  replace(
    box,
    h(
      "p",
      { class: "lead" },
      "Stored ",
      timeMark(message.storedAt ?? message.at),
      `, ${bytes(message.payloadBytes ?? message.bytes)}`,
      message.compression ? `, compression ${String(message.compression).toLowerCase()}` : "",
      message.truncated ? ". The payload is truncated: download it for the full content." : ".",
    ),
    download,
    h(
      "div",
      { class: "views" },
      view("Text", asText(payload)),
      view("JSON", message.truncated ? "(incomplete: download the payload to read it as JSON)" : asJson(payload)),
      view("Bytes", asHex(payload), "hex"),
    ),
    properties.element,
    apps.element,
  );
}

function view(title, words, cls = "") {
  return h(
    "div",
    {},
    h("h3", {}, title),
    h(
      "pre",
      { class: `payload ${cls}`.trim(), tabindex: "0", role: "group", "aria-label": `Payload as ${title}` },
      words,
    ),
  );
}

function decode(text) {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

function asText(payload) {
  if (payload.length === 0) return "(empty)";
  return (
    new TextDecoder("utf-8").decode(payload.subarray(0, SHOWN_BYTES)) + (payload.length > SHOWN_BYTES ? "\n…" : "")
  );
}

function asJson(payload) {
  try {
    return JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload)), null, 2).slice(
      0,
      SHOWN_BYTES,
    );
  } catch {
    return "(not valid JSON)";
  }
}

/** Returns a hex dump: lines of 16 bytes with offset, hexadecimal digits and ASCII characters. */
export function asHex(payload) {
  const lines = [];
  for (let at = 0; at < Math.min(payload.length, SHOWN_BYTES / 4); at += 16) {
    const part = [...payload.subarray(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  if (payload.length > SHOWN_BYTES / 4) lines.push("…");
  return lines.join("\n") || "(empty)";
}
