"""A client that measures how long a message waits for its acknowledgement, all the time.

    python -m soak.probe '{"broker": "tcp://...", "queues": [...], "out": "..."}'

It posts a message to each queue every `PERIOD_S` seconds until its standard input ends, and writes down (seconds on the
machine's monotonic clock, seconds that it took, status) of each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from bmqtwist.sdk import aio

PERIOD_S = 0.05


class Probe:
    """One session, its posts, and what became of them by queue."""

    def __init__(self, broker: str, queues: list[str]) -> None:
        self._broker = broker
        self.taken: dict[str, list[tuple[float, float, str]]] = {uri: [] for uri in queues}
        self.stopping = threading.Event()

    def watch(self) -> None:
        """Wait for the end of the standard input."""
        sys.stdin.read()
        self.stopping.set()

    def _told(self, uri: str, began: float, ack: Any) -> None:
        self.taken[uri].append((began, time.monotonic() - began, ack.status.value))

    async def run(self) -> None:
        """To the end."""
        async with aio.Session(self._broker) as session:
            queues = [await session.open(uri, write=True) for uri in self.taken]
            while not self.stopping.is_set():
                for queue in queues:
                    queue.post_nowait(b"probe", on_ack=partial(self._told, queue.uri, time.monotonic()))
                await asyncio.sleep(PERIOD_S)
            for queue in queues:
                await queue.flush()


def main(text: str) -> None:
    """One client."""
    spec = json.loads(text)
    probe = Probe(spec["broker"], spec["queues"])
    threading.Thread(target=probe.watch, daemon=True).start()
    asyncio.run(probe.run())
    Path(spec["out"]).write_text(json.dumps(probe.taken), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
