// Storage files of a node, records of a journal, comparison of the copies of a partition.

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
  const choice = find("#choice");
  const files = table({
    caption: "Storage files",
    key: (row) => `${row.partition} ${row.kind}`,
    empty: emptyNote("This node is a member of no cluster, so it has no files."),
    columns: [
      text("File", (row) => `Partition ${row.partition}, ${row.kind}`, { head: true }),
      number("Written", (row) => bytes(row.used)),
      number("Still needed", (row) => bytes(row.outstanding)),
      bar(
        "Until the next rollover",
        (row) => (row.max ? row.used / row.max : null),
        (row) => `${percent(row.max ? row.used / row.max : null)} of ${bytes(row.max)}`,
      ),
      number("On disk", (row) => bytes(row.length)),
      text("Rolls over", (row) => (row.rollingOver ? "now" : "no")),
      number("Archived files", (row) => count(row.archivedFiles)),
    ],
  });
  replace(find("#files"), files.element);

  const kind = field("Kind", {
    options: [{ value: "", label: "all" }, ...KINDS.map((one) => ({ value: one, label: one }))],
    value: KINDS.includes(given.get("kind")) ? given.get("kind") : "",
  });
  const guid = field("GUID of a message", { kind: "search", value: given.get("guid") ?? "", max: 32 });
  const go = h("button", { type: "submit" }, "Find");
  for (const one of [kind, guid]) one.element.classList.add("inline");
  replace(find("#journal-filters"), kind.element, guid.element, go);
  find("#journal-filters").addEventListener("submit", (event) => {
    event.preventDefault();
    setQuery({ kind: kind.value, guid: guid.value });
    loadJournal(0);
  });
  const compare = h("button", { type: "button", on: { click: () => loadComparison() } }, "Compare the copies");
  replace(find("#compare-actions"), compare);
  replace(
    find("#compare"),
    emptyNote("The newest records of all nodes are compared when you ask for it; that reads some megabytes at each."),
  );

  function chooser() {
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
          })),
        ),
      );
      replace(find("#files"), files.element);
    } catch (error) {
      replace(find("#files"), problem(`The files of ${node} cannot be read: ${error.message}`));
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
        empty: emptyNote("The journal holds no record yet."),
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
      replace(box, problem(`The journal cannot be read: ${error.message}`));
    }
  }

  async function loadComparison() {
    const box = find("#compare");
    compare.disabled = true;
    replace(box, emptyNote("The copies are being read …"));
    try {
      const answer = await get("/api/v1/storage/compare", { partition });
      const silent = Object.entries(answer.missing ?? {}).map(([name, why]) => `${name}: ${why}`);
      const list = table({
        caption: "How far each copy goes",
        key: (row) => row.node,
        columns: [
          text("Node", (row) => row.node, { head: true }),
          text("From", (row) => row.first.map(count).join(" – ")),
          text("To lease – sequence", (row) => row.last.map(count).join(" – ")),
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
        silent.length ? problem(`Not compared: ${silent.join("; ")}`) : null,
      );
    } catch (error) {
      replace(box, problem(`The copies cannot be compared: ${error.message}`));
    } finally {
      compare.disabled = false;
    }
  }

  async function loadJournal(before) {
    const box = find("#journal");
    guid.refuse(guid.value && !/^[0-9a-fA-F]{32}$/.test(guid.value) ? "A GUID has 32 digits 0-9 and A-F." : "");
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
            ? `None of the last ${count(answer.searched)} records is what you look for. Go on with older ones.`
            : "The journal holds no such record.",
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
          text("What it says", (row) => row.fields.map(([name, value]) => `${name} ${value}`).join(", ") || "–", {
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
      replace(box, problem(`The journal cannot be read: ${error.message}`));
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
    chooser();
    loadAll();
  });
}

const problem = (words) => h("p", { class: "problem", role: "alert" }, words);

function verdict(answer) {
  if (answer.nodes.length < 2) return stateMark("There is one copy: nothing can be compared.", "unknown");
  if (answer.differing.length)
    return stateMark(`${counted(answer.differing.length, "block")} of records do not say the same.`, "bad");
  return stateMark(
    `All ${answer.nodes.length} copies say the same, as far as all of them go: ${counted(
      answer.comparedRecords,
      "record",
    )} compared.`,
    "good",
  );
}
