// Graceful stop of a node: preflight, confirmation, progress and report. Used by `pages/node.js` and `pages/nodes.js`; the
// stop itself is `bmqtwist/broker/graceful_stop.py`.

import { get, hasRole, post, role } from "./api.js";
import { find, h, replace, setAttribute, setText, show, stateMark } from "./dom.js";
import { actionButton, confirmAction, field, toast } from "./dialog.js";
import { count, counted, seconds } from "./format.js";
import { rowsOf } from "./merge.js";
import { nodeLink } from "./parts.js";
import { number, table, text } from "./table.js";

const REPORTED = {
  unconfirmed: "Messages left unconfirmed",
  unanswered: "PUTs left unacknowledged",
  clients: "Clients still connected at the end",
};
const DELAY_SECONDS = 5;

/** Button that stops a node: name() returns its name; button.setNode(node) disables it unless the node is up. */
export function stopButton(name, label, afterwards = null) {
  const button = actionButton("Stop gracefully …", "operator", () => stopNode(name(), afterwards), {
    cls: "danger",
    name: label,
  });
  button.setNode = (node) => {
    button.disabled = node.answers === false || node.state !== "up";
  };
  return button;
}

/** Shows the preflight of the node, asks for confirmation, then stops the node. */
export async function stopNode(name, afterwards = null) {
  if (!hasRole("operator")) {
    toast(`Stopping a node requires the role operator; your role is ${role}.`, "warning");
    return;
  }
  let preflight;
  try {
    preflight = await get(`/api/v1/nodes/${encodeURIComponent(name)}/preflight`);
  } catch (error) {
    toast(`The effects of stopping ${name} cannot be determined: ${error.message}`, "bad");
    return;
  }
  const survives = preflight.quorumSurvives === true;
  const moves = preflight.moves ?? [];
  const warnings = preflight.warnings ?? [];
  confirmAction({
    title: `Stop ${name} gracefully`,
    danger: true,
    typed: name,
    button: "Stop this node",
    fields: {
      reason: field("Reason", { hint: "Recorded in the audit log and in the events of all nodes.", required: true }),
      delay: field("Delay (seconds)", {
        kind: "number",
        value: String(DELAY_SECONDS),
        hint: "The stop can be aborted during the delay. Afterwards clients and other nodes have been notified, and it cannot be aborted.",
      }),
    },
    intro: [
      h(
        "p",
        {},
        stateMark(
          survives
            ? "Quorum is kept: the cluster stays available."
            : "Quorum is lost: the cluster accepts no messages until a node is up again.",
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
            ? `${counted(preflight.sessions, "session")} will be drained. Clients reconnect to the other nodes that they are configured with.`
            : "No sessions to drain.",
        ),
        preflight.unconfirmed
          ? h(
              "li",
              {},
              `${counted(preflight.unconfirmed, "delivered message is", "delivered messages are")} unconfirmed.`,
            )
          : null,
        warnings.map((warning) => h("li", {}, stateMark(warning, "warning"))),
      ),
    ],
    send: ({ reason, delay }, confirm) => {
      const wait = Number(delay);
      if (!Number.isInteger(wait) || wait < 0 || wait > 3600) {
        const error = new Error("Enter a whole number from 0 to 3,600.");
        error.field = "delay";
        throw error;
      }
      return post(`/api/v1/nodes/${encodeURIComponent(name)}/stop`, { confirm, reason, delay: wait });
    },
    done: () => {
      toast(`Graceful stop of ${name} requested.`);
      if (afterwards) afterwards();
      else location.assign(nodeLink(name));
    },
  });
}

