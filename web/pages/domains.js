// All domains; one of them with the active configuration and the file of each node, and the button to reload it.

import { get, post, query, setQuery } from "../api.js";
import { flatten } from "../configuration.js";
import { actionButton, ask, field, toast } from "../dialog.js";
import { emptyNote, find, h, replace, setText, show } from "../dom.js";
import { bytes, count, counted, percent, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { bar, custom, number, state, table, text } from "../table.js";

const AGAIN_MS = 5000;

export function start({ onCluster }) {
  let names = [];
  let chosen = query().get("name") ?? "";
  let timer = null;
  const list = table({
    caption: "Domains",
    key: (domain) => domain.name,
    empty: emptyNote("There are no domains: a domain is a file in the directory domains of a node's configuration."),
    columns: [
      custom(
        "Domain",
        () => {
          const button = h("button", { type: "button", class: "plain link" });
          let name = "";
          button.addEventListener("click", () => choose(name));
          return [
            button,
            (domain) => {
              name = domain.name;
              setText(button, name);
            },
          ];
        },
        { head: true },
      ),
      state(
        "State",
        (domain) => (domain.inUse ? "in use" : "not used yet"),
        (domain) => (domain.inUse ? "good" : "unknown"),
      ),
      text("Mode", (domain) => domain.mode || "–"),
      text("Kept in", (domain) => domain.storage || "–"),
      text("Copies for an ACK", (domain) => domain.copies || "–"),
      number("Queues", (domain) => count(domain.queues)),
      number("Messages", (domain) => count(domain.messages)),
      number("Bytes", (domain) => bytes(domain.bytes)),
      bar("Quota", used, (domain) => percent(used(domain))),
      number("Messages live", (domain) => seconds(domain.ttlSeconds)),
    ],
  });
  find("#list").append(list.element);

  async function load() {
    clearTimeout(timer);
    try {
      const { domains, missing } = await get("/api/v1/domains");
      list.show(rowsOf(domains));
      const silent = Object.keys(missing ?? {});
      setText(
        find("#missing"),
        `${counted(domains.length, "domain")}${silent.length ? `, without what is stored at ${silent.join(", ")}` : ""}`,
      );
    } catch (error) {
      setText(find("#missing"), `The list cannot be read: ${error.message}`);
    }
    timer = setTimeout(load, document.hidden ? 4 * AGAIN_MS : AGAIN_MS);
  }

  function choose(name) {
    chosen = name;
    setQuery({ name });
    replace(find("#one-result"));
    look().then(() => find("#one").scrollIntoView({ block: "nearest" }));
  }

  async function look() {
    show(find("#one"), Boolean(chosen));
    if (!chosen) return;
    const name = chosen;
    setText(find("#one-title"), `Domain ${name}`);
    replace(
      find("#one-actions"),
      actionButton("Reconfigure …", "admin", () => reconfigure(name)),
    );
    const answers = await Promise.allSettled(names.map((node) => get("/api/v1/domain", { name, node })));
    if (chosen !== name) return;
    const found = answers.filter((one) => one.status === "fulfilled").map((one) => one.value);
    showOne(
      found,
      answers.filter((one) => one.status === "rejected").map((one) => one.reason.message),
    );
  }

  function showOne(found, problems) {
    const rows = found.flatMap(differences);
    const unused = found.filter((one) => one.config === null).map((one) => one.node);
    const wrong = found.filter((one) => one.problem).map((one) => `${one.node}: ${one.problem}`);
    setText(
      find("#one-state"),
      [
        rows.length
          ? `${counted(rows.length, "value")} of the files ${rows.length === 1 ? "is" : "are"} not in force: a reconfigure puts them into force.`
          : found.length
            ? "What is in force is what the files say."
            : "",
        unused.length ? `Not used yet at ${unused.join(", ")}: the file counts as soon as a queue is opened.` : "",
        ...wrong,
        ...problems,
      ]
        .filter(Boolean)
        .join(" "),
    );
    const changes = table({
      caption: "What a reconfigure would change",
      key: (row) => `${row.node} ${row.path}`,
      columns: [
        text("Member", (row) => row.path, { head: true, cls: "text mono" }),
        text("Node", (row) => row.node),
        text("In force", (row) => row.now ?? "not there", { cls: "text" }),
        text("In the file", (row) => row.file ?? "not there", { cls: "text" }),
      ],
    });
    changes.show(rows);
    replace(find("#one-differences"), rows.length ? changes.element : null);
    const known = found.filter((one) => one.config !== null || one.file !== null);
    const flat = known.map((one) => flatten(one.config ?? one.file));
    const paths = [...new Set(flat.flatMap((one) => [...one.keys()]))].sort();
    const whole = table({
      caption: "In force",
      key: (path) => path,
      columns: [
        text("Member", (path) => path, { head: true, cls: "text mono" }),
        ...known.map((one, n) =>
          text(one.config === null ? `${one.node} (file)` : one.node, (path) => flat[n].get(path) ?? "not there", {
            cls: "text",
          }),
        ),
      ],
    });
    whole.show(paths);
    replace(find("#one-config"), known.length ? whole.element : null);
  }

  function reconfigure(name) {
    ask({
      title: `Reconfigure ${name}`,
      button: "Read the files again",
      fields: { reason: field("Reason", { hint: "It stands in the audit log.", required: true }) },
      intro: [
        h(
          "p",
          {},
          "Every node reads its own file of this domain again and puts it into force at once; clients stay connected. A file that is wrong changes nothing.",
        ),
        find("#one-differences").firstElementChild?.cloneNode(true) ??
          h("p", {}, "As far as is known, nothing would change."),
      ],
      send: (values) => post(`/api/v1/domains/${encodeURIComponent(name)}/reconfigure`, values),
      done: (answer) => {
        toast(
          answer.ok ? `${name} is reconfigured at all nodes.` : `${name} is not reconfigured at all nodes.`,
          answer.ok ? "good" : "bad",
        );
        const results = table({
          caption: "Result at each node",
          key: (row) => row.node,
          columns: [
            text("Node", (row) => row.node, { head: true }),
            state(
              "Result",
              (row) => (row.ok ? "done" : "refused"),
              (row) => (row.ok ? "good" : "bad"),
            ),
            text("Why", (row) => row.error || "–", { cls: "text" }),
          ],
        });
        results.show(rowsOf(answer.nodes));
        replace(find("#one-result"), results.element);
        look();
      },
    });
  }

  onCluster((cluster) => {
    const now = rowsOf(cluster.nodes, cluster.nodesOrder)
      .filter((node) => node.state !== "down")
      .map((node) => node.name);
    if (now.join("\n") === names.join("\n")) return;
    names = now;
    look();
  });
  load();
}

function used(domain) {
  if (!domain.inUse) return null;
  const shares = [
    domain.messagesMax ? domain.messages / domain.messagesMax : 0,
    domain.bytesMax ? domain.bytes / domain.bytesMax : 0,
  ];
  return Math.max(...shares);
}

/** Members that differ between the active configuration of a node and its file. */
function differences(one) {
  if (one.config === null || one.file === null) return [];
  const [now, file] = [flatten(one.config), flatten(one.file)];
  return [...new Set([...now.keys(), ...file.keys()])]
    .filter((path) => now.get(path) !== file.get(path))
    .sort()
    .map((path) => ({ node: one.node, path, now: now.get(path), file: file.get(path) }));
}
