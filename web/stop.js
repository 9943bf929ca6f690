// Graceful stop of a node: preflight, confirmation, progress and report.

import { get, may, post, role } from "./api.js";
import { find, h, replace, setAttribute, setText, show, stateMark } from "./dom.js";
import { actionButton, ask, field, toast } from "./dialog.js";
import { count, counted, seconds } from "./format.js";
import { rowsOf } from "./merge.js";
import { nodeLink } from "./parts.js";
import { number, table, text } from "./table.js";

const REPORTED = {
  unconfirmed: "Messages given up unconfirmed",
  unanswered: "Messages given up unanswered",
  clients: "Clients connected until the end",
};
const DELAY_SECONDS = 5;

export function stopButton(name, label, afterwards = null) {
  return actionButton("Stop gracefully …", "operator", () => stopNode(name(), afterwards), {
    cls: "danger",
    name: label,
  });
}

/** Shows the preflight of the node, asks for confirmation, then stops the node. */
export async function stopNode(name, afterwards = null) {
  if (!may("operator")) {
    toast(`Stopping a node needs the role operator; you are ${role}.`, "warning");
    return;
  }
  let preflight;
  try {
    preflight = await get(`/api/v1/nodes/${encodeURIComponent(name)}/preflight`);
  } catch (error) {
    toast(`The stop of ${name} cannot be judged: ${error.message}`, "bad");
    return;
  }
  const survives = preflight.quorumSurvives === true;
  const moves = preflight.moves ?? [];
  const warnings = preflight.warnings ?? [];
  ask({
    title: `Stop ${name} gracefully`,
    danger: true,
    typed: name,
    button: "Stop this node",
    fields: {
      reason: field("Reason", { hint: "It stands in the audit log and in the events of all nodes.", required: true }),
      delay: field("Begins in (seconds)", {
        kind: "number",
        value: String(DELAY_SECONDS),
        hint: "Until then it can be aborted; not afterwards, since clients and other nodes have been told.",
      }),
    },
    intro: [
      h(
        "p",
        {},
        stateMark(
          survives
            ? "A quorum of nodes stays: the cluster goes on."
            : "No quorum stays: the cluster does not take messages until a node is back.",
          survives ? "good" : "bad",
        ),
      ),
      h(
        "ul",
        { class: "preflight" },
        h(
          "li",
          {},
          moves.length
            ? `${counted(moves.length, "primary moves", "primaries move")}: ${moves
                .map((move) => `partition ${move.partition} to ${move.to ?? "no node"}`)
                .join(", ")}.`
            : "No primary moves.",
        ),
        h(
          "li",
          {},
          preflight.sessions
            ? `${counted(preflight.sessions, "session")} will be drained; clients that know other nodes go on there.`
            : "No session is to be drained.",
        ),
        preflight.unconfirmed
          ? h(
              "li",
              {},
              `${counted(preflight.unconfirmed, "delivered message is", "delivered messages are")} not confirmed yet.`,
            )
          : null,
        warnings.map((warning) => h("li", {}, stateMark(warning, "warning"))),
      ),
    ],
    send: ({ reason, delay }, confirm) => {
      const seconds_ = Number(delay);
      if (!Number.isInteger(seconds_) || seconds_ < 0 || seconds_ > 3600) {
        const error = new Error("This must be a whole number from 0 to 3,600.");
        error.field = "delay";
        throw error;
      }
      return post(`/api/v1/nodes/${encodeURIComponent(name)}/stop`, { confirm, reason, delay: seconds_ });
    },
    done: () => {
      toast(`${name} begins to stop.`);
      if (afterwards) afterwards();
      else location.assign(nodeLink(name));
    },
  });
}

