// Storage files of a node, records of a journal, comparison of the copies of a partition. Loaded by `app.js`; the server
// side is `bmqtwist/view/storage_files.py`.

import { get, query, setQuery } from "../api.js";
import { field } from "../dialog.js";
import { emptyNote, find, h, replace, stateMark } from "../dom.js";
import { bytes, count, counted, percent } from "../format.js";
import { rowsOf } from "../merge.js";
import { queueLink } from "../parts.js";
import { bar, link, number, table, text, time } from "../table.js";

const KINDS = ["MESSAGE", "CONFIRM", "DELETION", "QUEUE_OP", "JOURNAL_OP"];
const PAGE = 50;

export function start({ onCluster, cluster }) {
  const given = query();
  let names = [];
  let partitions = [];
  let node = given.get("node") ?? cluster?.servedBy ?? "";
  let partition = Number.parseInt(given.get("partition") ?? "0", 10) || 0;
  const choice = find("#selection");
  const files = table({
    caption: "Storage files",
    key: (row) => `${row.partition} ${row.kind}`,
    empty: emptyNote("This node is not a member of a cluster and has no storage files."),
    columns: [
      text("File", (row) => `Partition ${row.partition}, ${row.kind}`, { head: true }),
      number("Used", (row) => bytes(row.used)),
      number("Live records", (row) => bytes(row.outstanding)),
      bar(
        "Fill level",
        (row) => (row.max ? row.used / row.max : null),
        (row) => `${percent(row.max ? row.used / row.max : null)} of ${bytes(row.max)}`,
      ),
      number("Allocated", (row) => bytes(row.allocated)),
      text("Rollover", (row) => (row.rollingOver ? "in progress" : "–")),
      number("Archived files", (row) => count(row.archivedFiles)),
      number("Damaged messages", (row) => count(row.damaged)),
      number("Repaired", (row) => count(row.repaired)),
      number("Discarded", (row) => count(row.discarded)),
    ],
  });
  replace(find("#files"), files.element);

  const kind = field("Kind", {
    options: [{ value: "", label: "all" }, ...KINDS.map((one) => ({ value: one, label: one }))],
    value: KINDS.includes(given.get("kind")) ? given.get("kind") : "",
  });
  const guid = field("Message GUID", { kind: "search", value: given.get("guid") ?? "", max: 32 });
  const submit = h("button", { type: "submit" }, "Search");
  for (const one of [kind, guid]) one.element.classList.add("inline");
  replace(find("#journal-filters"), kind.element, guid.element, submit);
  find("#journal-filters").addEventListener("submit", (event) => {
    event.preventDefault();
    setQuery({ kind: kind.value, guid: guid.value });
    loadJournal(0);
  });
  const compare = h("button", { type: "button", on: { click: () => loadComparison() } }, "Compare copies");
  replace(find("#compare-actions"), compare);
  replace(
    find("#compare"),
    emptyNote("Compares the newest 50,000 records of all nodes. This reads a few megabytes at each node."),
  );

  function showSelection() {
    const nodes = field("Node", { options: names.map((name) => ({ value: name, label: name })), value: node });
    const numbers = field("Partition", {
      options: partitions.map((id) => ({ value: String(id), label: `Partition ${id}` })),
      value: String(partition),
    });
    for (const one of [nodes, numbers]) {
      one.element.classList.add("inline");
      one.input.addEventListener("change", () => {
        node = nodes.value;
        partition = Number(numbers.value);
        setQuery({ node, partition });
        loadAll();
      });
    }
    replace(choice, nodes.element, numbers.element);
  }

  async function loadFiles() {
    try {
      const answer = await get("/api/v1/storage", { node });
      files.element.hidden = false;
      files.show(
        rowsOf(answer.partitions).flatMap((one) =>
          one.files.map((file) => ({
            ...file,
            partition: one.partition,
            rollingOver: one.rollingOver,
            archivedFiles: file.kind === "journal" ? one.archivedFiles : null,
            damaged: file.kind === "data" ? one.damaged : null,
            repaired: file.kind === "data" ? one.repaired : null,
            discarded: file.kind === "data" ? one.discarded : null,
          })),
        ),
      );
      replace(find("#files"), files.element);
    } catch (error) {
      replace(find("#files"), problem(`Failed to load the files of ${node}: ${error.message}`));
    }
  }

  async function loadRecords() {
    const box = find("#records");
    try {
      const answer = await get("/api/v1/storage/records", { node, partition });
      const all = answer.kinds.reduce((sum, one) => sum + one.records, 0);
      const list = table({
        caption: `${counted(all, "record")} in the journal of partition ${partition} at ${node}`,
        key: (row) => row.kind,
        empty: emptyNote("The journal has no records."),
        columns: [
          text("Kind", (row) => row.kind, { head: true }),
          number("Records", (row) => count(row.records)),
          bar(
            "Share",
            (row) => row.records / all,
            (row) => percent(row.records / all),
          ),
          number("Bytes", (row) => bytes(row.bytes)),
          time("Oldest", (row) => row.oldest),
          time("Newest", (row) => row.newest),
        ],
      });
      list.show(answer.kinds);
      replace(box, list.element);
    } catch (error) {
      replace(box, problem(`Failed to load the journal: ${error.message}`));
    }
  }

  async function loadComparison() {
    const box = find("#compare");
    compare.disabled = true;
    replace(box, emptyNote("Comparing copies …"));
    try {
      const answer = await get("/api/v1/storage/compare", { partition });
      const unreachable = Object.entries(answer.missing ?? {}).map(([name, why]) => `${name}: ${why}`);
      const list = table({
        caption: "Records of each copy",
        key: (row) => row.node,
        columns: [
          text("Node", (row) => row.node, { head: true }),
          text("First record (lease – sequence number)", (row) => row.first.map(count).join(" – ")),
          text("Last record (lease – sequence number)", (row) => row.last.map(count).join(" – ")),
        ],
      });
      list.show(answer.nodes);
      replace(
        box,
        h("p", { class: "headline" }, verdict(answer)),
        answer.differing.length
          ? h(
              "ul",
              {},
              answer.differing.map((one) =>
                h("li", {}, `lease ${count(one.lease)}, sequence numbers ${count(one.from)} to ${count(one.to)}`),
              ),
            )
          : null,
        list.element,
        unreachable.length ? problem(`Not compared: ${unreachable.join("; ")}`) : null,
      );
    } catch (error) {
      replace(box, problem(`Failed to compare the copies: ${error.message}`));
    } finally {
      compare.disabled = false;
    }
  }

  async function loadJournal(before) {
    const box = find("#journal");
    guid.setError(guid.value && !/^[0-9a-fA-F]{32}$/.test(guid.value) ? "A GUID has 32 digits 0-9 and A-F." : "");
    if (guid.input.getAttribute("aria-invalid")) return;
    try {
      const answer = await get("/api/v1/storage/journal", {
        node,
        partition,
        before: before || "",
        limit: PAGE,
        kind: kind.value,
        guid: guid.value,
      });
      const list = table({
        caption: `Records of partition ${partition} at ${node}`,
        key: (row) => row.offset,
        empty: emptyNote(
          answer.next
            ? `No match in the last ${count(answer.searched)} records. Continue with older records.`
            : "No matching records.",
        ),
        columns: [
          text("Record", (row) => `${count(row.lease)} – ${count(row.sequence)}`, { head: true, cls: "nowrap" }),
          text("Kind", (row) => row.kind),
          time("Written", (row) => row.at),
          link(
            "Queue",
            (row) => row.queue || "–",
            (row) => (row.queue ? queueLink(row.queue) : null),
            { cls: "text" },
          ),
          text("Fields", (row) => row.fields.map(([name, value]) => `${name} ${value}`).join(", ") || "–", {
            cls: "text mono",
          }),
          number("Offset", (row) => count(row.offset)),
        ],
      });
      list.show(answer.records);
      replace(
        box,
        list.element,
        h(
          "div",
          { class: "buttons" },
          before ? h("button", { type: "button", on: { click: () => loadJournal(0) } }, "Newest records") : null,
          answer.next
            ? h("button", { type: "button", on: { click: () => loadJournal(answer.next) } }, "Older records")
            : null,
        ),
      );
    } catch (error) {
      replace(box, problem(`Failed to load the journal: ${error.message}`));
    }
  }

  function loadAll() {
    loadFiles();
    loadRecords();
    loadJournal(0);
  }

  onCluster((document) => {
    const nodes = rowsOf(document.nodes, document.nodesOrder).map((one) => one.name);
    const ids = rowsOf(document.partitions, document.partitionsOrder).map((one) => one.id);
    if (nodes.join("\n") === names.join("\n") && ids.join() === partitions.join()) return;
    [names, partitions] = [nodes, ids];
    if (!names.includes(node)) node = document.servedBy ?? names[0] ?? "";
    if (!partitions.includes(partition)) partition = partitions[0] ?? 0;
    showSelection();
    loadAll();
  });
}

const problem = (words) => h("p", { class: "problem", role: "alert" }, words);

function verdict(answer) {
  if (answer.nodes.length < 2) return stateMark("Only one copy: nothing to compare.", "unknown");
  if (answer.differing.length)
    return stateMark(`${counted(answer.differing.length, "block of records differs", "blocks of records differ")}.`, "bad");
  return stateMark(
    `All ${answer.nodes.length} copies are equal: ${counted(
      answer.comparedRecords,
      "record",
    )} compared.`,
    "good",
  );
}
