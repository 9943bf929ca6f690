"""What the console costs and how fast it shows what happens: a broker with many queues, and real browser tabs.

    PYTHONPATH=tests python -m bench.console [--queues 10000] [--tabs 20] [--events 40] [--rest 20] [--loads 10]

    processor   of the broker while it rests: without a console, with one that nobody watches, with all tabs open
    event       from a message that is posted to the moment at which each tab has painted the new depth of its queue
    first paint from the request of a page to the moment at which the first rows with numbers are painted

Prints a JSON object for each measurement with its raw numbers, then each bar with what was measured. Exits with 1 if one
is missed. The browser runs on the same processors as the broker, so it delays what is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from browser.chromium import Chromium, Tab

from bench.broker import DOMAINS, Broker
from bench.rabbit import free_port
from bench.rawclient import WRITE, RawClient
from bmqtwist.console.service import PERIOD_S

DEEPEST = f"bmq://{DOMAINS['priority']}/deepest"
DEEP = 1_000  # messages in it before the first event
HEARD_S = 0.5
SETTLE_S = 3.0  # until a broker or its pages are at rest
EVENT_S = 0.6, 1.4  # between two events, at random, so that they fall on any moment of a period
PATIENCE_S = 60.0
EVENT_P95_MS, PAINT_MS, CORES_WATCHED, CORES_UNWATCHED = 500.0, 1000.0, 0.05, 0.002
PAGES = ("/", f"/queue?uri={quote(DEEPEST, safe='')}", "/queues", "/partitions")
# Notes when a text was painted for the first time: after the frame that follows the change.
WATCH = """() => {
  window.wanted = null; window.painted = null;
  const shown = () => document.querySelector('main').textContent;
  const look = () => {
    const wanted = window.wanted;
    if (wanted === null || window.painted !== null || !wanted.some((text) => shown().includes(text))) return;
    window.wanted = null;
    requestAnimationFrame(() => { const channel = new MessageChannel();
      channel.port1.onmessage = () => { window.painted = performance.timeOrigin + performance.now(); };
      channel.port2.postMessage(null); });
  };
  new MutationObserver(look).observe(document.querySelector('main'), {subtree: true, childList: true, characterData: true});
}"""
FIRST_ROWS = """() => {
  const look = () => {
    const cells = [...document.querySelectorAll('main tbody td')];
    if (!cells.some((cell) => /\\d/.test(cell.textContent))) return requestAnimationFrame(look);
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { window.useful = performance.now(); };
    channel.port2.postMessage(null);
  };
  requestAnimationFrame(look);
}"""


class WatchedBroker(Broker):
    """A broker with a console; `http_port` 0 = without one."""

    def __init__(self, root: Path, http_port: int) -> None:
        self.http_port = http_port
        super().__init__(root)

    def _json(self, name: str, value: object) -> None:
        if name == "etc/bmqbrkrcfg.json" and isinstance(value, dict):
            value["appConfig"]["bmqtwist"]["http"] = {"port": self.http_port}
            value["appConfig"]["stats"]["snapshotInterval"] = 0  # statistics of many queues would hide what is measured
        super()._json(name, value)

    @property
    def console(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.http_port}"


def processor_seconds(pid: int) -> float:
    """What a process has computed, all its threads together, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def cores(seconds: float, *pids: int) -> list[float]:
    """How much of one core each of the processes takes in the same time, in which nothing is done with them."""
    before, began = [processor_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    return [(processor_seconds(pid) - done) / (time.monotonic() - began) for pid, done in zip(pids, before, strict=True)]


def fill(port: int, count: int) -> RawClient:
    """Make so many queues with a message in each, and one with many; the client that has that one open as its queue 0."""
    client = RawClient(port, "bench-console")
    client.open(DEEPEST, 0, WRITE)
    for _ in range(DEEP // 100):
        client.send(client.put_event(0, [b"x" * 100] * 100)[0])
    for number in range(1, count):
        uri = f"bmq://{DOMAINS['priority']}/queue-{number:05}"
        client.open(uri, number, WRITE)
        client.send(client.put_event(number, [b"x" * 100])[0])
        client.close_queue(uri, number, WRITE)
    return client


class Kept(threading.Thread):
    """Takes what the broker sends to a client, so that it stays connected."""

    def __init__(self, client: RawClient) -> None:
        super().__init__(daemon=True)
        self._client, self._lock, self._over = client, threading.Lock(), threading.Event()
        self.start()

    def run(self) -> None:
        """From Thread."""
        while not self._over.wait(HEARD_S):
            with self._lock:
                self._client.events(0.0)

    def post(self) -> None:
        """One more message into the deepest queue."""
        with self._lock:
            self._client.send(self._client.put_event(0, [b"x" * 100])[0])

    def close(self) -> None:
        """No more."""
        self._over.set()
        self.join()
        self._client.close()


def share(values: Sequence[float], part: float) -> float:
    """A percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def events(client: Kept, tabs: list[Tab], queues: int, count: int, chance: random.Random) -> list[list[float]]:
    """Milliseconds until each tab has painted each event."""
    found = []
    for tab in tabs:
        tab.evaluate(WATCH)
    for number in range(1, count + 1):
        time.sleep(chance.uniform(*EVENT_S))
        for tab in tabs:
            tab.evaluate("(wanted) => { window.painted = null; window.wanted = wanted; }",
                         [f"{DEEP + number:,}", f"{DEEP + queues - 1 + number:,}"])  # of the queue, of its partition
        time.sleep(chance.uniform(0.0, PERIOD_S))  # the orders above end at any moment of a period
        posted = time.time() * 1000
        client.post()
        row = []
        for tab in tabs:
            tab.waitForFunction("() => window.painted !== null", None, {"timeout": PATIENCE_S * 1000, "polling": 50})
            row.append(round(tab.evaluate("() => window.painted") - posted, 1))
        found.append(row)
    return found


def first_paints(browser: Chromium, url: str, path: str, count: int) -> list[float]:
    """Milliseconds from the request to the first rows, in a browser that has seen nothing of the console before."""
    found = []
    for _ in range(count):
        tab = browser.open()
        tab.addInitScript(FIRST_ROWS)
        tab.goto(url + path)
        tab.waitForFunction("() => window.useful !== undefined", None, {"timeout": PATIENCE_S * 1000})
        found.append(round(tab.evaluate("() => window.useful"), 1))
        tab.end()
    return found


def tell(what: str, **numbers: Any) -> None:
    """One JSON object."""
    print(json.dumps({"measured": what, **numbers}), flush=True)


@contextmanager
def filled_broker(http_port: int, queues: int) -> Iterator[tuple[WatchedBroker, Kept]]:
    """A broker with that many queues, and the client that has the deepest one open."""
    with tempfile.TemporaryDirectory(prefix="bmq-console-") as name:
        with WatchedBroker(Path(name), http_port) as broker:
            client = Kept(fill(broker.port, queues))
            try:
                yield broker, client
            finally:
                client.close()


def at_rest(queues: int, rest: float) -> tuple[float, float]:
    """What a broker takes without a console, and what one takes with a console that nobody watches, side by side."""
    with filled_broker(0, queues) as (without, _), filled_broker(free_port(), queues) as (unwatched, _):
        time.sleep(SETTLE_S)
        found = cores(rest, without.pid, unwatched.pid)
        return found[0], found[1]


def measure(options: argparse.Namespace) -> list[tuple[str, float, float, str]]:
    """All of it: what was measured, the number, its bar and the unit."""
    bare, unwatched = at_rest(options.queues, options.rest)
    tell("broker at rest without a console", cores=round(bare, 5))
    tell("broker at rest beside it, nobody watches", cores=round(unwatched, 5))
    with filled_broker(free_port(), options.queues) as (broker, client):
        browser = Chromium()
        try:
            paints = {path: first_paints(browser, broker.console, path, options.loads) for path in PAGES}
            for path, each in paints.items():
                tell("first useful paint, ms", page=path, all=each)
            tabs = [browser.open() for _ in range(options.tabs)]
            for number, tab in enumerate(tabs):
                tab.goto(broker.console + PAGES[number % len(PAGES)])
            for tab in tabs:
                tab.waitForFunction("() => document.body.dataset.live === 'live'", None, {"timeout": PATIENCE_S * 1000})
            time.sleep(SETTLE_S)
            watched, = cores(options.rest, broker.pid)
            tell("broker at rest, all tabs open", tabs=options.tabs, cores=round(watched, 5))
            rows = events(client, tabs, options.queues, options.events, random.Random(1))
            for page in range(len(PAGES)):
                tell("event to pixel, ms", page=PAGES[page], all=[row[page::len(PAGES)] for row in rows])
        finally:
            browser.close()
    seen = [each for row in rows for each in row]
    shown = [each for row in paints.values() for each in row]
    tell("event to pixel, ms", p50=share(seen, 0.5), p95=share(seen, 0.95), max=max(seen), count=len(seen))
    tell("first useful paint, ms", p50=share(shown, 0.5), p95=share(shown, 0.95), max=max(shown), count=len(shown))
    return [(f"event to pixel, p95 of {len(seen)}, {options.tabs} tabs", share(seen, 0.95), EVENT_P95_MS, "ms"),
            (f"first useful paint, p95 of {len(shown)}, {options.queues:,} queues", share(shown, 0.95), PAINT_MS, "ms"),
            (f"processor of the broker for {options.tabs} tabs", max(0.0, watched - unwatched), CORES_WATCHED, "cores"),
            ("processor of the broker for a console that nobody watches", max(0.0, unwatched - bare), CORES_UNWATCHED,
             "cores")]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--tabs", type=int, default=20)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of each look at the processor")
    parser.add_argument("--loads", type=int, default=10, help="of each page")
    bars = measure(parser.parse_args())
    for what, found, bar, unit in bars:
        print(f"{'ok    ' if found <= bar else 'MISSED'} {what}: {found:.4g} {unit}, at most {bar:g} {unit}")
    return 0 if all(found <= bar for _, found, bar, _ in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
