// Clients of all nodes, and of the proxies whose consoles respond. Loaded by `app.js`; the rows are made in
// `bmqtwist/view/node_facts.py`.

import { get, query, setQuery } from "../api.js";
import { emptyNote, find, setText } from "../dom.js";
import { count, counted } from "../format.js";
import { rowsOf } from "../merge.js";
import { missingClientsNote, nodeColumn } from "../parts.js";
import { number, state, table, text, time } from "../table.js";

const REFRESH_MS = 3000;
const SHOWN_MAX = 500;
const isProxy = (client) => client.proxy === true;

export function start() {
  const input = find("#filter");
  const total = find("#total");
  input.value = query().get("filter") ?? "";
  let clients = [];
  let timer = null;
  const list = table({
    caption: "Clients",
    key: (client) => `${client.node} ${client.id}`,
    empty: emptyNote("No connected clients match."),
    columns: [
      text("Client", (client) => client.client, { head: true, cls: "text" }),
      state("State", (client) => client.state ?? "connected"),
      nodeColumn("Node", (client) => client.node, {}, isProxy),
      text("Address", (client) => client.address || client.host || "–"),
      text("Kind", (client) => client.kind || "–"),
      text("SDK", (client) => client.sdk ?? "–"),
      time("Connected since", (client) => client.since),
      number("Queues", (client) => count(client.queues)),
      number("Unconfirmed", (client) => count(client.unconfirmed)),
    ],
  });
  const missing = missingClientsNote();
  find("#list").append(missing.element, list.element);

  function show() {
    const wanted = input.value.toLowerCase();
    const found = clients.filter((client) =>
      [client.client, client.host, client.address, client.node, client.sdk].some((words) =>
        String(words ?? "")
          .toLowerCase()
          .includes(wanted),
      ),
    );
    list.show(found.slice(0, SHOWN_MAX));
    setText(
      total,
      found.length > SHOWN_MAX
        ? `${count(SHOWN_MAX)} of ${counted(found.length, "client")} shown: use the filter to narrow the list`
        : counted(found.length, "client"),
    );
  }

  async function load() {
    clearTimeout(timer);
    try {
      const answer = await get("/api/v1/clients");
      clients = rowsOf(answer.clients);
      missing.show(answer.missing);
      show();
    } catch (error) {
      setText(total, `Failed to load clients: ${error.message}`);
    }
    timer = setTimeout(load, document.hidden ? 4 * REFRESH_MS : REFRESH_MS);
  }

  input.addEventListener("input", () => {
    setQuery({ filter: input.value });
    show();
  });
  find("#filters").addEventListener("submit", (event) => event.preventDefault());
  load();
}
