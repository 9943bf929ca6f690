// Current leader, terms with their causes, election events, and transitions of the serving node's elector. Loaded by
// `app.js`; the document is made in `bmqtwist/view/cluster_facts.py`.

import { emptyNote, find, replace, setAttribute, stateMark, svg, timeMark, h } from "../dom.js";
import { count, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { eventList, facts, nodeColumn, nodeLink } from "../parts.js";
import { labelOf } from "../stop.js";
import { number, table, text, time } from "../table.js";

const WIDTH = 1000;
const HEIGHT = 64;

export function start({ live, onCluster }) {
  const now = find("#leader");
  const leaderLink = h("a");
  const since = timeMark();
  const mark = stateMark("waiting for data", "unknown");
  const more = h("p", { class: "lead" });
  replace(now, h("p", { class: "headline" }, mark), more);
  const line = find("#timeline");
  const terms = table({
    caption: "Terms, newest first",
    key: (term) => `${term.term} ${term.from}`,
    empty: emptyNote("No known terms: this node has not seen a leader since it started."),
    columns: [
      number("Term", (term) => count(term.term), { head: true }),
      nodeColumn("Leader", (term) => term.leader),
      time("From", (term) => term.from),
      time("To", (term) => term.to),
      number("Duration", (term) => (term.to ? seconds(term.to - term.from) : "ongoing")),
      text("Cause", (term) => term.reason || "–", { cls: "text" }),
    ],
  });
  find("#terms").append(terms.element);
  const events = eventList(find("#events"), {
    most: 200,
    empty: "No election events since the nodes started.",
  });

  const elector = facts(find("#elector"));
  const transitions = table({
    caption: "Elector transitions of the node that serves this page, newest first",
    key: (one, n) => `${one.at} ${n}`,
    columns: [
      time("Time", (one) => one.at),
      text("State", (one) => one.state, { head: true }),
      text("Cause", (one) => one.cause, { cls: "text" }),
    ],
  });
  find("#transitions").append(transitions.element);

  onCluster((cluster) => {
    const known = cluster.leader?.node;
    setAttribute(now, "data-level", known ? "good" : "bad");
    mark.set(
      known
        ? `${known} is the leader in term ${count(cluster.leader.term)}`
        : "No leader: queues cannot be assigned to partitions",
      known ? "good" : "bad",
    );
    leaderLink.textContent = known ? `Node ${known}` : "";
    setAttribute(leaderLink, "href", known ? nodeLink(known) : null);
    since.set(cluster.leader?.since);
    if (known && !more.contains(leaderLink)) replace(more, leaderLink, " has been the leader since ", since);
    if (!known)
      replace(more, "Check the events below for candidates, and the page Nodes for whether a majority of the nodes is up.");
  });
  const show = (document) => {
    const list = [...rowsOf(document.terms)].sort((a, b) => b.from - a.from);
    terms.show(list);
    draw(line, list, document.at ?? Date.now() / 1000);
    events.show(rowsOf(document.events));
    elector.show(
      Object.entries(document.standing ?? {}).map(([name, value]) => [labelOf(name), String(value ?? "none")]),
    );
    find("#elector-box").hidden = !document.standing;
    transitions.show(rowsOf(document.story).slice(-100).reverse());
    find("#transitions-box").hidden = !rowsOf(document.story).length;
  };
  live.subscribe("elections", {}, show, (problem) => replace(line, emptyNote(`Failed to load terms: ${problem}`)));
}

/** Draws one box for each term, with a width proportional to its duration and a minimum width. */
function draw(box, terms, now) {
  if (terms.length === 0) {
    replace(box);
    return;
  }
  const shown = terms.slice(0, 12).reverse();
  const weights = shown.map((term) => Math.sqrt(Math.max(1, (term.to ?? now) - term.from)));
  const sum = weights.reduce((all, one) => all + one, 0);
  const least = WIDTH / 24;
  const widths = weights.map((one) => least + (one / sum) * (WIDTH - least * shown.length));
  let x = 0;
  const parts = shown.map((term, n) => {
    const group = svg(
      "g",
      {},
      svg("rect", { class: term.leader ? "with-leader" : "without-leader", x, y: 4, width: widths[n] - 2, height: HEIGHT - 28, rx: 4 }),
      svg("text", { x: x + 8, y: 28 }, widths[n] > 70 ? (term.leader ?? "no leader") : ""),
      svg("text", { x: x + 2, y: HEIGHT - 6 }, widths[n] > 44 ? `term ${term.term}` : String(term.term)),
      svg(
        "title",
        {},
        `term ${term.term}: ${term.leader ?? "no leader"}, ${seconds((term.to ?? now) - term.from)}; ${term.reason ?? ""}`,
      ),
    );
    x += widths[n];
    return group;
  });
  replace(
    box,
    svg(
      "svg",
      {
        class: "timeline",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "xMidYMid meet",
        role: "img",
        "aria-label": `Timeline of the last ${shown.length} terms; the table below has the same data`,
      },
      parts,
    ),
  );
}
