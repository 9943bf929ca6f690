// Overview: cluster health, traffic, nodes, top queues, alarms and events. Loaded by `app.js`; the health is the verdict of
// `bmqtwist/console/merge.py`.

import { emptyNote, find, h, replace, setAttribute, setText, show, stateMark } from "../dom.js";
import { bytes, count, milliseconds, percent, rate, seconds } from "../format.js";
import { chart } from "../chart.js";
import { demoPanel } from "../demo.js";
import { rowsOf } from "../merge.js";
import {
  alarmColumns,
  alarmText,
  asOf,
  countByKind,
  diskColumn,
  emptyOfNodes,
  eventList,
  nodeColumn,
  nodeLink,
  nodeStateColumn,
  noQueuesText,
  queueLink,
  rateNote,
  segments,
  tiles,
} from "../parts.js";
import { bar, link, number, spark, table, text } from "../table.js";
import { query, setQuery } from "../api.js";

const WINDOW_SECONDS = 900;

export function start({ live, onCluster, cluster, path }) {
  const headline = stateMark("waiting for data", "unknown");
  const reasons = h("ul");
  const summary = find("#summary");
  replace(summary, h("p", { class: "headline" }, headline), reasons);

  const demo = demoPanel(find("#demo"));
  const now = tiles(find("#tiles"), [
    ["put", "Posted"],
    ["ack", "Acknowledged"],
    ["push", "Delivered"],
    ["confirm", "Confirmed"],
    ["p50", "ACK latency, p50"],
    ["p99", "ACK latency, p99"],
    ["messages", "Messages stored"],
    ["leader", "Leader"],
  ]);
  const traffic = chart({
    caption: "Messages per second, means of 5 s",
    series: [
      { name: "posted", read: (row) => row[1], format: rate },
      { name: "acknowledged", read: (row) => row[2], format: rate },
      { name: "delivered", read: (row) => row[3], format: rate },
      { name: "confirmed", read: (row) => row[4], format: rate },
    ],
  });
  const depth = chart({
    caption: "Messages stored",
    series: [{ name: "messages", read: (row) => row[5], format: count }],
  });
  find("#rates").append(traffic.element);
  find("#depth").append(depth.element);

  const nodes = table({
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
      nodeStateColumn(),
      text("Role", (node) => (node.leader ? "leader" : "follower")),
      text("Primary for", (node) => (node.primaryFor?.length ? node.primaryFor.join(", ") : "none")),
      number("Sessions", (node) => count(node.sessions)),
      number("Memory", (node) => bytes(node.memoryBytes)),
      number("CPU", (node) => percent(node.cpuShare)),
      number("Event loop lag", (node) => milliseconds(node.loopLagMs)),
      diskColumn(),
    ],
  });
  find("#nodes").append(nodes.element);

  const noQueues = emptyNote("");
  const top = table({
    caption: "Top 10 queues",
    key: (queue) => queue.uri,
    empty: noQueues,
    columns: [
      link(
        "Queue",
        (queue) => queue.uri,
        (queue) => queueLink(queue.uri),
        { head: true, cls: "tight", title: (queue) => queue.uri },
      ),
      number("Messages", (queue) => count(queue.messages)),
      number("Bytes", (queue) => bytes(queue.bytes)),
      number("Oldest", (queue) => seconds(queue.oldestSeconds)),
      number("In", (queue) => rate(queue.putRate)),
      number("Out", (queue) => rate(queue.pushRate)),
      bar(
        "Quota",
        (queue) => queue.quota,
        (queue) => percent(queue.quota),
      ),
      spark("Depth", (queue) => queue.spark),
    ],
  });
  find("#top").append(top.element);
  const wanted = { messages: "Depth", oldestSeconds: "Age", quota: "Quota used" };
  const by = Object.hasOwn(wanted, query().get("top") ?? "") ? query().get("top") : "messages";
  const params = (sort) => ({ filter: "", sort, order: "desc", offset: 0, limit: 10 });
  if (cluster?.queuesTop && by === "messages") top.show(rowsOf(cluster.queuesTop));
  const subscription = live.subscribe("queues", params(by), (document) => {
    setText(noQueues, noQueuesText(document));
    top.show(rowsOf(document).slice(0, 10));
  });
  segments(find("#top-choice"), Object.entries(wanted), by, (sort) => {
    setQuery({ top: sort === "messages" ? "" : sort });
    subscription.change(params(sort));
  });

  const noAlarms = emptyOfNodes("No open alarms.", "alarms");
  const alarms = table({
    caption: "Unacknowledged alarms",
    key: (alarm) => alarm.id,
    empty: noAlarms,
    columns: [
      alarmColumns[0],
      text("Message", (alarm) => `${alarm.category}: ${alarmText(alarm)}`, { cls: "text" }),
      nodeColumn("Node", (alarm) => alarm.node),
    ],
  });
  replace(find("#alarms"), alarms.element, h("p", {}, h("a", { href: path("/alarms") }, "All alarms")));
  let shownCounts = null;
  const changed = h("ul", { class: "changes", "aria-label": "Events by kind" });
  const box = h("div");
  replace(find("#events"), changed, box);
  const events = eventList(box, { empty: "No events in the last 15 minutes." });

  onCluster((document) => {
    const level = document.verdict?.level ?? "unknown";
    setAttribute(summary, "data-level", level);
    headline.set(document.verdict?.text ?? "cluster health unknown", level);
    const why = document.verdict?.reasons ?? [];
    if (why.join("\n") !== [...reasons.children].map((one) => one.textContent).join("\n")) {
      replace(
        reasons,
        why.map((one) => h("li", {}, one)),
      );
    }
    demo.show(document.demo);
    setText(find("#rate-note"), rateNote(document));
    const history = document.history ?? [];
    const [rates, stored] = [document.rates ?? {}, document.stored ?? {}];
    now.set("put", rate(rates.put), `${bytes(rates.putBytes)}/s`);
    now.set("ack", rate(rates.ack));
    now.set("push", rate(rates.push), `${bytes(rates.pushBytes)}/s`);
    now.set("confirm", rate(rates.confirm));
    now.set("p50", milliseconds(document.ackLatencyMs?.p50));
    now.set("p99", milliseconds(document.ackLatencyMs?.p99));
    now.set(
      "messages",
      count(stored.messages),
      [typeof stored.bytes === "number" ? bytes(stored.bytes) : "", asOf(stored.sampledAt, document.at)]
        .filter(Boolean)
        .join(", "),
    );
    now.set(
      "leader",
      document.leader?.node || "none",
      document.leader?.term ? `term ${count(document.leader.term)}` : "",
    );
    const present = [document.at, rates.put, rates.ack, rates.push, rates.confirm, stored.messages];
    traffic.show(history, [], present);
    depth.show(history, [], present);
    noAlarms.show(document);
    nodes.show(rowsOf(document.nodes, document.nodesOrder));
    alarms.show(
      rowsOf(document.alarms)
        .filter((alarm) => !alarm.clearedAt && !alarm.acknowledgedBy)
        .slice(0, 5),
    );
    const recent = rowsOf(document.events).filter((event) => event.at > document.at - WINDOW_SECONDS);
    const words = countByKind(recent);
    if (words.join() !== shownCounts) {
      shownCounts = words.join();
      replace(
        changed,
        words.map((one) => h("li", { class: "tag" }, one)),
      );
      show(changed, words.length > 0);
    }
    events.show(recent);
  });
}
