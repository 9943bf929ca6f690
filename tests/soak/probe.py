"""Client process that measures the time from each post to its acknowledgement.

    python -m soak.probe '{"broker": "tcp://...", "queues": [...], "out": "..."}'

It posts a message to each queue every `PERIOD_S` seconds until its standard input ends, then writes for each post (time of
the post on the monotonic clock in s, duration in s, status). Started by `cluster_load.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from bmqtwist.sdk import PostsFailed, aio

PERIOD_S = 0.05


class Probe:
    """A session, its posts and their results by queue."""

    def __init__(self, broker: str, queues: list[str]) -> None:
        self._broker = broker
        self.results: dict[str, list[tuple[float, float, str]]] = {uri: [] for uri in queues}
        self.stopping = threading.Event()

    def wait_for_input_end(self) -> None:
        """Wait for the end of the standard input."""
        sys.stdin.read()
        self.stopping.set()

    def _on_ack(self, uri: str, posted_at: float, ack: Any) -> None:
        self.results[uri].append((posted_at, time.monotonic() - posted_at, ack.status.value))

    async def run(self) -> None:
        """Post until the end of the standard input, then wait for all acknowledgements."""
        async with aio.Session(self._broker) as session:
            queues = [await session.open(uri, write=True) for uri in self.results]
            while not self.stopping.is_set():
                for queue in queues:
                    queue.post_nowait(b"probe", on_ack=partial(self._on_ack, queue.uri, time.monotonic()))
                await asyncio.sleep(PERIOD_S)
            for queue in queues:
                with contextlib.suppress(PostsFailed):  # their status is in the results
                    await queue.flush()


def main(text: str) -> None:
    """Run the client of the specification `text` in JSON."""
    spec = json.loads(text)
    probe = Probe(spec["broker"], spec["queues"])
    threading.Thread(target=probe.wait_for_input_end, daemon=True).start()
    asyncio.run(probe.run())
    Path(spec["out"]).write_text(json.dumps(probe.results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
