// Diagram of the cluster: nodes on an ellipse, lines from each primary to its replicas, proxies below with their
// connections; and tables with the same data. Loaded by `app.js`; lists of nodes are in `nodes.js`.

import { emptyNote, find, levelOf, replace, svg } from "../dom.js";
import { bytes, count, counted, rate } from "../format.js";
import { rowsOf } from "../merge.js";
import { isLagging, nodeColumn } from "../parts.js";
import { number, state, table, text } from "../table.js";

const WIDTH = 900;
const BOX = { width: 200, height: 74 };
const PROXY = { width: 200, height: 58, gap: 20, space: 70, row: 96, across: 4, most: 12 }; // most: boxes drawn, the table has all proxies

export function start({ onCluster }) {
  const diagram = find("#diagram");
  const edges = table({
    caption: "Replicas and their lag",
    key: (edge) => `${edge.partition.id} ${edge.to}`,
    empty: emptyNote("No replication: the cluster has one node, or no primary."),
    columns: [
      text("Partition", (edge) => `Partition ${edge.partition.id}`, { head: true }),
      nodeColumn("Primary", (edge) => edge.from),
      nodeColumn("Replica", (edge) => edge.to),
      state(
        "State",
        (edge) => edge.state,
        (edge) => edge.level,
      ),
      number("Lag, records", (edge) => count(edge.records)),
      number("Lag, bytes", (edge) => bytes(edge.bytes)),
    ],
  });
  find("#edges").append(edges.element);
  const links = table({
    caption: "Connections of proxies",
    key: (link) => `${link.ident} ${link.node}`,
    empty: emptyNote("No connected proxies."),
    columns: [
      text("Proxy", (link) => link.name, { head: true }),
      text("Host", (link) => link.host || "–"),
      nodeColumn("Node", (link) => link.node, {}, (link) => link.isOverProxy),
      text("Address", (link) => link.address || "–"),
      state("State", stateOfLink, levelOfLink),
      number("Posted", (link) => rate(link.putRate)),
      number("Posted, bytes", (link) => bytesRate(link.putBytesRate)),
      number("Delivered", (link) => rate(link.pushRate)),
      number("Delivered, bytes", (link) => bytesRate(link.pushBytesRate)),
      number("Unread output", (link) => bytes(link.unread)),
      number("Queues", (link) => count(link.queues)),
      number("Unconfirmed", (link) => count(link.unconfirmed)),
      number("Unacknowledged PUTs", (link) => count(link.unacked)),
      text("Console", (link) => link.url || "none", { cls: "text" }),
    ],
  });
  find("#links").append(links.element);
  let drawn = "";
  onCluster((cluster) => {
    const nodes = rowsOf(cluster.nodes, cluster.nodesOrder);
    const list = rowsOf(cluster.partitions, cluster.partitionsOrder).flatMap((partition) => edgesOf(partition));
    edges.show(list);
    const proxies = rowsOf(cluster.proxies);
    const names = new Set(nodes.map((node) => node.name));
    const connections = proxies.flatMap(({ ident, name, host, url, links: of }) =>
      rowsOf(of).map((link) => ({ ...link, ident, name, host, url, isOverProxy: !names.has(link.node) })),
    );
    links.show(connections);
    const fingerprint = JSON.stringify([
      nodes.map((node) => [node.name, node.state, node.leader, node.primaryFor, node.sessions]),
      list.map((edge) => [edge.from, edge.to, edge.level]),
      proxies.map((proxy) => [proxy.ident, proxy.state, proxy.sessions]),
      connections.map((link) => [link.ident, link.node, link.queues, levelOfLink(link), flow(link)]),
    ]);
    if (fingerprint === drawn) return;
    drawn = fingerprint;
    replace(diagram, nodes.length ? draw(nodes, list, proxies, connections) : emptyNote("No known nodes."));
  });
}

