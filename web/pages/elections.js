// Terms of leaders, and the causes of changes.

import { emptyNote, find, replace, setAttribute, stateMark, svg, timeMark, h } from "../dom.js";
import { count, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { eventList, facts, nodeColumn, nodeLink } from "../parts.js";
import { plain } from "../stop.js";
import { number, table, text, time } from "../table.js";

const WIDTH = 1000;
const HEIGHT = 64;

export function start({ live, onCluster }) {
  const now = find("#now");
  const leader = h("a");
  const since = timeMark();
  const mark = stateMark("waiting for the first numbers", "unknown");
  const more = h("p", { class: "lead" });
  replace(now, h("p", { class: "headline" }, mark), more);
  const line = find("#line");
  const terms = table({
    caption: "Terms, the newest first",
    key: (term) => `${term.term} ${term.from}`,
    empty: emptyNote("No term is known: this node has not seen a leader since it started."),
    columns: [
      number("Term", (term) => count(term.term), { head: true }),
      nodeColumn("Leader", (term) => term.leader),
      time("From", (term) => term.from),
      time("To", (term) => term.to),
      number("For", (term) => (term.to ? seconds(term.to - term.from) : "until now")),
      text("Why it began", (term) => term.reason || "–", { cls: "text" }),
    ],
  });
  find("#terms").append(terms.element);
  const events = eventList(find("#events"), {
    most: 200,
    empty: "No scouting, vote or change of leader has been seen since the nodes started.",
  });

  const standing = facts(find("#standing"));
  const story = table({
    caption: "The elector of the node that serves this page, the newest first",
    key: (one, n) => `${one.at} ${n}`,
    columns: [
      time("When", (one) => one.at),
      text("State", (one) => one.state, { head: true }),
      text("Why", (one) => one.cause, { cls: "text" }),
    ],
  });
  find("#story").append(story.element);

  onCluster((cluster) => {
    const known = cluster.leader?.node;
    setAttribute(now, "data-level", known ? "good" : "bad");
    mark.set(
      known
        ? `${known} leads in term ${count(cluster.leader.term)}`
        : "No node leads: no queue can be assigned to a partition now",
      known ? "good" : "bad",
    );
    leader.textContent = known ? `Node ${known}` : "";
    setAttribute(leader, "href", known ? nodeLink(known) : null);
    since.set(cluster.leader?.since);
    if (known && !more.contains(leader)) replace(more, leader, " leads since ", since);
    if (!known)
      replace(more, "Look at the events below: who asks for votes, and whether a majority of the nodes is there.");
  });
  const show = (document) => {
    const list = [...rowsOf(document.terms)].sort((a, b) => b.from - a.from);
    terms.show(list);
    draw(line, list, document.at ?? Date.now() / 1000);
    events.show(rowsOf(document.events));
    standing.show(
      Object.entries(document.standing ?? {}).map(([name, value]) => [plain(name), String(value ?? "none")]),
    );
    find("#standing-box").hidden = !document.standing;
    story.show(rowsOf(document.story).slice(-100).reverse());
    find("#story-box").hidden = !rowsOf(document.story).length;
  };
  live.subscribe("elections", {}, show, (problem) => replace(line, emptyNote(`The terms cannot be shown: ${problem}`)));
}

/** One box for each term, with a width proportional to its duration and a minimum width. */
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
      svg("rect", { class: term.leader ? "led" : "none", x, y: 4, width: widths[n] - 2, height: HEIGHT - 28, rx: 4 }),
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
        "aria-label": `The last ${shown.length} terms as boxes; the table below has the same`,
      },
      parts,
    ),
  );
}
