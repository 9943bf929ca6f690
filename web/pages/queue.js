// One queue: depth, apps, consumers, subscriptions, producers, distribution tree, stored messages, tools. Loaded by
// `app.js`; stored messages are in `messages.js`, test messages and purges in `tools.js`, the list in `queues.js`.

import { query } from "../api.js";
import { chart } from "../chart.js";
import { emptyNote, find, h, replace, setText, stateMark } from "../dom.js";
import { bytes, count, counted, percent, rate, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { messageBrowser } from "../messages.js";
import { missingClientsNote, nodeColumn, rateNote, tiles } from "../parts.js";
import { number, state, table, text } from "../table.js";
import { publishButton, purgeButton, subscriptionButton } from "../tools.js";

export function start({ live, onCluster, main, path }) {
  const uri = query().get("uri") ?? "";
  const title = find("#uri");
  setText(title, uri || "Queue");
  document.title = `${uri} · ${document.title}`;
  if (!uri) {
    replace(
      main,
      title,
      h(
        "p",
        { class: "problem" },
        "The address of this page names no queue. ",
        h("a", { href: path("/queues") }, "All queues"),
      ),
    );
    return;
  }
  const line = find("#facts");
  const now = tiles(find("#tiles"), [
    ["messages", "Messages"],
    ["bytes", "Bytes"],
    ["oldest", "Oldest message"],
    ["quota", "Quota used"],
    ["in", "Posted"],
    ["out", "Delivered"],
    ["confirm", "Confirmed"],
    ["clients", "Consumers"],
  ]);
  const depth = chart({
    caption: "Messages in the queue",
    series: [{ name: "messages", read: (row) => row[1], format: count }],
  });
  find("#history").append(depth.element);
  const appName = (one) => one.app ?? one.appId ?? "";
  const noApps = emptyNote("");
  const apps = table({
    caption: "Depth by app",
    key: appName,
    empty: noApps,
    columns: [
      text("App", (app) => appName(app) || "(default)", { head: true, cls: "text" }),
      number("Messages", (app) => count(app.messages)),
      number("Bytes", (app) => bytes(app.bytes)),
      number("Unconfirmed", (app) => count(app.unconfirmed)),
      number("Awaiting redelivery", (app) => count(app.redelivery)),
      number("Put-aside list", (app) => count(app.aside)),
      number("Consumers", (app) => count(app.consumers)),
    ],
  });
  find("#apps").append(apps.element);
  const consumers = table({
    caption: "Consumers of this queue",
    key: (one, n) => `${one.node} ${one.client} ${appName(one)} ${n}`,
    empty: emptyNote("No consumers. Messages stay in the queue until they are consumed or expire."),
    columns: [
      text("Client", (one) => one.client, { head: true, cls: "text" }),
      nodeColumn("Node", (one) => one.node, {}, isProxy),
      text("App", (one) => appName(one) || "–"),
      state("State", (one) => (one.stuck ? "stuck" : "active")),
      number("Unconfirmed", (one) =>
        one.unconfirmedMax ? `${count(one.unconfirmed)} of ${count(one.unconfirmedMax)}` : count(one.unconfirmed),
      ),
      number("Delivered", (one) => rate(one.pushRate)),
      number("Bytes", (one) => bytesRate(one.pushBytesRate)),
      text("Rates cover", (one) => queuesOf(one)),
      number("Priority", (one) => count(one.priority)),
      number("Subscriptions", (one) => count(rowsOf(one.subscriptions).length)),
    ],
  });
  const missing = missingClientsNote();
  find("#consumers").append(missing.element, consumers.element);
  const subscriptions = table({
    caption: "Messages delivered by subscription, since the consumer configured it",
    key: (one, n) => `${one.node} ${one.client} ${appName(one)} ${one.expression} ${n}`,
    empty: emptyNote("No subscriptions: no messages are delivered."),
    columns: [
      text("Expression", (one) => one.expression || "(all messages)", { head: true, cls: "text" }),
      number("Delivered", (one) => count(one.given)),
      number("Rate", (one) => rate(one.givenRate)),
      number("Unconfirmed", (one) => count(one.unconfirmed)),
      state(
        "Limits",
        (one) => (one.full ? "full" : "available"),
        (one) => (one.full ? "warning" : "good"),
      ),
      text("App", (one) => appName(one) || "–"),
      text("Client", (one) => one.client, { cls: "text" }),
    ],
  });
  find("#subscriptions").append(subscriptions.element);
  const producers = table({
    caption: "Producers of this queue",
    key: (one, n) => `${one.node} ${one.client} ${n}`,
    empty: emptyNote("No producers."),
    columns: [
      text("Client", (one) => one.client, { head: true, cls: "text" }),
      nodeColumn("Node", (one) => one.node, {}, isProxy),
      number("Posted", (one) => rate(one.putRate)),
      number("Bytes", (one) => bytesRate(one.putBytesRate)),
      text("Rates cover", (one) => queuesOf(one)),
    ],
  });
  find("#producers").append(producers.element);
  const tree = find("#tree");
  let drawn = "";

  const show = (queue) => {
    const readers = rowsOf(queue.consumers);
    const writers = rowsOf(queue.producers);
    setText(
      line,
      [
        queue.mode,
        queue.domain ? `domain ${queue.domain}` : "",
        queue.partition === null || queue.partition === undefined ? "no partition" : `partition ${queue.partition}`,
        counted(writers.length, "producer"),
        queue.copyAt ? `depth from the copy at ${queue.copyAt}: the primary does not answer` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    now.set("messages", count(queue.messages), queue.messagesMax ? `of ${count(queue.messagesMax)}` : "");
    now.set("bytes", bytes(queue.bytes), queue.bytesMax ? `of ${bytes(queue.bytesMax)}` : "");
    now.set("oldest", seconds(queue.oldestSeconds));
    now.set("quota", percent(queue.quota));
    now.set("in", rate(queue.putRate));
    now.set("out", rate(queue.pushRate));
    now.set("confirm", rate(queue.confirmRate));
    now.set("clients", count(readers.length));
    depth.show(queue.history, rowsOf(queue.events), [queue.at, queue.messages]);
    setText(
      noApps,
      queue.copyAt ? "The apps are unknown: the primary does not answer." : "No apps: this is not a fanout queue.",
    );
    apps.show(rowsOf(queue.apps));
    missing.show(queue.missing);
    consumers.show(readers);
    subscriptions.show(
      readers.flatMap((reader) =>
        rowsOf(reader.subscriptions).map((each) => ({
          ...each,
          client: reader.client,
          node: reader.node,
          app: appName(reader),
        })),
      ),
    );
    producers.show(writers);
    const words = JSON.stringify(queue.tree ?? null);
    if (words !== drawn) {
      drawn = words;
      replace(
        tree,
        queue.tree
          ? h("ul", { class: "tree panel" }, branch(queue.tree, 0))
          : emptyNote("The distribution tree is available when a client has the queue open."),
      );
    }
  };
  live.subscribe("queue", { uri }, show, (problem) => setText(line, `Failed to load this queue: ${problem}`));
  const browser = messageBrowser(find("#messages"), uri);
  onCluster((cluster) => {
    browser.nodes(rowsOf(cluster.nodes, cluster.nodesOrder).map((node) => node.name));
    setText(find("#rate-note"), rateNote(cluster));
  });
  replace(find("#tools"), publishButton(uri), subscriptionButton(uri), purgeButton(uri, () => browser.reload()));
}

const isProxy = (one) => one.proxy === true;
const bytesRate = (value) => (typeof value === "number" ? `${bytes(value)}/s` : "–");
const queuesOf = (one) => (one.queues > 1 ? `all ${counted(one.queues, "queue")} of the client` : "this queue");
const DEPTH_MAX = 12;
const isNumber = (value) => typeof value === "number";

function branch(one, level) {
  const children = level < DEPTH_MAX ? rowsOf(one.children) : [];
  const edge = [
    isNumber(one.pushRate) ? `${rate(one.pushRate)} delivered` : null,
    isNumber(one.bytesRate) ? `${bytes(one.bytesRate)}/s` : null,
    one.putRate ? `${rate(one.putRate)} posted` : null,
    !isNumber(one.unconfirmed) ? null : `${count(one.unconfirmed)} unconfirmed`,
  ]
    .filter(Boolean)
    .join(", ");
  return h(
    "li",
    {},
    h("span", { class: "tag" }, one.kind ?? "node"),
    " ",
    h("strong", {}, one.name ?? "–"),
    " ",
    one.state ? stateMark(one.state) : null,
    edge ? h("span", { class: "edge-text" }, edge) : null,
    children.length
      ? h(
          "ul",
          {},
          children.map((child) => branch(child, level + 1)),
        )
      : null,
  );
}
