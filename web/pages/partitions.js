// Partitions with their primaries and the replication lag of each replica; moves and rollovers. Loaded by `app.js`; the
// files of a partition are shown by `storage.js`.

import { post } from "../api.js";
import { emptyNote, find, h, setAttribute, setText, stateMark } from "../dom.js";
import { actionButton, confirmAction, field, toast } from "../dialog.js";
import { bytes, count, counted, duration, percent } from "../format.js";
import { rowsOf } from "../merge.js";
import { asOf, isLagging, nodeColumn } from "../parts.js";
import { bar, buttons, custom, number, state, table, text } from "../table.js";

export function start({ onCluster }) {
  let names = "";
  let newest = null;
  const grid = table({
    caption: "Partitions and their replicas",
    key: (partition) => partition.id,
    columns: [],
    empty: emptyNote(
      "No known partitions. A starting node receives them from the leader; if this persists, check the page Elections.",
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
    number("Sequence number", (partition) => count(partition.sequence)),
    ...nodes.map((name) => replicaColumn(name)),
    number("Queues", (partition) => count(partition.queues)),
    number("Messages", (partition) => count(partition.messages)),
    text("Values from", (partition) =>
      [partition.source, asOf(partition.sampledAt, cluster()?.at)].filter(Boolean).join(", "),
    ),
    fileColumn("JOURNAL file", (partition) => partition.journal),
    fileColumn("DATA file", (partition) => partition.data),
    buttons("Actions", (current, row) => [
      actionButton("Move …", "operator", () => openMoveDialog(current(), cluster()), {
        name: `Move the primary of partition ${row.id}`,
      }),
      actionButton("Roll over …", "operator", () => openRolloverDialog(current()), {
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
          mark.set(replica.role, replica.role === "replica" && isLagging(replica) ? "warning" : undefined);
          setText(
            lag,
            replica.role === "primary"
              ? ""
              : replica.lagRecords === null || replica.lagRecords === undefined
                ? ""
                : behind
                  ? `${counted(replica.lagRecords, "record")}, ${bytes(replica.lagBytes)} behind`
                  : "in sync",
          );
          const aged = replica.role !== "primary" && typeof replica.lagMs === "number";
          setText(age, aged ? `lag ${duration(replica.lagMs)}` : "");
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

function openMoveDialog(partition, cluster) {
  const others = rowsOf(cluster.nodes, cluster.nodesOrder).filter(
    (node) => node.name !== partition.primary && node.state === "up",
  );
  if (others.length === 0) {
    toast(`No other node is up to become the primary of partition ${partition.id}.`, "warning");
    return;
  }
  confirmAction({
    title: `Move the primary of partition ${partition.id}`,
    button: "Move the primary",
    fields: {
      to: field("New primary", {
        options: others.map((node) => ({ value: node.name, label: label(partition, node.name) })),
        value: leastLagging(partition, others),
      }),
      reason: field("Reason", { hint: "Recorded in the audit log.", required: true }),
    },
    intro: [
      h(
        "p",
        {},
        `Current primary: ${partition.primary ?? "none"}. Clients wait until the new primary has all records. No messages are lost.`,
      ),
    ],
    send: (values) => post(`/api/v1/partitions/${encodeURIComponent(partition.id)}/move`, values),
    done: () => toast(`Move of partition ${partition.id} started.`),
  });
}

function label(partition, name) {
  const replica = replicaOf(partition, name);
  return replica?.lagRecords > 0 ? `${name} (${counted(replica.lagRecords, "record")} behind)` : name;
}

function leastLagging(partition, others) {
  const lag = (node) => replicaOf(partition, node.name)?.lagRecords ?? Infinity;
  return others.reduce((best, node) => (lag(node) < lag(best) ? node : best)).name;
}

function openRolloverDialog(partition) {
  confirmAction({
    title: `Roll over the files of partition ${partition.id}`,
    button: "Roll over",
    fields: {
      reason: field("Reason", { hint: "Recorded in the audit log.", required: true }),
    },
    intro: [
      h(
        "p",
        {},
        `The primary copies all live records into a new file set. Current sizes: JOURNAL file ${bytes(
          partition.journal?.used,
        )}, DATA file ${bytes(partition.data?.used)}.`,
      ),
    ],
    send: (values) => post(`/api/v1/partitions/${encodeURIComponent(partition.id)}/rollover`, values),
    done: () => toast(`Rollover of partition ${partition.id} started.`),
  });
}
