// Entry of every page: header, badge, palette, live documents; then the page's own module.

import { prefix, path } from "./api.js";
import { find, h, replace, setAttribute, setText, show, stateMark } from "./dom.js";
import { clock, counted } from "./format.js";
import { Live } from "./live.js";
import { rowsOf } from "./merge.js";
import { openPalette } from "./palette.js";
import { toast } from "./dialog.js";
import { settings } from "./settings.js";

const PAGES = {
  overview: "overview",
  shards: "shards",
  queues: "queues",
  queue: "queue",
  nodes: "nodes",
  node: "node",
  elections: "elections",
  topology: "topology",
  clients: "clients",
  domains: "domains",
  storage: "storage",
  alarms: "alarms",
  audit: "audit",
};
const home = `${location.origin}${prefix}`;
let cluster = firstCluster(); // the document in the page, later the newest one
let servedBy = cluster?.servedBy ?? "";

function firstCluster() {
  try {
    return JSON.parse(find("#data")?.textContent || "null");
  } catch {
    return null; // live documents follow in any case
  }
}

// --- header ---------------------------------------------------------------------------------------------------------

const badge = find("#badge");
const verdict = find("#verdict");
const badgeMark = stateMark("connecting", "warning");
const verdictMark = stateMark("", "unknown");
if (badge) replace(badge, badgeMark);
if (verdict) replace(verdict, verdictMark);

const BADGES = {
  connecting: ["connecting", "warning"],
  live: ["live", "good"],
  stale: ["stale", "warning"],
  reconnecting: ["reconnecting", "bad"],
};

function showBadge(state) {
  const [word, level] = BADGES[state];
  badgeMark.set(state === "live" && servedBy ? `live from ${servedBy}` : word, level);
  setAttribute(document.body, "data-live", state);
}

function showHeader(document_) {
  const level = document_.verdict?.level ?? "unknown";
  verdictMark.set(document_.verdict?.text ?? "no verdict yet", level);
  const alarms = rowsOf(document_.alarms).filter((alarm) => !alarm.clearedAt && !alarm.acknowledgedBy).length;
  const number = find("#alarm-count");
  if (number) {
    show(number, alarms > 0);
    setText(number, String(alarms));
    setAttribute(number, "aria-label", counted(alarms, "open alarm"));
  }
}

function showClock() {
  const now = new Date();
  const element = find("#clock");
  if (element) setText(element, `${clock(now, false)} local\n${clock(now, true)} UTC`);
}

function controls() {
  const theme = find("#theme");
  if (theme) {
    theme.value = settings.theme;
    theme.addEventListener("change", () => {
      settings.theme = theme.value;
    });
  }
  const zone = find("#zone");
  if (zone) {
    zone.value = settings.utc ? "utc" : "local";
    zone.addEventListener("change", () => {
      settings.utc = zone.value === "utc";
    });
  }
  find("#open-palette")?.addEventListener("click", () => openPalette(() => cluster));
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette(() => cluster);
    }
  });
  const menu = find("#menu");
  const navigation = find("#navigation");
  menu?.addEventListener("click", () => {
    const open = navigation.classList.toggle("open");
    setAttribute(menu, "aria-expanded", String(open));
  });
  navigation?.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && navigation.classList.contains("open")) {
      menu.click();
      menu.focus();
    }
  });
}

// --- when the node that served this page stops ----------------------------------------------------------------------

function goOn(peer) {
  const target = `${peer}${location.pathname.slice(prefix.length)}${location.search}#moved-from=${encodeURIComponent(servedBy)}`;
  const go = () => location.replace(target);
  const open = find("dialog[open]");
  if (!open) go();
  else {
    toast(
      "The node that served this page is gone; the page goes on with a peer when this dialog is closed.",
      "warning",
    );
    open.addEventListener("close", go);
  }
}

function toLogin() {
  location.assign(path("/login", { next: location.pathname + location.search }));
}

function tellMove() {
  const match = /^#moved-from=(.*)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", location.pathname + location.search);
  let name = "";
  try {
    name = decodeURIComponent(match[1]);
  } catch {
    // a name that is not a text is ignored
  }
  toast(`${name ? `Node ${name}` : "The node before"} stopped answering: this page goes on here.`, "warning");
}

// --- start ----------------------------------------------------------------------------------------------------------

async function start() {
  controls();
  tellMove();
  showClock();
  setInterval(showClock, 1000);
  const name = document.body.dataset.page;
  const live = new Live(home, { onState: showBadge, onPeer: goOn, onLogin: toLogin });
  const watchers = new Set();
  const tell = () => {
    for (const watcher of watchers) watcher(cluster);
  };
  settings.watch(() => {
    for (const element of document.querySelectorAll("time")) element.refresh?.();
    if (cluster) tell();
  });
  const context = {
    live,
    main: find("#page"),
    path,
    /** Calls the listener with the cluster now (if known) and after each change. */
    onCluster(watcher) {
      watchers.add(watcher);
      if (cluster) watcher(cluster);
    },
    get cluster() {
      return cluster;
    },
  };
  if (cluster) showHeader(cluster);
  if (find("#badge")) {
    live.subscribe(
      "cluster",
      {},
      (document_) => {
        cluster = document_;
        if (live.state === "live") servedBy = document_.servedBy ?? servedBy;
        live.peers = rowsOf(document_.nodes)
          .filter((node) => node.name !== document_.servedBy && node.state !== "down" && node.url)
          .map((node) => node.url);
        showHeader(document_);
        showBadge(live.state);
        tell();
      },
      (text) => toast(`The cluster's state cannot be shown: ${text}`, "bad"),
    );
    live.start();
    addEventListener("pagehide", () => live.stop());
    addEventListener("pageshow", (event) => {
      if (event.persisted) location.reload();
    });
  }
  if (Object.hasOwn(PAGES, name)) {
    try {
      const module = await import(`./pages/${PAGES[name]}.js`);
      module.start(context);
    } catch (error) {
      replace(
        find("#page"),
        h(
          "p",
          { class: "problem", role: "alert" },
          "This page could not be shown: ",
          error.message,
          ". Reload it; if that does not help, the browser is too old or a file of the console is missing.",
        ),
      );
      throw error;
    }
  }
  document.body.dataset.ready = "1";
}

start();
