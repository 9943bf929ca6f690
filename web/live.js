// Live documents over one WebSocket: a snapshot, then numbered patches. After a lost connection each subscription resumes;
// when the node that served the page stops, the page connects to another node.

import { merge } from "./merge.js";

const STALE_MS = 5000; // without a message of the node
const GONE_MS = 20000;
const CONNECT_MS = 2500; // until the WebSocket of a node is open
const WAITS_MS = [250, 500, 1000, 2000, 3000];
const GOING_AWAY = 1001; // close codes of a node
const LOGIN_ENDED = 4401;
const OWN_TRIES = 2; // before other nodes are tried

export class Live {
  #home;
  #subscriptions = new Map();
  #socket = null;
  #next = 1;
  #heard = 0;
  #tries = 0;
  #state = "connecting";
  #peers = [];
  #at;
  #timer = null;
  #onState;
  #onPeer;
  #onLogin;
  #told = false;
  #watch;

  /** home: base URL of this console; onState(state, url) when it changes; onPeer(url) when another node
   *  sends documents; onLogin() when the login has ended. */
  constructor(home, { onState = () => {}, onPeer = () => {}, onLogin = () => {} } = {}) {
    this.#home = home;
    this.#at = home;
    this.#onState = onState;
    this.#onPeer = onPeer;
    this.#onLogin = onLogin;
  }

  start() {
    this.#watch = setInterval(() => this.#judge(), 500);
    addEventListener("online", () => this.#soon(0));
    this.#connect();
  }

  stop() {
    clearInterval(this.#watch);
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  get state() {
    return this.#state;
  }

  /** Base URLs of the other nodes, from the last document. */
  set peers(urls) {
    this.#peers = urls.map(base).filter((url) => url && url !== this.#home && sameScheme(url, this.#home));
  }

  /** Calls onDocument(document) with each new state of the topic; close() ends it, change(params) requests another part. */
  subscribe(topic, params, onDocument, onError = () => {}) {
    const one = { topic, params, onDocument, onError, id: this.#next++, seq: 0, document: undefined, before: null };
    this.#subscriptions.set(one.id, one);
    this.#ask(one);
    return {
      close: () => this.#drop(one),
      change: (wanted) => {
        if (!this.#subscriptions.has(one.id)) return;
        const old = one.seq ? one.id : one.before;
        if (!one.seq) this.#forget(one.id);
        this.#subscriptions.delete(one.id);
        Object.assign(one, { params: wanted, id: this.#next++, seq: 0, stream: undefined, before: old });
        this.#subscriptions.set(one.id, one);
        this.#ask(one);
      },
    };
  }

  #drop(one) {
    this.#subscriptions.delete(one.id);
    this.#forget(one.id);
    if (one.before !== null) this.#forget(one.before);
  }

  #forget(id) {
    this.#send({ unsubscribe: id });
  }

  #ask(one) {
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
      socket = new WebSocket(`${this.#at.replace(/^http/, "ws")}/api/v1/live`);
    } catch {
      this.#failed();
      return;
    }
    this.#socket = socket;
    const slow = setTimeout(() => this.#abandon(socket), CONNECT_MS);
    const end = (event) => {
      clearTimeout(slow);
      if (event.code === LOGIN_ENDED) this.#onLogin();
      if (event.code === GOING_AWAY && this.#peers.length > 0) this.#tries = OWN_TRIES; // the node announced its stop: try another node at once
      this.#abandon(socket);
    };
    socket.addEventListener("open", () => {
      clearTimeout(slow);
      this.#heard = performance.now();
      for (const one of this.#subscriptions.values()) {
        one.before = null;
        this.#ask(one);
      }
    });
    socket.addEventListener("message", (event) => this.#take(event.data));
    socket.addEventListener("error", end);
    socket.addEventListener("close", end);
  }

  // Does not wait for the closing handshake: a stopped node never answers it.
  #abandon(socket) {
    if (this.#socket !== socket) return;
    socket.close();
    this.#failed();
  }

  #failed() {
    this.#socket = null;
    this.#say("reconnecting");
    this.#tries += 1;
    const choices = [...this.#peers, this.#home];
    const beyond = this.#tries - 1 - OWN_TRIES; // tries after those at this console
    this.#at = beyond < 0 ? this.#home : choices[beyond % choices.length];
    const round = beyond < 0 ? this.#tries - 1 : Math.floor(beyond / choices.length);
    const wait = WAITS_MS[Math.min(round, WAITS_MS.length - 1)];
    this.#soon(wait + Math.random() * wait * 0.3);
  }

  #soon(wait) {
    if (this.#socket !== null) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #take(text) {
    this.#heard = performance.now();
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // not a message of the console
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
      if (one.before !== null) this.#forget(one.before);
      one.before = null;
    } else if (one.seq && message.seq === one.seq + 1) one.document = merge(one.document, message.patch);
    else {
      one.seq = 0; // a patch is missing: request a snapshot
      this.#ask(one);
      return;
    }
    one.seq = message.seq;
    this.#tries = 0;
    this.#say("live");
    if (this.#at !== this.#home && !this.#told) {
      this.#told = true;
      this.#onPeer(this.#at);
    }
    one.onDocument(one.document);
  }

  #judge() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    if (performance.now() - this.#heard > STALE_MS) this.#say("stale");
    if (performance.now() - this.#heard > GONE_MS) this.#abandon(this.#socket); // the connection is dead
  }

  #say(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#onState(state, this.#at);
  }
}

function base(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:"].includes(url.protocol) ? `${url.origin}${url.pathname.replace(/\/$/, "")}` : null;
  } catch {
    return null; // no URL, or an invalid one
  }
}

function sameScheme(one, other) {
  return one.split(":")[0] === other.split(":")[0];
}