function edgesOf(partition) {
  if (!partition.primary) return [];
  return rowsOf(partition.replicas)
    .filter((replica) => replica.node !== partition.primary)
    .map((replica) => {
      const lagging = replica.role === "replica" && isLagging(replica);
      return {
        partition,
        from: partition.primary,
        to: replica.node,
        records: replica.lagRecords,
        bytes: replica.lagBytes,
        state: lagging ? "lagging" : replica.role === "replica" ? "in sync" : replica.role,
        level: lagging ? "warning" : replica.role === "replica" ? "good" : levelOf(replica.role),
      };
    });
}

// The node delivers nothing more to a proxy in the state `behind` until the proxy has read the pending output.
const stateOfLink = (link) => (link.state === "behind" ? "backpressure" : link.state);
const levelOfLink = (link) => (link.state === "connected" ? "good" : "warning");
const bytesRate = (value) => (typeof value === "number" ? `${bytes(value)}/s` : "–");
const flow = (link) => [
  `posted ${rate(link.putRate)}, ${bytesRate(link.putBytesRate)}`,
  `delivered ${rate(link.pushRate)}, ${bytesRate(link.pushBytesRate)}`,
];

const LEVELS = ["good", "unknown", "warning", "bad"];

function draw(nodes, edges, proxies, links) {
  const rows = nodes.length <= 3 ? 1 : 2;
  const height =
    nodes.length === 1 ? BOX.height + 60 : nodes.length <= 2 ? 240 : 150 + Math.ceil(nodes.length / 2) * 110;
  const centre = { x: WIDTH / 2, y: height / 2 };
  const radius = { x: WIDTH / 2 - BOX.width / 2 - 20, y: height / 2 - BOX.height / 2 - 16 };
  const places = new Map(
    nodes.map((node, n) => {
      const turn = nodes.length === 2 ? Math.PI * (1 - n) : (2 * Math.PI * n) / nodes.length - Math.PI / 2;
      return [
        node.name,
        nodes.length === 1
          ? centre
          : { x: centre.x + radius.x * Math.cos(turn), y: centre.y + radius.y * Math.sin(turn) },
      ];
    }),
  );
  const between = new Map();
  for (const edge of edges) {
    const key = JSON.stringify([edge.from, edge.to]);
    const one = between.get(key) ?? { ...edge, partitions: [], level: "good" };
    one.partitions.push(edge.partition.id);
    if (LEVELS.indexOf(edge.level) > LEVELS.indexOf(one.level)) one.level = edge.level;
    between.set(key, one);
  }
  const lines = [...between.values()]
    .filter((edge) => places.has(edge.from) && places.has(edge.to))
    .map((edge) => {
      const [a, b] = [places.get(edge.from), places.get(edge.to)];
      const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
      const bend = 22; // to the right, so that both directions are visible
      const middle = {
        x: (a.x + b.x) / 2 - ((b.y - a.y) / length) * bend,
        y: (a.y + b.y) / 2 + ((b.x - a.x) / length) * bend,
      };
      return svg(
        "g",
        {},
        svg("path", {
          class: "edge",
          "data-level": edge.level,
          d: `M${a.x},${a.y} Q${middle.x},${middle.y} ${b.x},${b.y}`,
        }),
        svg("title", {}, `${edge.from} to ${edge.to}: partitions ${edge.partitions.join(", ")}`),
      );
    });
  const boxes = nodes.map((node) => {
    const place = places.get(node.name);
    const [x, y] = [place.x - BOX.width / 2, place.y - BOX.height / 2];
    const primaryText = node.primaryFor?.length ? `primary for ${node.primaryFor.join(", ")}` : "primary for none";
    return svg(
      "g",
      { "data-level": levelOf(node.state) },
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }),
      svg("text", { x: x + 12, y: y + 24 }, truncate(`${node.name}${node.leader ? " ★ leader" : ""}`, 26)),
      svg("text", { class: "small", x: x + 12, y: y + 43 }, `${node.state}, ${counted(node.sessions ?? 0, "session")}`),
      svg("text", { class: "small", x: x + 12, y: y + 61 }, truncate(primaryText, 34)),
      svg("title", {}, `${node.name}: ${node.state}, ${primaryText}`),
    );
  });
  const ys = [...places.values()].map((place) => place.y);
  const [top, end] = [Math.min(...ys) - BOX.height / 2 - 16, Math.max(...ys) + BOX.height / 2 + 16];
  const below = drawProxies(proxies, links, places, end);
  const bottom = below.bottom;
  return svg(
    "svg",
    {
      class: "graph",
      viewBox: `0 ${top} ${WIDTH} ${bottom - top}`,
      role: "img",
      "data-rows": rows,
      "aria-label": `${counted(nodes.length, "node")} and ${counted(edges.length, "line")} from primaries to replicas, ${counted(proxies.length, "proxy", "proxies")}; the tables below have the same data`,
    },
    lines,
    below.lines,
    boxes,
    below.boxes,
  );
}

