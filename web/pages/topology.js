// The cluster as a picture: nodes on a circle, a line from each primary to its replicas; the same as a table.

import { emptyNote, find, levelOf, replace, svg } from "../dom.js";
import { bytes, count, counted } from "../format.js";
import { rowsOf } from "../merge.js";
import { nodeColumn } from "../parts.js";
import { number, state, table, text } from "../table.js";

const WIDTH = 900;
const BOX = { width: 200, height: 74 };

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
  let drawn = "";
  onCluster((cluster) => {
    const nodes = rowsOf(cluster.nodes, cluster.nodesOrder);
    const list = rowsOf(cluster.partitions, cluster.partitionsOrder).flatMap((partition) => edgesOf(partition));
    edges.show(list);
    const words = JSON.stringify([
      nodes.map((node) => [node.name, node.state, node.leader, node.primaryFor, node.sessions]),
      list.map((edge) => [edge.from, edge.to, edge.level]),
    ]);
    if (words === drawn) return;
    drawn = words;
    replace(picture, nodes.length ? draw(nodes, list) : emptyNote("No node is known yet."));
  });
}

function edgesOf(partition) {
  if (!partition.primary) return [];
  return rowsOf(partition.replicas)
    .filter((replica) => replica.node !== partition.primary)
    .map((replica) => {
      const behind = replica.role === "replica" && replica.lagRecords > 0;
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

const WORST = ["good", "unknown", "warning", "bad"];

function draw(nodes, edges) {
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
      const bend = 22; // to the right of the way, so that both directions are seen
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
  const [top, bottom] = [Math.min(...ys) - BOX.height / 2 - 16, Math.max(...ys) + BOX.height / 2 + 16];
  return svg(
    "svg",
    {
      class: "graph",
      viewBox: `0 ${top} ${WIDTH} ${bottom - top}`,
      role: "img",
      "data-rows": rows,
      "aria-label": `${counted(nodes.length, "node")} and ${counted(edges.length, "line")} from primaries to replicas; the table below has the same`,
    },
    lines,
    boxes,
  );
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
