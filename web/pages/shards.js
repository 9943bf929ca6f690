// Partitions by nodes: primaries, lag of replicas; moves and rollovers.

import { post } from "../api.js";
import { emptyNote, find, h, setAttribute, setText, stateMark } from "../dom.js";
import { actionButton, ask, field, toast } from "../dialog.js";
import { bytes, count, counted, lapse, percent } from "../format.js";
import { rowsOf } from "../merge.js";
import { isLate, nodeColumn } from "../parts.js";
import { bar, buttons, custom, number, state, table, text } from "../table.js";

export function start({ onCluster }) {
  let names = "";
  let newest = null;
  const grid = table({
    caption: "Partitions and their replicas",
    key: (partition) => partition.id,
    columns: [],
    empty: emptyNote(
      "No partition is known. A node that has just started learns them from the leader; see Elections if this stays.",
    ),
  });
  find("#grid").append(grid.element);
  onCluster((document) => {
    newest = document;
    const nodes = rowsOf(document.nodes, document.nodesOrder).map((node) => node.name);
    if (nodes.join("\n") !== names) {
      names = nodes.join("\n");
      grid.setColumns(columns(nodes, () => newest));
    }
    grid.show(rowsOf(document.partitions, document.partitionsOrder));
  });
}

function columns(nodes, cluster) {
  return [
    text("Partition", (partition) => `Partition ${partition.id}`, { head: true, cls: "nowrap" }),
    state("State", (partition) => partition.state),
    nodeColumn("Primary", (partition) => partition.primary),
    number("Lease", (partition) => count(partition.lease)),
    number("Sequence", (partition) => count(partition.sequence)),
    ...nodes.map((name) => replicaColumn(name)),
    number("Queues", (partition) => count(partition.queues)),
    number("Messages", (partition) => count(partition.messages)),
    fileColumn("Journal", (partition) => partition.journal),
    fileColumn("Data", (partition) => partition.data),
    buttons("Actions", (current, row) => [
      actionButton("Move …", "operator", () => move(current(), cluster()), {
        name: `Move the primary of partition ${row.id}`,
      }),
      actionButton("Roll over …", "operator", () => rollOver(current()), {
        name: `Roll over the files of partition ${row.id}`,
      }),
    ]),
  ];
}

function replicaOf(partition, name) {
  return rowsOf(partition.replicas).find((replica) => replica.node === name);
}

function replicaColumn(name) {
  return custom(
    name,
    () => {
      const mark = stateMark();
      const lag = h("span", { class: "lag" });
      const age = h("span", { class: "lag" });
      return [
        h("span", {}, mark, lag, age),
        (partition) => {
          const replica = replicaOf(partition, name);
          if (!replica) {
            mark.set("no copy", "unknown");
            setText(lag, "");
            setText(age, "");
            return;
          }
          setAttribute(mark, "title", replica.why || null);
          const behind = replica.role !== "primary" && (replica.lagRecords ?? 0) > 0;
          mark.set(replica.role, replica.role === "replica" && isLate(replica) ? "warning" : undefined);
          setText(
            lag,
            replica.role === "primary"
              ? ""
              : replica.lagRecords === null || replica.lagRecords === undefined
                ? ""
                : behind
                  ? `${counted(replica.lagRecords, "record")}, ${bytes(replica.lagBytes)} behind`
                  : "in step",
          );
          const aged = replica.role !== "primary" && typeof replica.lagMs === "number";
          setText(age, aged ? `lag ${lapse(replica.lagMs)}` : "");
        },
      ];
    },
    { cls: "nowrap" },
  );
}

function fileColumn(label, read) {
  return bar(
    label,
    (partition) => share(read(partition)),
    (partition) => {
      const file = read(partition);
      return file ? `${percent(share(file))} of ${bytes(file.total)}` : "–";
    },
  );
}

const share = (file) => (file?.total > 0 ? file.used / file.total : null);

function move(partition, cluster) {
  const others = rowsOf(cluster.nodes, cluster.nodesOrder).filter(
    (node) => node.name !== partition.primary && node.state === "up",
  );
  if (others.length === 0) {
    toast(`No other node is up that could be primary of partition ${partition.id}.`, "warning");
    return;
  }
  ask({
    title: `Move the primary of partition ${partition.id}`,
    button: "Move the primary",
    fields: {
      to: field("New primary", {
        options: others.map((node) => ({ value: node.name, label: label(partition, node.name) })),
        value: nearest(partition, others),
      }),
      reason: field("Reason", { hint: "It stands in the audit log.", required: true }),
    },
    intro: [
      h(
        "p",
        {},
        `It is ${partition.primary ?? "without a primary"} now. Clients wait until the new primary has all records; nothing is lost.`,
      ),
    ],
    send: (values) => post(`/api/v1/partitions/${encodeURIComponent(partition.id)}/move`, values),
    done: () => toast(`Partition ${partition.id} is being moved.`),
  });
}

function label(partition, name) {
  const replica = replicaOf(partition, name);
  return replica?.lagRecords > 0 ? `${name} (${counted(replica.lagRecords, "record")} behind)` : name;
}

function nearest(partition, others) {
  const lag = (node) => replicaOf(partition, node.name)?.lagRecords ?? Infinity;
  return others.reduce((best, node) => (lag(node) < lag(best) ? node : best)).name;
}

function rollOver(partition) {
  ask({
    title: `Roll over the files of partition ${partition.id}`,
    button: "Roll over",
    fields: {
      reason: field("Reason", { hint: "It stands in the audit log.", required: true }),
    },
    intro: [
      h(
        "p",
        {},
        `Its primary copies what is still needed into a new file set; the journal holds ${bytes(
          partition.journal?.used,
        )} and the data file ${bytes(partition.data?.used)} now.`,
      ),
    ],
    send: (values) => post(`/api/v1/partitions/${encodeURIComponent(partition.id)}/rollover`, values),
    done: () => toast(`Partition ${partition.id} gets new files.`),
  });
}