/** Boxes of the first proxies in rows below the nodes, and a line from each to every node that it is connected to. */
function drawProxies(proxies, links, nodes, top) {
  const shown = proxies.slice(0, PROXY.most);
  const places = new Map(
    shown.map((proxy, n) => {
      const inRow = Math.min(PROXY.across, shown.length - PROXY.across * Math.floor(n / PROXY.across));
      const first = WIDTH / 2 - ((inRow - 1) * (PROXY.width + PROXY.gap)) / 2;
      return [
        proxy.ident,
        {
          x: first + (n % PROXY.across) * (PROXY.width + PROXY.gap),
          y: top + PROXY.space + Math.floor(n / PROXY.across) * PROXY.row,
        },
      ];
    }),
  );
  const byName = new Map(shown.map((proxy) => [proxy.name, places.get(proxy.ident)]));
  const drawn = links.filter((link) => places.has(link.ident) && (nodes.has(link.node) || byName.has(link.node)));
  const lines = drawn.map((link) => {
    const from = places.get(link.ident);
    const to = nodes.get(link.node) ?? byName.get(link.node);
    return svg(
      "g",
      {},
      svg("path", { class: `edge proxy${link.queues ? "" : " idle"}`, "data-level": levelOfLink(link), d: `M${from.x},${from.y} L${to.x},${to.y}` }),
      svg("title", {}, `${link.name} to ${link.node}: ${stateOfLink(link)}, ${flow(link).join("; ")}`),
    );
  });
  const boxes = shown.map((proxy) => {
    const place = places.get(proxy.ident);
    const [x, y] = [place.x - PROXY.width / 2, place.y - PROXY.height / 2];
    const own = links.filter((link) => link.ident === proxy.ident);
    const busiest = own.toSorted((a, b) => (b.pushRate ?? 0) + (b.putRate ?? 0) - (a.pushRate ?? 0) - (a.putRate ?? 0))[0];
    const [posted, delivered] = busiest ? flow(busiest) : ["not connected", ""];
    return svg(
      "g",
      { class: "proxy", "data-level": own.some((link) => levelOfLink(link) !== "good") ? "warning" : "good" },
      svg("rect", { x, y, width: PROXY.width, height: PROXY.height, rx: 18 }),
      svg("text", { x: x + 12, y: y + 20 }, truncate(`proxy ${proxy.name}`, 26)),
      svg("text", { class: "small", x: x + 12, y: y + 36 }, truncate(posted, 34)),
      svg("text", { class: "small", x: x + 12, y: y + 50 }, truncate(delivered, 34)),
      svg("title", {}, `proxy ${proxy.name} at ${proxy.host}: ${own.map((link) => link.node).join(", ") || "no node"}`),
    );
  });
  const rows = Math.ceil(shown.length / PROXY.across);
  const bottom = rows ? top + PROXY.space + (rows - 1) * PROXY.row + PROXY.height / 2 + 16 : top;
  return { lines, boxes, bottom };
}

const truncate = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
