// Tables that update rows in place, so that focus, selection and scroll position are preserved. Used by the modules in
// `pages/`; cells are made by `dom.js`. The server sorts and filters large lists (`pages/queues.js`).

import { barMark, h, levelOf, setAttribute, setText, sparkMark, stateMark, timeMark } from "./dom.js";

// A column: {label, cls, head (row header), sort (sort key of the server), make: () => [element, update(row)]}.

const column = (label, options, make) => ({ label, cls: "", ...options, make });

export function text(label, read, options = {}) {
  return column(label, options, () => {
    const element = h("span");
    return [element, (row) => setText(element, read(row) ?? "–")];
  });
}

export function number(label, read, options = {}) {
  return text(label, read, { ...options, cls: `num ${options.cls ?? ""}`.trim() });
}

export function link(label, read, href, options = {}) {
  return column(label, options, () => {
    const element = h("a");
    return [
      element,
      (row) => {
        setText(element, read(row));
        setAttribute(element, "href", href(row));
        if (options.title) setAttribute(element, "title", options.title(row));
      },
    ];
  });
}

export function state(label, read, level = (row) => levelOf(read(row)), options = {}) {
  return column(label, options, () => {
    const element = stateMark();
    return [element, (row) => element.set(read(row) ?? "unknown", level(row))];
  });
}

export function time(label, read, options = {}) {
  return column(label, { cls: "nowrap", ...options }, () => {
    const element = timeMark();
    return [element, (row) => element.set(read(row))];
  });
}

export function bar(label, share, words, options = {}) {
  return column(label, options, () => {
    const element = barMark();
    return [element, (row) => element.set(share(row), words(row), options.level?.(row))];
  });
}

export function spark(label, read, options = {}) {
  return column(label, options, () => {
    const element = sparkMark();
    return [element, (row) => element.set(read(row))];
  });
}

/** Buttons of a row: make(row) is called once; `current()` returns the newest row when one is pressed. A button with
 *  setNode is given each newest row. */
export function buttons(label, make, options = {}) {
  return column(label, { cls: "actions", ...options }, () => {
    const element = h("span", { class: "buttons" });
    let newest = null;
    return [
      element,
      (row) => {
        const first = newest === null;
        newest = row;
        if (first) element.append(...make(() => newest, row));
        for (const button of element.children) button.setNode?.(row);
      },
    ];
  });
}

/** Custom element: make() returns [element, update(row)]. */
export function custom(label, make, options = {}) {
  return column(label, options, make);
}

/** Rows of one tbody. */
export class Rows {
  #body;
  #columns;
  #key;
  #rows = new Map();

  constructor(body, columns, key) {
    this.#body = body;
    this.#columns = columns;
    this.#key = key;
  }

  set columns(columns) {
    this.#columns = columns;
    this.#rows.clear();
    this.#body.replaceChildren();
  }

  get elements() {
    return this.#rows;
  }

  /** Shows these rows in this order; `before` and `after`: elements of the caller that precede and follow them. */
  show(rows, { before = [], after = [], first = 0 } = {}) {
    const next = new Map();
    rows.forEach((row, n) => {
      const key = String(this.#key(row, n));
      if (next.has(key)) return;
      const one = this.#rows.get(key) ?? this.#make();
      if (first) setAttribute(one.element, "aria-rowindex", String(first + n));
      for (const update of one.updates) update(row);
      next.set(key, one);
    });
    this.#rows = next;
    const wanted = [...before, ...[...next.values()].map((one) => one.element), ...after];
    wanted.forEach((element, n) => {
      if (this.#body.children[n] !== element) this.#body.insertBefore(element, this.#body.children[n] ?? null);
    });
    while (this.#body.children.length > wanted.length) this.#body.lastElementChild.remove();
  }

  #make() {
    const element = h("tr");
    const updates = this.#columns.map((each) => {
      const cell = each.head
        ? h("th", { scope: "row", class: each.cls || null })
        : h("td", { class: each.cls || null });
      const [content, update] = each.make();
      cell.append(content);
      element.append(cell);
      return update;
    });
    return { element, updates };
  }
}

/** Table in a scrolling frame: element, show(rows). `empty`: placeholder for a table without rows. */
export function table({ caption, columns, key, empty, onSort = null, sorted = null, cls = "" }) {
  const body = h("tbody");
  const head = h("tr");
  const element = h("table", { class: cls || null }, h("caption", {}, caption), h("thead", {}, head), body);
  const frame = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, element);
  const placeholder = h("div", { class: "empty-state", hidden: true });
  if (empty) placeholder.append(...[empty].flat());
  const rows = new Rows(body, columns, key);
  let now = columns;
  const made = {
    element: h("div", { class: "table-box" }, frame, placeholder),
    frame,
    body,
    table: element,
    rows,
    show(list, options) {
      rows.show(list, options);
      if (empty) {
        frame.hidden = list.length === 0;
        placeholder.hidden = list.length > 0;
      }
    },
    setColumns(wanted) {
      now = wanted;
      rows.columns = wanted;
      head.replaceChildren(...headCells(now, onSort, sorted?.()));
    },
    refreshHead() {
      head.replaceChildren(...headCells(now, onSort, sorted?.()));
    },
  };
  made.refreshHead();
  return made;
}

function headCells(columns, onSort, sorted) {
  return columns.map((each) => {
    const attributes = { scope: "col", class: each.cls || null };
    if (!each.sort || !onSort) return h("th", attributes, each.label);
    const active = sorted?.sort === each.sort;
    const arrow = h(
      "span",
      { class: "arrow", "aria-hidden": "true" },
      active ? (sorted.order === "asc" ? "▲" : "▼") : "",
    );
    return h(
      "th",
      { ...attributes, "aria-sort": active ? (sorted.order === "asc" ? "ascending" : "descending") : null },
      h(
        "button",
        { type: "button", class: "sort", "data-sort": each.sort, on: { click: () => onSort(each.sort) } },
        each.label,
        arrow,
      ),
    );
  });
}