/** Panel of a stop: show(node). It stores the last progress, because the node itself stops. */
export function stopPanel(panel, body) {
  const bar = h("progress", { max: 1, "aria-label": "How far the stop is" });
  const head = h("p", { class: "headline" }, stateMark());
  const mark = head.firstChild;
  const stages = h("ol", { class: "stages" });
  const left = h("p");
  let name = "";
  const abort = actionButton("Abort the stop", "operator", async (button) => {
    button.disabled = true;
    try {
      await post(`/api/v1/nodes/${encodeURIComponent(name)}/abort-stop`, {});
      toast(`The stop of ${name} is aborted.`);
    } catch (error) {
      toast(`The stop was not aborted: ${error.message}`, "bad");
    } finally {
      button.disabled = false;
    }
  });
  const peers = table({
    caption: "What each peer still waits for",
    key: (peer) => peer.name ?? peer.peer,
    columns: [
      text("Peer", (peer) => peer.name ?? peer.peer, { head: true }),
      number("Unconfirmed", (peer) => count(peer.unconfirmed)),
      number("Unanswered", (peer) => count(peer.unanswered)),
    ],
  });
  const report = h("div", { class: "stack", hidden: true });
  replace(
    body,
    h("div", { class: "stack" }, head, bar, stages, left, h("div", { class: "buttons" }, abort), peers.element, report),
  );
  let names = [];
  let most = 0;
  let last = null;
  let reported = "";

  return {
    show(node, clusterLevel) {
      if (node && !node.stop && last?.abortable) {
        last = null; // the stop was aborted
        panel.hidden = true;
      }
      const stop = node?.stop ?? (last ? { ...last, gone: true } : null);
      if (!stop) return;
      if (node?.stop) last = node.stop;
      name = node?.name ?? name;
      show(abort, Boolean(stop.abortable && !stop.gone));
      panel.hidden = false;
      const remaining = (stop.unconfirmed ?? 0) + (stop.unanswered ?? 0);
      most = Math.max(most, remaining);
      const gone = node && ["down", "unreachable"].includes(node.state);
      const done = Boolean(stop.done || stop.report || (gone && last));
      const told = stop.stages ?? [stop.stage, "done"];
      if (told.join() !== names.join()) {
        names = told;
        bar.max = names.length - 1;
        replace(stages, ...names.map((stage) => h("li", {}, stateMark(stage, "unknown"))));
      }
      const at = done ? names.length - 1 : Math.max(0, names.indexOf(stop.stage));
      const within = at === names.length - 2 && most > 0 ? 1 - remaining / most : 0;
      bar.value = Math.min(names.length - 1, at + within);
      [...stages.children].forEach((item, n) =>
        item.firstChild.set(names[n], n < at || done ? "good" : n === at ? "warning" : "unknown"),
      );
      mark.set(
        done ? (gone ? "stopped: the node is gone" : "stopped") : stop.abortable
            ? `stops soon: ${stop.stage}`
            : `stopping: ${stop.stage}`,
        done ? "good" : "warning",
      );
      setText(
        left,
        done
          ? by(stop)
          : stop.abortable
            ? `${by(stop)} It begins in ${seconds(stop.secondsLeft)}.`
            : `${by(stop)} ${counted(stop.clients, "client")} connected, ${counted(
              stop.unconfirmed,
              "message",
            )} unconfirmed, ${counted(stop.unanswered, "message")} unanswered; ${
              stop.secondsLeft > 0 ? `waits at most ${seconds(stop.secondsLeft)} more` : "the time to wait is over"
            }.`,
      );
      peers.element.hidden = done || !rowsOf(stop.peers).length;
      peers.show(rowsOf(stop.peers));
      if (done) showReport(stop.report ?? { seconds: stop.seconds, partitions: stop.partitions }, clusterLevel);
      setAttribute(panel, "data-stage", done ? "done" : "running");
    },
  };

  function showReport(given, clusterLevel) {
    const words = JSON.stringify(given);
    if (words === reported) return;
    reported = words;
    const { moved = [], seconds: took, reason, by: who, ...rest } = given; // reason and user are shown above
    replace(
      report,
      h("h3", {}, "Report"),
      h(
        "dl",
        { class: "facts", id: "stop-report" },
        took === undefined ? null : pair("Took", seconds(took)),
        pair(
          "Moved",
          moved.map((one) => `partition ${one.partition} to ${one.to ?? "no node"}`).join(", ") || "nothing",
        ),
        Object.entries(rest).map(([name, value]) => pair(REPORTED[name] ?? plain(name), worded(value))),
      ),
    );
    report.hidden = false;
    if (clusterLevel && clusterLevel !== "good")
      report.append(h("p", { class: "hint" }, "The cluster is one node short until this one is started again."));
  }
}

function by(stop) {
  return `${stop.by ? `Asked for by ${stop.by}` : "Asked for"}${stop.reason ? `: ${stop.reason}.` : "."}`;
}

const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** sessionsCutOff -> Sessions cut off */
export function plain(name) {
  const words = String(name)
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function worded(value) {
  if (typeof value === "number") return count(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length ? value.map(worded).join(", ") : "none";
  if (value && typeof value === "object")
    return Object.entries(value)
      .map(([name, one]) => `${plain(name).toLowerCase()} ${worded(one)}`)
      .join(" ");
  return String(value ?? "–");
}

export const panelOf = () => stopPanel(find("#stop"), find("#stop-body"));
