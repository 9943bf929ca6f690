// All domains; one domain with the active configuration and the file at each node, and the button to reload the files.
// Loaded by `app.js`; the configuration of a node is in `configuration.js`.

import { get, post, query, setQuery } from "../api.js";
import { flatten } from "../configuration.js";
import { actionButton, confirmAction, field, toast } from "../dialog.js";
import { emptyNote, find, h, replace, setText, show } from "../dom.js";
import { bytes, count, counted, percent, seconds } from "../format.js";
import { rowsOf } from "../merge.js";
import { bar, custom, number, state, table, text } from "../table.js";

const REFRESH_MS = 5000;

export function start({ onCluster }) {
  let names = [];
  let selected = query().get("name") ?? "";
  let timer = null;
  const list = table({
    caption: "Domains",
    key: (domain) => domain.name,
    empty: emptyNote("No domains. To create one, add a file to the directory domains of each node's configuration."),
    columns: [
      custom(
        "Domain",
        () => {
          const button = h("button", { type: "button", class: "plain link" });
          let name = "";
          button.addEventListener("click", () => select(name));
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
        (domain) => (domain.inUse ? "in use" : "unused"),
        (domain) => (domain.inUse ? "good" : "unknown"),
      ),
      text("Mode", (domain) => domain.mode || "–"),
      text("Storage", (domain) => domain.storage || "–"),
      text("Copies before ACK", (domain) => domain.copies || "–"),
      number("Queues", (domain) => count(domain.queues)),
      number("Messages", (domain) => count(domain.messages)),
      number("Bytes", (domain) => bytes(domain.bytes)),
      bar("Quota", used, (domain) => percent(used(domain))),
      number("Message TTL", (domain) => seconds(domain.ttlSeconds)),
    ],
  });
  find("#list").append(list.element);

  async function load() {
    clearTimeout(timer);
    try {
      const { domains, missing } = await get("/api/v1/domains");
      list.show(rowsOf(domains));
      const unreachable = Object.keys(missing ?? {});
      setText(
        find("#missing"),
        `${counted(domains.length, "domain")}${unreachable.length ? `, not including ${unreachable.join(", ")}` : ""}`,
      );
    } catch (error) {
      setText(find("#missing"), `Failed to load domains: ${error.message}`);
    }
    timer = setTimeout(load, document.hidden ? 4 * REFRESH_MS : REFRESH_MS);
  }

  function select(name) {
    selected = name;
    setQuery({ name });
    replace(find("#domain-result"));
    loadSelected().then(() => find("#domain").scrollIntoView({ block: "nearest" }));
  }

  async function loadSelected() {
    show(find("#domain"), Boolean(selected));
    if (!selected) return;
    const name = selected;
    setText(find("#domain-title"), `Domain ${name}`);
    replace(
      find("#domain-actions"),
      actionButton("Reconfigure …", "admin", () => reconfigure(name)),
    );
    const answers = await Promise.allSettled(names.map((node) => get("/api/v1/domain", { name, node })));
    if (selected !== name) return;
    const found = answers.filter((one) => one.status === "fulfilled").map((one) => one.value);
    showSelected(
      found,
      answers.filter((one) => one.status === "rejected").map((one) => one.reason.message),
    );
  }

  function showSelected(found, problems) {
    const rows = grouped(found.flatMap(differences), found.length);
    const unused = found.filter((one) => one.config === null).map((one) => one.node);
    const broken = found.filter((one) => one.problem);
    const invalid = broken.map((one) => `The file of ${one.node} is invalid and not active: ${one.problem}`);
    setText(
      find("#domain-state"),
      [
        rows.length
          ? `${counted(rows.length, "setting")} of the files ${rows.length === 1 ? "is" : "are"} not active: reconfigure the domain to activate the files.`
          : found.length > broken.length
            ? `The active configuration equals the ${broken.length ? "valid " : ""}files.`
            : "",
        unused.length ? `Unused at ${unused.join(", ")}: the file is loaded when a client first opens a queue.` : "",
        ...invalid,
        ...problems,
      ]
        .filter(Boolean)
        .join(" "),
    );
    const changes = table({
      caption: "Changes on reconfigure",
      key: (row) => `${row.nodes} ${row.path}`,
      columns: [
        text("Setting", (row) => row.path, { head: true, cls: "text mono" }),
        text("Nodes", (row) => row.nodes),
        text("Active", (row) => row.now ?? "not set", { cls: "text" }),
        text("File", (row) => row.file ?? "not set", { cls: "text" }),
      ],
    });
    changes.show(rows);
    replace(find("#domain-differences"), rows.length ? changes.element : null);
    const known = found.filter((one) => one.config !== null || one.file !== null);
    const flat = known.map((one) => flatten(one.config ?? one.file));
    const paths = [...new Set(flat.flatMap((one) => [...one.keys()]))].sort();
    const whole = table({
      caption: "Active configuration",
      key: (path) => path,
      columns: [
        text("Setting", (path) => path, { head: true, cls: "text mono" }),
        ...known.map((one, n) =>
          text(one.config === null ? `${one.node} (file)` : one.node, (path) => flat[n].get(path) ?? "not set", {
            cls: "text",
          }),
        ),
      ],
    });
    whole.show(paths);
    replace(find("#domain-config"), known.length ? whole.element : null);
  }

  function reconfigure(name) {
    confirmAction({
      title: `Reconfigure ${name}`,
      cls: "wide",
      button: "Reload files",
      fields: { reason: field("Reason", { hint: "Recorded in the audit log.", required: true }) },
      intro: [
        h(
          "p",
          {},
          "Every node reloads its file of this domain and activates it at once. Clients stay connected. An invalid file changes nothing.",
        ),
        find("#domain-differences").firstElementChild?.cloneNode(true) ??
          h("p", {}, "No changes detected."),
      ],
      send: (values) => post(`/api/v1/domains/${encodeURIComponent(name)}/reconfigure`, values),
      done: (answer) => {
        toast(
          answer.ok ? `${name} reconfigured at all nodes.` : `${name} was not reconfigured at all nodes.`,
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
            text("Reason", (row) => row.error || "–", { cls: "text" }),
          ],
        });
        results.show(rowsOf(answer.nodes));
        replace(find("#domain-result"), results.element);
        loadSelected();
      },
    });
  }

  onCluster((cluster) => {
    const now = rowsOf(cluster.nodes, cluster.nodesOrder)
      .filter((node) => node.state !== "down")
      .map((node) => node.name);
    if (now.join("\n") === names.join("\n")) return;
    names = now;
    loadSelected();
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

/** Returns the settings that differ between the active configuration of a node and its file. */
function differences(one) {
  if (one.config === null || one.file === null) return [];
  const [now, file] = [flatten(one.config), flatten(one.file)];
  return [...new Set([...now.keys(), ...file.keys()])]
    .filter((path) => now.get(path) !== file.get(path))
    .sort()
    .map((path) => ({ node: one.node, path, now: now.get(path), file: file.get(path) }));
}

/** Returns one row for all nodes with the same change; `all`: number of nodes. */
function grouped(changes, all) {
  const rows = new Map();
  for (const { node, ...change } of changes) {
    const key = JSON.stringify([change.path, change.now, change.file]);
    if (!rows.has(key)) rows.set(key, { ...change, names: [] });
    rows.get(key).names.push(node);
  }
  return [...rows.values()].map(({ names, ...change }) => ({
    ...change,
    nodes: names.length === all && all > 1 ? `all ${count(all)}` : names.join(", "),
  }));
}
