// Diagram of the cluster: nodes on a circle, a line from each primary to its replicas, the proxies below with their
// connections; the same data as tables.

import { emptyNote, find, levelOf, replace, svg } from "../dom.js";
import { bytes, count, counted, rate } from "../format.js";
import { rowsOf } from "../merge.js";
import { isLate, nodeColumn } from "../parts.js";
import { number, state, table, text } from "../table.js";

const WIDTH = 900;
const BOX = { width: 200, height: 74 };
const PROXY = { width: 200, height: 58, gap: 20, space: 70, row: 96, across: 4, most: 12 }; // most: boxes drawn, the table has all proxies

export function start({ onCluster }) {
  const picture = find("#picture");
  const edges = table({
    caption: "Who copies from whom",
    key: (edge) => `${edge.partition.id} ${edge.to}`,
    empty: emptyNote("No replica copies from a primary: the cluster has one node, or no primary."),
    columns: [
      text("Partition", (edge) => `Partition ${edge.partition.id}`, { head: true }),
      nodeColumn("Primary", (edge) => edge.from),
      nodeColumn("Replica", (edge) => edge.to),
      state(
        "State",
        (edge) => edge.state,
        (edge) => edge.level,
      ),
      number("Records behind", (edge) => count(edge.records)),
      number("Bytes behind", (edge) => bytes(edge.bytes)),
    ],
  });
  find("#edges").append(edges.element);
  const links = table({
    caption: "Which proxies are connected with which nodes",
    key: (link) => `${link.ident} ${link.node}`,
    empty: emptyNote("No proxy is connected with a node of this cluster."),
    columns: [
      text("Proxy", (link) => link.name, { head: true }),
      text("Host", (link) => link.host || "–"),
      nodeColumn("Node", (link) => link.node, {}, (link) => link.behind),
      text("Address", (link) => link.address || "–"),
      state("State", (link) => link.state, levelOfLink),
      number("Posts", (link) => rate(link.putRate)),
      number("Bytes posted", (link) => bytesRate(link.putBytesRate)),
      number("Gets", (link) => rate(link.pushRate)),
      number("Bytes delivered", (link) => bytesRate(link.pushBytesRate)),
      number("Not read yet", (link) => bytes(link.unread)),
      number("Queues", (link) => count(link.queues)),
      number("Unconfirmed", (link) => count(link.unconfirmed)),
      number("Unacknowledged", (link) => count(link.unacked)),
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
    const wires = proxies.flatMap(({ ident, name, host, url, links: of }) =>
      rowsOf(of).map((link) => ({ ...link, ident, name, host, url, behind: !names.has(link.node) })),
    );
    links.show(wires);
    const words = JSON.stringify([
      nodes.map((node) => [node.name, node.state, node.leader, node.primaryFor, node.sessions]),
      list.map((edge) => [edge.from, edge.to, edge.level]),
      proxies.map((proxy) => [proxy.ident, proxy.state, proxy.sessions]),
      wires.map((link) => [link.ident, link.node, link.queues, levelOfLink(link), flow(link)]),
    ]);
    if (words === drawn) return;
    drawn = words;
    replace(picture, nodes.length ? draw(nodes, list, proxies, wires) : emptyNote("No node is known yet."));
  });
}

function edgesOf(partition) {
  if (!partition.primary) return [];
  return rowsOf(partition.replicas)
    .filter((replica) => replica.node !== partition.primary)
    .map((replica) => {
      const behind = replica.role === "replica" && isLate(replica);
      return {
        partition,
        from: partition.primary,
        to: replica.node,
        records: replica.lagRecords,
        bytes: replica.lagBytes,
        state: behind ? "behind" : replica.role === "replica" ? "in step" : replica.role,
        level: behind ? "warning" : replica.role === "replica" ? "good" : levelOf(replica.role),
      };
    });
}

const levelOfLink = (link) => (link.state === "connected" ? "good" : "warning");
const bytesRate = (value) => (typeof value === "number" ? `${bytes(value)}/s` : "–");
const flow = (link) => [
  `posts ${rate(link.putRate)}, ${bytesRate(link.putBytesRate)}`,
  `gets ${rate(link.pushRate)}, ${bytesRate(link.pushBytesRate)}`,
];

const WORST = ["good", "unknown", "warning", "bad"];

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
    if (WORST.indexOf(edge.level) > WORST.indexOf(one.level)) one.level = edge.level;
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
    const led = node.primaryFor?.length ? `primary for ${node.primaryFor.join(", ")}` : "primary for none";
    return svg(
      "g",
      { "data-level": levelOf(node.state) },
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }),
      svg("text", { x: x + 12, y: y + 24 }, cut(`${node.name}${node.leader ? " ★ leader" : ""}`, 26)),
      svg("text", { class: "small", x: x + 12, y: y + 43 }, `${node.state}, ${counted(node.sessions ?? 0, "session")}`),
      svg("text", { class: "small", x: x + 12, y: y + 61 }, cut(led, 34)),
      svg("title", {}, `${node.name}: ${node.state}, ${led}`),
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
      "aria-label": `${counted(nodes.length, "node")} and ${counted(edges.length, "line")} from primaries to replicas, ${counted(proxies.length, "proxy", "proxies")}; the tables below have the same`,
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
      svg("title", {}, `${link.name} to ${link.node}: ${link.state}, ${flow(link).join("; ")}`),
    );
  });
  const boxes = shown.map((proxy) => {
    const place = places.get(proxy.ident);
    const [x, y] = [place.x - PROXY.width / 2, place.y - PROXY.height / 2];
    const own = links.filter((link) => link.ident === proxy.ident);
    const busiest = own.toSorted((a, b) => (b.pushRate ?? 0) + (b.putRate ?? 0) - (a.pushRate ?? 0) - (a.putRate ?? 0))[0];
    const [posts, gets] = busiest ? flow(busiest) : ["connected with no node", ""];
    return svg(
      "g",
      { class: "proxy", "data-level": own.some((link) => levelOfLink(link) !== "good") ? "warning" : "good" },
      svg("rect", { x, y, width: PROXY.width, height: PROXY.height, rx: 18 }),
      svg("text", { x: x + 12, y: y + 20 }, cut(`proxy ${proxy.name}`, 26)),
      svg("text", { class: "small", x: x + 12, y: y + 36 }, cut(posts, 34)),
      svg("text", { class: "small", x: x + 12, y: y + 50 }, cut(gets, 34)),
      svg("title", {}, `proxy ${proxy.name} at ${proxy.host}: ${own.map((link) => link.node).join(", ") || "no node"}`),
    );
  });
  const rows = Math.ceil(shown.length / PROXY.across);
  const bottom = rows ? top + PROXY.space + (rows - 1) * PROXY.row + PROXY.height / 2 + 16 : top;
  return { lines, boxes, bottom };
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
