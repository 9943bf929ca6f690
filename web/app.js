// Entry of every page: header, badge, palette, live documents; then the page's own module. `templates/base.html` loads it;
// the modules of pages are in `pages/`.

import { prefix, path } from "./api.js";
import { find, h, replace, setAttribute, setText, show, stateMark } from "./dom.js";
import { clock, counted } from "./format.js";
import { Live } from "./live.js";
import { rowsOf } from "./merge.js";
import { openPalette } from "./palette.js";
import { toast } from "./dialog.js";
import { silentNotice } from "./parts.js";
import { settings } from "./settings.js";

const PAGES = {
  overview: "overview",
  partitions: "partitions",
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
let cluster = parseEmbeddedCluster(); // the document embedded in the page, later the newest one
let servedBy = cluster?.servedBy ?? "";

function parseEmbeddedCluster() {
  try {
    return JSON.parse(find("#data")?.textContent || "null");
  } catch {
    return null; // the first live document replaces it
  }
}

// --- header ---------------------------------------------------------------------------------------------------------

const badge = find("#badge");
const health = find("#health");
const badgeMark = stateMark("connecting", "warning");
const healthMark = stateMark("", "unknown");
if (badge) replace(badge, badgeMark);
if (health) replace(health, healthMark);

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

const silent = silentNotice();
find("#page")?.prepend(silent);

function showHeader(document_) {
  silent.show(document_);
  const level = document_.verdict?.level ?? "unknown";
  healthMark.set(document_.verdict?.text ?? "cluster health unknown", level);
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

function initControls() {
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

// --- switch to another node when the serving node stops -------------------------------------------------------------

function switchNode(url) {
  const target = `${url}${location.pathname.slice(prefix.length)}${location.search}#switched-from=${encodeURIComponent(servedBy)}`;
  const load = () => location.replace(target);
  const open = find("dialog[open]");
  if (!open) load();
  else {
    toast(
      "The node that served this page does not respond. The page switches to another node when you close this dialog.",
      "warning",
    );
    open.addEventListener("close", load);
  }
}

function openLogin() {
  location.assign(path("/login", { next: location.pathname + location.search }));
}

function notifySwitch() {
  const match = /^#switched-from=(.*)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", location.pathname + location.search);
  let name = "";
  try {
    name = decodeURIComponent(match[1]);
  } catch {
    // a name that is not valid UTF-8 is ignored
  }
  toast(`${name ? `Node ${name}` : "The previous node"} does not respond. This page is now served by ${servedBy || "another node"}.`, "warning");
}

// --- start ----------------------------------------------------------------------------------------------------------

async function start() {
  initControls();
  notifySwitch();
  showClock();
  setInterval(showClock, 1000);
  const name = document.body.dataset.page;
  const live = new Live(home, { onState: showBadge, onNodeChange: switchNode, onLoginEnded: openLogin });
  const listeners = new Set();
  const notifyListeners = () => {
    for (const listener of listeners) listener(cluster);
  };
  settings.onChange(() => {
    for (const element of document.querySelectorAll("time")) element.refresh?.();
    if (cluster) notifyListeners();
  });
  const context = {
    live,
    main: find("#page"),
    path,
    /** Calls the listener with the cluster now (if known) and after each change. */
    onCluster(listener) {
      listeners.add(listener);
      if (cluster) listener(cluster);
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
        live.otherNodes = rowsOf(document_.nodes)
          .filter((node) => node.name !== document_.servedBy && node.state !== "down" && node.url)
          .map((node) => node.url);
        showHeader(document_);
        showBadge(live.state);
        notifyListeners();
      },
      (text) => toast(`Cluster state is not available: ${text}`, "bad"),
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
          "This page failed to load: ",
          error.message,
          ". Reload it. If the error persists, the browser is too old or a file of the console is missing.",
        ),
      );
      throw error;
    }
  }
  document.body.dataset.ready = "1";
}

start();
