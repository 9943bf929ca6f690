// One node: state, partitions, events, configuration, log, and its graceful stop. Loaded by `app.js`; the panels are in
// `stop.js` and `configuration.js`, the list of nodes is in `nodes.js`.

import { get, query, setQuery } from "../api.js";
import { emptyNote, find, h, replace, setAttribute, setText, stateMark, timeMark } from "../dom.js";
import { bytes, count, duration, milliseconds, percent, seconds } from "../format.js";
import { field } from "../dialog.js";
import { rowsOf } from "../merge.js";
import { configurationPanel } from "../configuration.js";
import { eventList, facts, tiles } from "../parts.js";
import { panelOf, stopButton, stopNode } from "../stop.js";
import { number, state, table, text } from "../table.js";

const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const LOG_LINES = 200;
const LOG_MS = 3000;

export function start({ onCluster, path }) {
  const name = query().get("name") ?? "";
  setText(find("#name"), name ? `Node ${name}` : "Node");
  document.title = `${name} · ${document.title}`;
  const panel = panelOf();
  const stop = stopButton(
    () => name,
    `Stop gracefully: ${name}`,
    () => find("#stop").scrollIntoView(),
  );
  find("#actions").append(stop);
  const problem = h("p", { class: "problem", hidden: true });
  find("#tiles").before(problem);
  const now = tiles(find("#tiles"), [
    ["sessions", "Sessions"],
    ["memory", "Memory"],
    ["cpu", "CPU"],
    ["lag", "Event loop lag"],
    ["files", "Open files"],
    ["uptime", "Uptime"],
  ]);
  const about = facts(find("#facts"));
  const nodeState = stateMark();
  const started = timeMark();
  const sampled = timeMark();
  const url = h("a");
  const partitions = table({
    caption: `Partitions stored at ${name}`,
    key: (row) => row.partition.id,
    empty: emptyNote("This node stores no partitions."),
    columns: [
      text("Partition", (row) => `Partition ${row.partition.id}`, { head: true, cls: "nowrap" }),
      state("Role", (row) => row.replica.role),
      text("Primary", (row) => row.partition.primary || "none"),
      number("Sequence number", (row) => count(row.replica.sequence)),
      number("Lag, records", (row) => count(row.replica.lagRecords)),
      number("Lag, bytes", (row) => bytes(row.replica.lagBytes)),
      number("Lag, time", (row) => duration(row.replica.lagMs)),
      number("Queues", (row) => count(row.partition.queues)),
      number("Messages", (row) => count(row.partition.messages)),
    ],
  });
  find("#partitions").append(partitions.element);
  const events = eventList(find("#events"), { empty: "No recent events of this node." });
  const log = showLog(name);
  const configuration = configurationPanel(find("#config"), name);

  onCluster((cluster) => {
    const node = rowsOf(cluster.nodes).find((one) => one.name === name);
    if (!node) {
      replace(
        find("#tiles"),
        h(
          "p",
          { class: "problem" },
          `The cluster has no node named “${name}”. `,
          h("a", { href: path("/nodes") }, "All nodes"),
        ),
      );
      return;
    }
    configuration.nodes(rowsOf(cluster.nodes, cluster.nodesOrder).map((one) => one.name));
    panel.show(node, cluster.verdict?.level);
    stop.setNode(node);
    log.setReachable(node.answers !== false);
    setText(
      problem,
      node.answers === false
        ? `The console of this node does not respond, its values are the last known ones or unknown: ${node.problem || node.state}`
        : node.problem
          ? `This node ${node.problem}`
          : "",
    );
    problem.hidden = node.answers !== false && !node.problem;
    nodeState.set(node.stop && !node.stop.done ? (node.stop.abortable ? "stop scheduled" : "stopping") : node.state);
    now.set("sessions", count(node.sessions));
    now.set("memory", bytes(node.memoryBytes));
    now.set("cpu", percent(node.cpuShare));
    now.set("lag", milliseconds(node.loopLagMs));
    now.set("files", count(node.openFiles), node.openFilesMax ? `of ${count(node.openFilesMax)}` : "");
    now.set("uptime", node.startedAt ? seconds(cluster.at - node.startedAt) : "–");
    setText(url, node.url || "");
    setAttribute(url, "href", /^https?:\/\//.test(node.url ?? "") ? node.url : null);
    about.show([
      ["State", nodeState],
      ["Role", node.leader ? "leader" : "follower"],
      ["Primary for", node.primaryFor?.length ? node.primaryFor.map((id) => `partition ${id}`).join(", ") : "none"],
      ["Version", node.version],
      ["Data center", node.dataCenter || "–"],
      ["Node ID", node.id === undefined ? "–" : String(node.id)],
      ["Started", started.set(node.startedAt)],
      ["Console", url],
      ["Last answer", sampled.set(node.lastAnswerAt)],
      [
        "Disk",
        node.storage
          ? `${bytes(node.storage.freeBytes)} free of ${bytes(node.storage.totalBytes)} at ${node.storage.location}; files: ${bytes(node.storage.usedBytes)} used, ${bytes(node.storage.allocatedBytes)} allocated`
          : "–",
      ],
    ]);
    partitions.show(
      rowsOf(cluster.partitions, cluster.partitionsOrder).flatMap((partition) => {
        const replica = rowsOf(partition.replicas).find((one) => one.node === name);
        return replica ? [{ partition, replica }] : [];
      }),
    );
    events.show(rowsOf(cluster.events).filter((event) => event.node === name));
  });
  if (query().get("stop")) {
    setQuery({ stop: "" });
    stopNode(name, () => find("#stop").scrollIntoView());
  }
}

function showLog(name) {
  const box = find("#log");
  const level = query().get("level")?.toUpperCase();
  const chosen = field("Minimum level", {
    options: LEVELS.map((one) => ({ value: one, label: one })),
    value: LEVELS.includes(level) ? level : "INFO",
  });
  const follow = h(
    "button",
    {
      type: "button",
      "aria-pressed": "true",
      on: {
        click: () => {
          setAttribute(follow, "aria-pressed", String(follow.getAttribute("aria-pressed") !== "true"));
          setText(follow, follow.getAttribute("aria-pressed") === "true" ? "Pause" : "Resume");
          load();
        },
      },
    },
    "Pause",
  );
  chosen.element.classList.add("inline");
  replace(find("#log-tools"), chosen.element, follow);
  const list = h("ol", { class: "log", tabindex: "0", "aria-label": `Log of ${name}, newest line last` });
  const note = emptyNote("Loading log …");
  replace(box, list, note);
  list.hidden = true;
  let newest = "";
  let timer = null;
  let reachable = true;

  async function load() {
    clearTimeout(timer);
    try {
      const { lines } = await get("/api/v1/log", { node: name, level: chosen.value, lines: LOG_LINES });
      const last = lines[lines.length - 1];
      const mark = `${chosen.value} ${lines.length} ${last?.n ?? ""} ${last?.at ?? ""} ${last?.text ?? ""}`;
      if (mark !== newest) {
        newest = mark;
        const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
        replace(
          list,
          lines.map((line) =>
            h(
              "li",
              { "data-level": levelOf(line.level) },
              timeMark(line.at),
              " ",
              h("span", { class: "level" }, line.level),
              " ",
              line.text,
            ),
          ),
        );
        list.hidden = lines.length === 0;
        note.hidden = lines.length > 0;
        setText(note, `No log lines of level ${chosen.value} or above. Choose a lower level to see more.`);
        if (atEnd) list.scrollTop = list.scrollHeight;
      }
    } catch (error) {
      note.hidden = false;
      setText(note, `Failed to load the log: ${error.message}`);
    }
    schedule();
  }

  function schedule() {
    clearTimeout(timer);
    if (reachable && follow.getAttribute("aria-pressed") === "true")
      timer = setTimeout(load, document.hidden ? 4 * LOG_MS : LOG_MS);
  }

  chosen.input.addEventListener("change", () => {
    setQuery({ level: chosen.value === "INFO" ? "" : chosen.value });
    load();
  });
  load();
  return {
    /** Stops the requests while the node does not answer. */
    setReachable(answers) {
      if (answers === reachable) return;
      reachable = answers;
      schedule();
    },
  };
}

function levelOf(level) {
  return level === "WARN" ? "warning" : level === "ERROR" || level === "FATAL" ? "bad" : "good";
}