/** Panel of a stop: show(node, level of the cluster's health). It stores the last progress, because the node's own reports end. */
export function stopPanel(panel, body) {
  const bar = h("progress", { max: 1, "aria-label": "Progress of the stop" });
  const head = h("p", { class: "headline" }, stateMark());
  const mark = head.firstChild;
  const stages = h("ol", { class: "stages" });
  const status = h("p");
  let name = "";
  const abort = actionButton("Abort the stop", "operator", async (button) => {
    button.disabled = true;
    try {
      await post(`/api/v1/nodes/${encodeURIComponent(name)}/abort-stop`, {});
      toast(`Stop of ${name} aborted.`);
    } catch (error) {
      toast(`Failed to abort the stop: ${error.message}`, "bad");
    } finally {
      button.disabled = false;
    }
  });
  const peers = table({
    caption: "Pending messages by peer",
    key: (peer) => peer.name ?? peer.peer,
    columns: [
      text("Peer", (peer) => peer.name ?? peer.peer, { head: true }),
      number("Unconfirmed", (peer) => count(peer.unconfirmed)),
      number("Unacknowledged PUTs", (peer) => count(peer.unanswered)),
    ],
  });
  const report = h("div", { class: "stack", hidden: true });
  replace(
    body,
    h("div", { class: "stack" }, head, bar, stages, status, h("div", { class: "buttons" }, abort), peers.element, report),
  );
  let stageNames = [];
  let most = 0;
  let last = null;
  let reported = "";

  return {
    show(node, healthLevel) {
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
      const reportedStages = stop.stages ?? [stop.stage, "done"];
      if (reportedStages.join() !== stageNames.join()) {
        stageNames = reportedStages;
        bar.max = stageNames.length - 1;
        replace(stages, ...stageNames.map((stage) => h("li", {}, stateMark(stage, "unknown"))));
      }
      const at = done ? stageNames.length - 1 : Math.max(0, stageNames.indexOf(stop.stage));
      const within = at === stageNames.length - 2 && most > 0 ? 1 - remaining / most : 0;
      bar.value = Math.min(stageNames.length - 1, at + within);
      [...stages.children].forEach((item, n) =>
        item.firstChild.set(stageNames[n], n < at || done ? "good" : n === at ? "warning" : "unknown"),
      );
      mark.set(
        done ? (gone ? "stopped: the process has ended" : "stopped") : stop.abortable
            ? "stop scheduled, can be aborted"
            : `stopping: ${stop.stage}`,
        done ? "good" : "warning",
      );
      setText(
        status,
        done
          ? requester(stop)
          : stop.abortable
            ? `${requester(stop)} It starts in ${seconds(stop.secondsLeft)}.`
            : `${requester(stop)} ${counted(stop.clients, "client")} connected, ${counted(
              stop.unconfirmed,
              "message",
            )} unconfirmed, ${counted(stop.unanswered, "PUT")} unacknowledged; ${
              stop.secondsLeft > 0 ? `the drain ends in ${seconds(stop.secondsLeft)} at the latest` : "the drain timeout has expired"
            }.`,
      );
      peers.element.hidden = done || !rowsOf(stop.peers).length;
      peers.show(rowsOf(stop.peers));
      if (done) showReport(stop.report ?? { seconds: stop.seconds, partitions: stop.partitions }, healthLevel);
      setAttribute(panel, "data-stage", done ? "done" : "running");
    },
  };

  function showReport(given, healthLevel) {
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
        took === undefined ? null : pair("Duration", seconds(took)),
        pair(
          "Partitions moved",
          moved.map((one) => `partition ${one.partition} to ${one.to ?? "no node"}`).join(", ") || "none",
        ),
        Object.entries(rest).map(([name, value]) => pair(REPORTED[name] ?? labelOf(name), valueText(value))),
      ),
    );
    report.hidden = false;
    if (healthLevel && healthLevel !== "good")
      report.append(h("p", { class: "hint" }, "The cluster runs with one node less until this node is started again."));
  }
}

function requester(stop) {
  return `${stop.by ? `Requested by ${stop.by}` : "Requested"}${stop.reason ? `: ${stop.reason}.` : "."}`;
}

const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** Returns a member's name as a label: sessionsCutOff -> Sessions cut off. */
export function labelOf(name) {
  const words = String(name)
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function valueText(value) {
  if (typeof value === "number") return count(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.length ? value.map(valueText).join(", ") : "none";
  if (value && typeof value === "object")
    return Object.entries(value)
      .map(([name, one]) => `${labelOf(name).toLowerCase()} ${valueText(one)}`)
      .join(" ");
  return String(value ?? "–");
}

export const panelOf = () => stopPanel(find("#stop"), find("#stop-body"));
