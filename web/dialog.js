// Confirmation dialogs before actions, and short messages after them.

import { may, role } from "./api.js";
import { find, h, replace, setAttribute } from "./dom.js";

let lastNumber = 0;
const TEXT_MAX = 500;
const newId = () => `field-${++lastNumber}`;

/** Button of an action; without the required role it stays in the tab order and shows the reason. */
export function actionButton(label, wanted, press, { cls = "", name = null } = {}) {
  const allowed = may(wanted);
  const why = `This needs the role ${wanted}; you are ${role}.`;
  const button = h("button", { type: "button", class: `action ${cls}`.trim(), "aria-label": name }, label);
  if (!allowed) {
    setAttribute(button, "aria-disabled", "true");
    setAttribute(button, "title", why);
    setAttribute(button, "aria-description", why);
  }
  button.addEventListener("click", () => (allowed ? press(button) : toast(why, "warning")));
  return button;
}

/** Field with its label and a place for its error. */
export function field(
  label,
  { value = "", kind = "text", hint = "", rows = 3, options = null, required = false, max = TEXT_MAX } = {},
) {
  const id = newId();
  const input = options
    ? h(
        "select",
        { id },
        options.map((one) => h("option", { value: one.value, selected: one.value === value }, one.label)),
      )
    : kind === "area"
      ? h("textarea", { id, rows, spellcheck: "false", maxlength: max })
      : h("input", { id, type: kind, autocomplete: "off", spellcheck: "false", maxlength: max });
  if (!options) input.value = value;
  if (required) setAttribute(input, "aria-required", "true");
  const wrong = h("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
  const element = h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null,
    input,
    wrong,
  );
  setAttribute(input, "aria-describedby", hint ? `${id}-hint ${id}-wrong` : `${id}-wrong`);
  return {
    element,
    input,
    get value() {
      return input.value;
    },
    refuse(text) {
      replace(wrong, text);
      wrong.hidden = !text;
      setAttribute(input, "aria-invalid", text ? "true" : null);
    },
  };
}

/** Asks for confirmation, then calls send(values), which may throw. `fields` by name; `typed`: text to type for confirmation. */
export function ask({ title, intro = [], fields = {}, typed = null, button, danger = false, send, done = () => {} }) {
  const heading = h("h2", { id: newId() }, title);
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = typed === null ? null : field(`Type ${typed} to confirm`, { required: true });
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, button);
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    heading,
    [intro].flat(),
    Object.values(fields).map((one) => one.element),
    confirm?.element,
    problem,
    h("div", { class: "dialog-buttons" }, cancel, go),
  );
  const dialog = openDialog(form, heading.id);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let first = null;
    for (const one of Object.values(fields)) {
      const missing = one.input.getAttribute("aria-required") === "true" && !one.value.trim();
      one.refuse(missing ? "This is needed." : "");
      if (missing) first ??= one.input;
    }
    if (confirm) {
      const wrong = confirm.value !== typed;
      confirm.refuse(wrong ? `This must be exactly: ${typed}` : "");
      if (wrong) first ??= confirm.input;
    }
    if (first) {
      first.focus();
      return;
    }
    go.disabled = true;
    problem.hidden = true;
    try {
      const answer = await send(
        Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.value.trim()])),
        typed,
      );
      dialog.close();
      done(answer);
    } catch (error) {
      const target = error.field === "confirm" ? confirm : fields[error.field];
      if (target) {
        target.refuse(error.message);
        target.input.focus();
      } else {
        problem.hidden = false;
        replace(problem, error.message);
      }
    } finally {
      go.disabled = false;
    }
  });
  return dialog;
}

/** Opens a modal dialog around the content; closing removes it from the page. */
export function openDialog(content, labelledBy, cls = "") {
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": labelledBy, class: cls || null }, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Short message that disappears after a while; an error stays until it is closed. */
export function toast(text, level = "good") {
  const box = find("#toasts");
  const note = h(
    "div",
    { class: "toast", "data-level": level },
    h("span", {}, text),
    h(
      "button",
      { type: "button", class: "plain", "aria-label": "Put this note away", on: { click: () => note.remove() } },
      "×",
    ),
  );
  box.append(note);
  while (box.children.length > 4) box.firstElementChild.remove();
  if (level === "good") setTimeout(() => note.remove(), 6000);
}
