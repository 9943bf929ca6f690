// All nodes and proxies of the cluster, and the rolling restart. Loaded by `app.js`; one node is shown by `node.js`, a stop
// by `stop.js`.

import { post } from "../api.js";
import { emptyNote, find, h, setAttribute, setText, show, stateMark, timeMark } from "../dom.js";
import { chart } from "../chart.js";
import { actionButton, confirmAction, field, toast } from "../dialog.js";
import { bytes, count, milliseconds, percent, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { diskColumn, nodeLink, nodeStateColumn } from "../parts.js";
import { stopButton } from "../stop.js";
import { bar, buttons, custom, link, number, state, table, text } from "../table.js";

export function start({ onCluster }) {
  let at = 0;
  const list = table({
    caption: "Nodes of the cluster",
    key: (node) => node.name,
    empty: emptyNote("No known nodes."),
    columns: [
      link(
        "Node",
        (node) => node.name,
        (node) => nodeLink(node.name),
        { head: true },
      ),
      nodeStateColumn((node) => {
        if (node.stop && !node.stop.done) return node.stop.abortable ? "stop scheduled" : "stopping";
        return node.state === "up" && node.problem ? "cannot write" : node.state;
      }),
      text("Role", (node) => (node.leader ? "leader" : "follower")),
      text("Primary for", (node) => (node.primaryFor?.length ? node.primaryFor.join(", ") : "none")),
      text("Data center", (node) => node.dataCenter || "–"),
      text("Version", (node) => node.version || "–"),
      custom("Uptime", () => {
        const words = h("span");
        const since = timeMark();
        return [
          h("span", {}, words, " ", h("span", { class: "lag" }, "since ", since)),
          (node) => {
            words.textContent = node.startedAt ? seconds(at - node.startedAt) : "–";
            since.parentElement.hidden = !node.startedAt;
            since.set(node.startedAt);
          },
        ];
      }),
      number("Sessions", (node) => count(node.sessions)),
      number("Memory", (node) => bytes(node.memoryBytes)),
      number("CPU", (node) => percent(node.cpuShare)),
      number("Event loop lag", (node) => milliseconds(node.loopLagMs)),
      diskColumn(),
      number("Files, used", (node) => bytes(node.storage?.usedBytes)),
      number("Files, allocated", (node) => bytes(node.storage?.allocatedBytes)),
      bar(
        "Open files",
        (node) => (node.openFilesMax ? node.openFiles / node.openFilesMax : null),
        (node) => (node.openFilesMax ? `${count(node.openFiles)} of ${count(node.openFilesMax)}` : "–"),
      ),
      buttons("Actions", (current, row) => [stopButton(() => current().name, `Stop gracefully: ${row.name}`)]),
    ],
  });
  const proxies = table({
    caption: "Connected proxies",
    key: (proxy) => proxy.ident,
    columns: [
      text("Proxy", (proxy) => proxy.name, { head: true }),
      text("Host", (proxy) => proxy.host || "–"),
      text("Nodes", (proxy) => rowsOf(proxy.links).map((link) => link.node).join(", ") || "none"),
      state("State", (proxy) => proxy.state),
      text("Version", (proxy) => proxy.version || "–"),
      number("Sessions", (proxy) => count(proxy.sessions)),
      number("Memory", (proxy) => bytes(proxy.memoryBytes)),
      number("CPU", (proxy) => percent(proxy.cpuShare)),
      number("Event loop lag", (proxy) => milliseconds(proxy.loopLagMs)),
    ],
  });
  proxies.element.hidden = true;
  find("#list").append(list.element, proxies.element);
  find("#actions").append(
    actionButton("Rolling restart …", "admin", () =>
      confirmAction({
        title: "Rolling restart of all nodes",
        danger: true,
        typed: "restart all",
        button: "Restart all nodes",
        fields: {
          reason: field("Reason", { hint: "Recorded in the audit log.", required: true }),
        },
        intro: [
          h(
            "p",
            {},
            "The nodes stop gracefully one at a time, each when the previous one is up and in sync again; the node that serves this page " +
              "stops last. The restart pauses while the cluster is unhealthy. The console does not start nodes: a supervisor must " +
              "do so, such as systemd or a container's restart policy.",
          ),
        ],
        send: ({ reason }) => post("/api/v1/rolling-restart", { reason, confirm: "restart all" }),
        done: () => toast("Rolling restart started. This page shows its progress."),
      }),
    ),
  );
  const rolling = h("section", { class: "summary", "aria-label": "Rolling restart", hidden: true });
  const headline = stateMark();
  const more = h("p", { class: "lead" });
  const abort = actionButton("Abort the rolling restart", "admin", async () => {
    try {
      await post("/api/v1/rolling-restart/abort", {});
      toast("Rolling restart aborted.");
    } catch (error) {
      toast(`Failed to abort the rolling restart: ${error.message}`, "bad");
    }
  });
  rolling.append(h("p", { class: "headline" }, headline), more, h("div", { class: "buttons" }, abort));
  find("#list").before(rolling);
  const space = chart({
    caption: "Free space of the fullest disk of all nodes",
    series: [{ name: "free", read: (row) => row[7], format: bytes }],
  });
  find("#space").append(space.element);
  onCluster((document) => {
    at = document.at;
    const disks = rowsOf(document.nodes).flatMap((node) => node.storage?.freeBytes ?? []);
    space.show(document.history, [], disks.length ? [at, ...Array(6).fill(null), Math.min(...disks)] : null);
    showRestart(document.restart);
    list.show(rowsOf(document.nodes, document.nodesOrder));
    proxies.element.hidden = rowsOf(document.proxies).length === 0;
    proxies.show(rowsOf(document.proxies));
  });

  function showRestart(restart) {
    show(rolling, Boolean(restart));
    if (!restart) return;
    const level = restart.done ? (restart.text === "done" ? "good" : "bad") : "warning";
    show(abort, !restart.done);
    setAttribute(rolling, "data-level", level);
    headline.set(`Rolling restart: ${restart.paused ? `paused: ${restart.paused}` : restart.text}`, level);
    setText(
      more,
      `${restart.by ? `By ${restart.by}: ` : ""}${restart.reason ?? ""}. ${
        restart.left?.length ? `Remaining nodes: ${restart.left.join(", ")}.` : "No remaining nodes."
      }`,
    );
  }
}
