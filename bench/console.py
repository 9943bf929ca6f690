"""Benchmark of the web console with many queues and real browser tabs: CPU of the broker, and time until events are shown.

    PYTHONPATH=tests python -m bench.console [--queues 10000] [--tabs 20] [--events 40] [--rest 20] [--loads 10]

    CPU          of an idle broker: without a console, with a console without tabs, with all tabs open
    event        from a PUT until each tab has painted the new depth of the queue
    first paint  from the request of a page until the first rows with numbers are painted

Prints a JSON object with the raw numbers of each measurement, then each limit with the measured value; the exit status is 1
if a limit is exceeded. The browser shares the processors with the broker, which increases all times. The broker is started
by `broker.py`; the pages are tested in tests/browser.
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
DEEP = 1_000  # messages in the deepest queue before the first event
RECEIVE_S = 0.5  # between two reads of the connection
SETTLE_S = 3.0  # until a broker and its pages are idle
EVENT_S = 0.6, 1.4  # random time between two events, so that they are not in phase with the update period
TIMEOUT_S = 60.0
EVENT_P95_MS, PAINT_MS, CORES_WITH_TABS, CORES_WITHOUT_TABS = 500.0, 1000.0, 0.05, 0.002  # limits
PAGES = ("/", f"/queue?uri={quote(DEEPEST, safe='')}", "/queues", "/partitions")
# Stores the time at which a text was first painted: after the frame that follows the change.
WATCH = """() => {
  window.wanted = null; window.painted = null;
  const shown = () => document.querySelector('main').textContent;
  const check = () => {
    const wanted = window.wanted;
    if (wanted === null || window.painted !== null || !wanted.some((text) => shown().includes(text))) return;
    window.wanted = null;
    requestAnimationFrame(() => { const channel = new MessageChannel();
      channel.port1.onmessage = () => { window.painted = performance.timeOrigin + performance.now(); };
      channel.port2.postMessage(null); });
  };
  new MutationObserver(check).observe(document.querySelector('main'), {subtree: true, childList: true, characterData: true});
}"""
FIRST_ROWS = """() => {
  const check = () => {
    const cells = [...document.querySelectorAll('main tbody td')];
    if (!cells.some((cell) => /\\d/.test(cell.textContent))) return requestAnimationFrame(check);
    const channel = new MessageChannel();
    channel.port1.onmessage = () => { window.useful = performance.now(); };
    channel.port2.postMessage(null);
  };
  requestAnimationFrame(check);
}"""


class ConsoleBroker(Broker):
    """A broker with a console; `http_port` 0 = without console."""

    def __init__(self, root: Path, http_port: int) -> None:
        self.http_port = http_port
        super().__init__(root)

    def _json(self, name: str, value: object) -> None:
        if name == "etc/bmqbrkrcfg.json" and isinstance(value, dict):
            value["appConfig"]["bmqtwist"]["http"] = {"port": self.http_port, "localRole": "admin"}
            value["appConfig"]["stats"]["snapshotInterval"] = 0  # the statistics of many queues would dominate the CPU time
        super()._json(name, value)

    @property
    def console(self) -> str:
        """URL of the console."""
        return f"http://127.0.0.1:{self.http_port}"


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process with all its threads, in seconds with nanosecond resolution."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def cores(seconds: float, *pids: int) -> list[float]:
    """Return the average number of cores that each of the idle processes uses within `seconds`."""
    before, began = [processor_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    return [(processor_seconds(pid) - done) / (time.monotonic() - began) for pid, done in zip(pids, before, strict=True)]


def fill(port: int, count: int) -> RawClient:
    """Create `count` queues with one message each, and the deepest queue; return its client, with queue id 0."""
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


class ConnectedClient(threading.Thread):
    """Reads the events that the broker sends to a client, so that it remains connected."""

    def __init__(self, client: RawClient) -> None:
        super().__init__(daemon=True)
        self._client, self._lock, self._closed = client, threading.Lock(), threading.Event()
        self.start()

    def run(self) -> None:
        """Thread: read the connection every RECEIVE_S, so that heartbeats are answered."""
        while not self._closed.wait(RECEIVE_S):
            with self._lock:
                self._client.events(0.0)

    def post(self) -> None:
        """Post one message to the deepest queue."""
        with self._lock:
            self._client.send(self._client.put_event(0, [b"x" * 100])[0])

    def close(self) -> None:
        """Disconnect."""
        self._closed.set()
        self.join()
        self._client.close()


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def measure_events(client: ConnectedClient, tabs: list[Tab], queues: int, count: int,
                   chance: random.Random) -> list[list[float]]:
    """Return, for each event, the milliseconds until each tab has painted it."""
    found = []
    for tab in tabs:
        tab.evaluate(WATCH)
    for number in range(1, count + 1):
        time.sleep(chance.uniform(*EVENT_S))
        for tab in tabs:
            tab.evaluate("(wanted) => { window.painted = null; window.wanted = wanted; }",
                         [f"{DEEP + number:,}", f"{DEEP + queues - 1 + number:,}"])  # depth of queue and partition
        time.sleep(chance.uniform(0.0, PERIOD_S))  # independent of the update period
        posted = time.time() * 1000
        client.post()
        row = []
        for tab in tabs:
            tab.waitForFunction("() => window.painted !== null", None, {"timeout": TIMEOUT_S * 1000, "polling": 50})
            row.append(round(tab.evaluate("() => window.painted") - posted, 1))
        found.append(row)
    return found


def measure_first_paints(browser: Chromium, url: str, path: str, count: int) -> list[float]:
    """Return the milliseconds from the request to the first rows, in new browser contexts without cache."""
    found = []
    for _ in range(count):
        tab = browser.open()
        tab.addInitScript(FIRST_ROWS)
        tab.goto(url + path)
        tab.waitForFunction("() => window.useful !== undefined", None, {"timeout": TIMEOUT_S * 1000})
        found.append(round(tab.evaluate("() => window.useful"), 1))
        tab.end()
    return found


def print_measurement(what: str, **numbers: Any) -> None:
    """Print one JSON object."""
    print(json.dumps({"measured": what, **numbers}), flush=True)


@contextmanager
def filled_broker(http_port: int, queues: int) -> Iterator[tuple[ConsoleBroker, ConnectedClient]]:
    """Run a broker with `queues` queues, and the client of the deepest one."""
    with tempfile.TemporaryDirectory(prefix="bmq-console-") as name:
        with ConsoleBroker(Path(name), http_port) as broker:
            client = ConnectedClient(fill(broker.port, queues))
            try:
                yield broker, client
            finally:
                client.close()


def measure_idle(queues: int, rest: float) -> tuple[float, float]:
    """Return the cores that an idle broker uses without a console, and with a console without tabs, measured together."""
    with filled_broker(0, queues) as (without, _), filled_broker(free_port(), queues) as (without_tabs, _):
        time.sleep(SETTLE_S)
        found = cores(rest, without.pid, without_tabs.pid)
        return found[0], found[1]


def measure(options: argparse.Namespace) -> list[tuple[str, float, float, str]]:
    """Run all measurements; return (description, value, limit, unit) of each."""
    without_console, without_tabs = measure_idle(options.queues, options.rest)
    print_measurement("idle broker without console", cores=round(without_console, 5))
    print_measurement("idle broker with console, no tabs", cores=round(without_tabs, 5))
    with filled_broker(free_port(), options.queues) as (broker, client):
        browser = Chromium()
        try:
            paints = {path: measure_first_paints(browser, broker.console, path, options.loads) for path in PAGES}
            for path, each in paints.items():
                print_measurement("first paint, ms", page=path, all=each)
            tabs = [browser.open() for _ in range(options.tabs)]
            for number, tab in enumerate(tabs):
                tab.goto(broker.console + PAGES[number % len(PAGES)])
            for tab in tabs:
                tab.waitForFunction("() => document.body.dataset.live === 'live'", None, {"timeout": TIMEOUT_S * 1000})
            time.sleep(SETTLE_S)
            with_tabs, = cores(options.rest, broker.pid)
            print_measurement("idle broker, all tabs open", tabs=options.tabs, cores=round(with_tabs, 5))
            rows = measure_events(client, tabs, options.queues, options.events, random.Random(1))
            for page in range(len(PAGES)):
                print_measurement("event to paint, ms", page=PAGES[page], all=[row[page::len(PAGES)] for row in rows])
        finally:
            browser.close()
    seen = [each for row in rows for each in row]
    shown = [each for row in paints.values() for each in row]
    for what, times in (("event to paint, ms", seen), ("first paint, ms", shown)):
        print_measurement(what, p50=percentile(times, 0.5), p95=percentile(times, 0.95), max=max(times), count=len(times))
    return [(f"event to paint, p95 of {len(seen)}, {options.tabs} tabs", percentile(seen, 0.95), EVENT_P95_MS, "ms"),
            (f"first paint, p95 of {len(shown)}, {options.queues:,} queues", percentile(shown, 0.95), PAINT_MS, "ms"),
            (f"CPU of the broker for {options.tabs} tabs", max(0.0, with_tabs - without_tabs), CORES_WITH_TABS, "cores"),
            ("CPU of the broker for a console without tabs", max(0.0, without_tabs - without_console), CORES_WITHOUT_TABS,
             "cores")]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000, help="number of queues (default: %(default)s)")
    parser.add_argument("--tabs", type=int, default=20, help="open browser tabs (default: %(default)s)")
    parser.add_argument("--events", type=int, default=40, help="measured events (default: %(default)s)")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of each CPU measurement (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=10, help="loads of each page (default: %(default)s)")
    limits = measure(parser.parse_args())
    for what, found, limit, unit in limits:
        print(f"{'ok      ' if found <= limit else 'EXCEEDED'} {what}: {found:.4g} {unit}, at most {limit:g} {unit}")
    return 0 if all(found <= limit for _, found, limit, _ in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
