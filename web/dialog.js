// Buttons of actions, their confirmation dialogs, and notifications of results. Used by the pages, and by `stop.js`,
// `tools.js` and `messages.js`, which have the dialogs of one purpose each.

import { hasRole, role } from "./api.js";
import { find, h, replace, setAttribute } from "./dom.js";

let lastNumber = 0;
const TEXT_MAX = 500;
const newId = () => `field-${++lastNumber}`;

/** Button of an action; without the required role it is disabled, stays in the tab order and shows the reason. */
export function actionButton(label, wanted, press, { cls = "", name = null } = {}) {
  const allowed = hasRole(wanted);
  const why = `Requires the role ${wanted}; your role is ${role}.`;
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
  const error = h("p", { class: "field-error", id: `${id}-error`, hidden: true });
  const element = h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null,
    input,
    error,
  );
  setAttribute(input, "aria-describedby", hint ? `${id}-hint ${id}-error` : `${id}-error`);
  return {
    element,
    input,
    get value() {
      return input.value;
    },
    /** Shows an error below the field; "" removes it. */
    setError(text) {
      replace(error, text);
      error.hidden = !text;
      setAttribute(input, "aria-invalid", text ? "true" : null);
    },
  };
}

/** Opens a confirmation dialog; on confirmation calls send(values), whose exception is shown in the dialog. `fields` by name; `typed`: text to type for confirmation. */
export function confirmAction({
  title,
  intro = [],
  fields = {},
  typed = null,
  button,
  danger = false,
  cls = "",
  send,
  done = () => {},
}) {
  const heading = h("h2", { id: newId() }, title);
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = typed === null ? null : field(`Type ${typed} to confirm`, { required: true });
  const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, button);
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    heading,
    [intro].flat(),
    Object.values(fields).map((one) => one.element),
    confirm?.element,
    problem,
    h("div", { class: "dialog-buttons" }, cancel, submit),
  );
  const dialog = openDialog(form, heading.id, cls);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let first = null;
    for (const one of Object.values(fields)) {
      const missing = one.input.getAttribute("aria-required") === "true" && !one.value.trim();
      one.setError(missing ? "This field is required." : "");
      if (missing) first ??= one.input;
    }
    if (confirm) {
      const mismatch = confirm.value !== typed;
      confirm.setError(mismatch ? `Enter exactly: ${typed}` : "");
      if (mismatch) first ??= confirm.input;
    }
    if (first) {
      first.focus();
      return;
    }
    submit.disabled = true;
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
        target.setError(error.message);
        target.input.focus();
      } else {
        problem.hidden = false;
        replace(problem, error.message);
      }
    } finally {
      submit.disabled = false;
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

/** Shows a notification: a success for 6 s, a warning or error until the user dismisses it. */
export function toast(text, level = "good") {
  const box = find("#toasts");
  const note = h(
    "div",
    { class: "toast", "data-level": level },
    h("span", {}, text),
    h(
      "button",
      { type: "button", class: "plain", "aria-label": "Dismiss notification", on: { click: () => note.remove() } },
      "×",
    ),
  );
  box.append(note);
  while (box.children.length > 4) box.firstElementChild.remove();
  if (level === "good") setTimeout(() => note.remove(), 6000);
}
