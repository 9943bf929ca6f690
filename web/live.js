// Live documents over one WebSocket: a snapshot, then numbered patches. After a lost connection each subscription resumes.
// When the node that served the page does not respond, the page connects to another node. `app.js` opens it; `merge.js`
// applies the patches. The server side is `bmqtwist/console/live.py` and `hub.py`.

import { merge } from "./merge.js";

const STALE_MS = 5000; // without a message: the data is shown as stale
const DEAD_MS = 8000; // without a message: the connection is closed and another node is tried
const CONNECT_MS = 2500; // until the WebSocket of a node is open
const RETRY_DELAYS_MS = [250, 500, 1000, 2000, 3000];
const GOING_AWAY = 1001; // close code of a node that stops
const LOGIN_ENDED = 4401; // close code when the login has ended
const HOME_ATTEMPTS = 2; // at this console before other nodes are tried

export class Live {
  #home;
  #subscriptions = new Map();
  #socket = null;
  #nextId = 1;
  #lastMessageAt = 0;
  #attempts = 0;
  #state = "connecting";
  #otherNodes = [];
  #url;
  #timer = null;
  #onState;
  #onNodeChange;
  #onLoginEnded;
  #changeReported = false;
  #monitor;

  /** home: base URL of this console; onState(state, url) when it changes; onNodeChange(url) when another node
   *  sends documents; onLoginEnded() when the login has ended. */
  constructor(home, { onState = () => {}, onNodeChange = () => {}, onLoginEnded = () => {} } = {}) {
    this.#home = home;
    this.#url = home;
    this.#onState = onState;
    this.#onNodeChange = onNodeChange;
    this.#onLoginEnded = onLoginEnded;
  }

  start() {
    this.#monitor = setInterval(() => this.#checkConnection(), 500);
    addEventListener("online", () => this.#scheduleConnect(0));
    this.#connect();
  }

  stop() {
    clearInterval(this.#monitor);
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  get state() {
    return this.#state;
  }

  /** Base URLs of the other nodes, from the last document. */
  set otherNodes(urls) {
    this.#otherNodes = urls.map(baseUrl).filter((url) => url && url !== this.#home && sameScheme(url, this.#home));
  }

  /** Subscribes to a topic: calls onDocument(document) with each new state. close() ends the subscription; change(params)
   *  replaces its parameters. `replaces`: id of the previous subscription, which stays until the new one has a snapshot. */
  subscribe(topic, params, onDocument, onError = () => {}) {
    const one = { topic, params, onDocument, onError, id: this.#nextId++, seq: 0, document: undefined, replaces: null };
    this.#subscriptions.set(one.id, one);
    this.#sendSubscribe(one);
    return {
      close: () => this.#remove(one),
      change: (wanted) => {
        if (!this.#subscriptions.has(one.id)) return;
        const old = one.seq ? one.id : one.replaces;
        if (!one.seq) this.#sendUnsubscribe(one.id);
        this.#subscriptions.delete(one.id);
        Object.assign(one, { params: wanted, id: this.#nextId++, seq: 0, stream: undefined, replaces: old });
        this.#subscriptions.set(one.id, one);
        this.#sendSubscribe(one);
      },
    };
  }

  #remove(one) {
    this.#subscriptions.delete(one.id);
    this.#sendUnsubscribe(one.id);
    if (one.replaces !== null) this.#sendUnsubscribe(one.replaces);
  }

  #sendUnsubscribe(id) {
    this.#send({ unsubscribe: id });
  }

  #sendSubscribe(one) {
    const resume = one.seq ? { resume: { seq: one.seq, stream: one.stream } } : {};
    this.#send({ subscribe: one.topic, ...one.params, id: one.id, ...resume });
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #connect() {
    clearTimeout(this.#timer);
    let socket;
    try {
      socket = new WebSocket(`${this.#url.replace(/^http/, "ws")}/api/v1/live`);
    } catch {
      this.#onDisconnected();
      return;
    }
    this.#socket = socket;
    const timeout = setTimeout(() => this.#disconnect(socket), CONNECT_MS);
    const onEnd = (event) => {
      clearTimeout(timeout);
      if (event.code === LOGIN_ENDED) this.#onLoginEnded();
      if (event.code === GOING_AWAY) this.#preferOtherNodes(); // the node announced its stop
      this.#disconnect(socket);
    };
    socket.addEventListener("open", () => {
      clearTimeout(timeout);
      this.#lastMessageAt = performance.now();
      for (const one of this.#subscriptions.values()) {
        one.replaces = null;
        this.#sendSubscribe(one);
      }
    });
    socket.addEventListener("message", (event) => this.#onMessage(event.data));
    socket.addEventListener("error", onEnd);
    socket.addEventListener("close", onEnd);
  }

  /** Tries another node next, if there is one. */
  #preferOtherNodes() {
    if (this.#otherNodes.length > 0) this.#attempts = HOME_ATTEMPTS;
  }

  // Does not wait for the closing handshake: a stopped node never answers it.
  #disconnect(socket) {
    if (this.#socket !== socket) return;
    socket.close();
    this.#onDisconnected();
  }

  #onDisconnected() {
    this.#socket = null;
    this.#setState("reconnecting");
    this.#attempts += 1;
    const choices = [...this.#otherNodes, this.#home];
    const furtherAttempts = this.#attempts - 1 - HOME_ATTEMPTS; // negative while this console is tried
    this.#url = furtherAttempts < 0 ? this.#home : choices[furtherAttempts % choices.length];
    const round = furtherAttempts < 0 ? this.#attempts - 1 : Math.floor(furtherAttempts / choices.length);
    const delay = RETRY_DELAYS_MS[Math.min(round, RETRY_DELAYS_MS.length - 1)];
    this.#scheduleConnect(delay + Math.random() * delay * 0.3);
  }

  #scheduleConnect(delay) {
    if (this.#socket !== null) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), delay);
  }

  #onMessage(text) {
    this.#lastMessageAt = performance.now();
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // not JSON
    }
    const one = this.#subscriptions.get(message.id);
    if (message.error !== undefined) {
      one?.onError(String(message.error));
      return;
    }
    if (one === undefined) return;
    if (message.snapshot !== undefined) {
      one.document = message.snapshot;
      one.stream = message.stream;
      if (one.replaces !== null) this.#sendUnsubscribe(one.replaces);
      one.replaces = null;
    } else if (one.seq && message.seq === one.seq + 1) one.document = merge(one.document, message.patch);
    else {
      one.seq = 0; // a patch is missing: request a snapshot
      this.#sendSubscribe(one);
      return;
    }
    one.seq = message.seq;
    this.#attempts = 0;
    this.#setState("live");
    if (this.#url !== this.#home && !this.#changeReported) {
      this.#changeReported = true;
      this.#onNodeChange(this.#url);
    }
    one.onDocument(one.document);
  }

  #checkConnection() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    if (performance.now() - this.#lastMessageAt > STALE_MS) this.#setState("stale");
    if (performance.now() - this.#lastMessageAt > DEAD_MS) {
      this.#preferOtherNodes(); // a hung node accepts connections, too
      this.#disconnect(this.#socket);
    }
  }

  #setState(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#onState(state, this.#url);
  }
}

function baseUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:"].includes(url.protocol) ? `${url.origin}${url.pathname.replace(/\/$/, "")}` : null;
  } catch {
    return null; // an invalid URL
  }
}

function sameScheme(one, other) {
  return one.split(":")[0] === other.split(":")[0];
}
