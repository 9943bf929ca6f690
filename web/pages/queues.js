// All queues: the server sorts, filters and returns the rows in view; the page contains only these rows. Loaded by
// `app.js`; one queue is shown by `queue.js`. The server side is `bmqtwist/console/queues.py`.

import { query, setQuery } from "../api.js";
import { emptyNote, find, h, setAttribute, setText } from "../dom.js";
import { bytes, count, counted, percent, rate, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { noQueuesText, queueLink, rateNote, segments } from "../parts.js";
import { bar, link, number, spark, table, text } from "../table.js";

const ROW_PX = 32;
const MARGIN_ROWS = 20;
const WINDOW_ROWS = 80;
const HEIGHT_PX_MAX = 15_000_000; // browsers support about twice that
const DEBOUNCE_MS = 120;
const VIEWS = [
  ["messages desc", "Deepest"],
  ["oldestSeconds desc", "Oldest"],
  ["quota desc", "Nearly full"],
  ["putRate desc", "Busiest"],
  ["consumers asc", "Without consumers"],
  ["uri asc", "By name"],
];
const SORTS = [
  "uri",
  "messages",
  "bytes",
  "oldestSeconds",
  "putRate",
  "pushRate",
  "confirmRate",
  "consumers",
  "producers",
  "quota",
];

const columns = [
  link(
    "Queue",
    (queue) => queue.uri,
    (queue) => queueLink(queue.uri),
    { head: true, sort: "uri", title: (queue) => queue.uri },
  ),
  text("Mode", (queue) => queue.mode, { cls: "w-76" }),
  number("Messages", (queue) => count(queue.messages), { sort: "messages", cls: "w-88" }),
  number("Bytes", (queue) => bytes(queue.bytes), { sort: "bytes", cls: "w-88" }),
  number("Oldest", (queue) => seconds(queue.oldestSeconds), { sort: "oldestSeconds", cls: "w-104" }),
  number("In", (queue) => rate(queue.putRate), { sort: "putRate", cls: "w-66" }),
  number("Out", (queue) => rate(queue.pushRate), { sort: "pushRate", cls: "w-66" }),
  number("Consumers", (queue) => count(queue.consumers), { sort: "consumers", cls: "w-104" }),
  bar(
    "Quota",
    (queue) => queue.quota,
    (queue) => percent(queue.quota),
    { sort: "quota", cls: "w-122" },
  ),
  spark("Depth", (queue) => queue.spark, { cls: "w-122" }),
];

export function start({ live, onCluster }) {
  const given = query();
  let cluster = null;
  onCluster((document) => {
    cluster = document;
  });
  const wanted = {
    filter: given.get("filter") ?? "",
    sort: SORTS.includes(given.get("sort")) ? given.get("sort") : "messages",
    order: given.get("order") === "asc" ? "asc" : "desc",
    offset: 0,
    limit: WINDOW_ROWS,
  };
  let top = Math.max(0, Number.parseInt(given.get("offset") ?? "0", 10) || 0); // the first row in view
  let total = 0;
  let debounceTimer = null;

  const input = find("#filter");
  const totalText = find("#total");
  const list = table({
    caption: "Queues",
    columns,
    key: (queue) => queue.uri,
    onSort: sortBy,
    sorted: () => wanted,
    cls: "queues",
  });
  const placeholder = h("div", { class: "empty-state", hidden: true });
  const above = spacerRow();
  const below = spacerRow();
  list.element.classList.add("virtual");
  find("#list").append(list.element, placeholder);
  setAttribute(list.element, "aria-busy", "true");
  input.value = wanted.filter;
  const views = segments(find("#views"), VIEWS, `${wanted.sort} ${wanted.order}`, (value) => {
    [wanted.sort, wanted.order] = value.split(" ");
    showFromTop();
  });

  // A list above the browser's height limit is scaled: one pixel of scrolling covers more than one pixel of rows.
  const rowPx = () => Math.min(ROW_PX, HEIGHT_PX_MAX / Math.max(1, total));

  function showRows(document) {
    total = document.total ?? 0;
    const rows = rowsOf(document);
    const offset = document.offset ?? wanted.offset;
    const before = Math.max(0, Math.round(offset * rowPx()));
    above.size(before);
    below.size(Math.max(0, Math.round(total * rowPx()) - before - rows.length * ROW_PX));
    list.show(rows, { before: [above.element], after: [below.element], first: offset + 2 });
    setAttribute(list.table, "aria-rowcount", String(total + 1));
    setAttribute(list.element, "aria-busy", "false");
    const missing = Object.keys(document.missing ?? {});
    const copies = rows.map((row) => row.copyAt).filter(Boolean);
    setText(
      totalText,
      `${counted(total, "queue")}${wanted.filter ? ` matching “${wanted.filter}”` : ""}${
        missing.length ? `, not including ${missing.join(", ")}: no response` : ""
      }${copies.length ? `; values from copies at ${[...new Set(copies)].join(", ")}: their primary does not answer` : ""}. ${rateNote(cluster)}`,
    );
    list.element.hidden = total === 0;
    placeholder.hidden = total > 0;
    if (total === 0) {
      placeholder.replaceChildren(
        wanted.filter
          ? emptyNote(
              `No queues match “${wanted.filter}”. `,
              h("button", { type: "button", on: { click: clearFilter } }, "Show all queues"),
            )
          : emptyNote(noQueuesText(document)),
      );
    }
    if (top > 0 && list.frame.scrollTop === 0 && total > 0 && !list.frame.dataset.placed) {
      list.frame.scrollTop = Math.min(top, total - 1) * rowPx();
    }
    list.frame.dataset.placed = "1";
  }

  wanted.offset = Math.max(0, top - MARGIN_ROWS);
  const subscription = live.subscribe("queues", { ...wanted }, showRows, (problem) => {
    setText(totalText, `Failed to load queues: ${problem}`);
  });

  function requestRows() {
    setQuery({
      filter: wanted.filter,
      sort: wanted.sort === "messages" ? "" : wanted.sort,
      order: wanted.order === "desc" ? "" : wanted.order,
      offset: top || "",
    });
    subscription.change({ ...wanted });
  }

  function showFromTop() {
    top = 0;
    wanted.offset = 0;
    list.frame.scrollTop = 0;
    views.set(`${wanted.sort} ${wanted.order}`);
    setAttribute(list.element, "aria-busy", "true");
    list.refreshHead();
    requestRows();
  }

  function sortBy(sort) {
    if (wanted.sort === sort) wanted.order = wanted.order === "desc" ? "asc" : "desc";
    else Object.assign(wanted, { sort, order: sort === "uri" ? "asc" : "desc" });
    showFromTop();
    find(`[data-sort="${sort}"]`, list.table)?.focus();
  }

  function clearFilter() {
    input.value = "";
    wanted.filter = "";
    showFromTop();
    input.focus();
  }

  function debounce(action) {
    clearTimeout(debounceTimer);
    debounceTimer = setTimeout(action, DEBOUNCE_MS);
  }

  list.frame.addEventListener(
    "scroll",
    () =>
      debounce(() => {
        const first = Math.max(0, Math.floor(list.frame.scrollTop / rowPx()));
        if (first === top) return;
        top = first;
        const last = first + Math.ceil(list.frame.clientHeight / ROW_PX);
        if (first >= wanted.offset && last <= wanted.offset + WINDOW_ROWS) {
          setQuery({ offset: top || "" });
          return;
        }
        wanted.offset = Math.max(0, first - MARGIN_ROWS);
        requestRows();
      }),
    { passive: true },
  );
  input.addEventListener("input", () =>
    debounce(() => {
      if (input.value === wanted.filter) return;
      wanted.filter = input.value;
      showFromTop();
    }),
  );
  find("#filters").addEventListener("submit", (event) => event.preventDefault());
}

/** Placeholder row for the rows above or below those in the page. */
function spacerRow() {
  const cell = h("td", { colspan: columns.length });
  return {
    element: h("tr", { class: "spacer", "aria-hidden": "true" }, cell),
    size(px) {
      cell.style.height = `${px}px`;
    },
  };
}
