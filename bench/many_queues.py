"""Benchmark of many queues and connections: CPU per message, latency and memory of the broker.

    python -m bench.many_queues [--queues 1,100,10000] [--connections 1] [--rate 5000] [--seconds 10] [--size 1024]

For each number of queues, starts a new broker and one client process, which distributes the queues over its
connections, opens them for reading and writing, posts `rate` messages per second to the queues in a long cycle, and
confirms all messages. `--rate 10` measures queues that are rarely used. One JSON object per line: CPU per message, used
cores, latency, memory, and the longest turn. Queues without traffic are measured by `idle_queues.py`. Percentiles are
computed by `gauge.py`.
"""

from __future__ import annotations

import argparse
import json
import select
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.broker import DOMAINS, Broker
from bench.gauge import Samples, busy_seconds, cpu_seconds, memory_mib
from bench.rawclient import READ, WRITE, RawClient, pushes
from bmqtwist.wire.fast import CONFIRM_MESSAGE, EventType, items_event

_STAMP = struct.Struct("=QI")  # time of the PUT, ns, and queue id
_STRIDE = 7919  # prime: distance from one queue to the next
_WARM_UP_SHARE = 0.2
_DRAIN_S = 10.0
_CONNECT_S = 0.0025  # between two connections: a broker accepts 500 per second from one address


class ManyQueuesClient:
    """Connections of one process, each with a part of the queues open for reading and writing."""

    def __init__(self, port: int, connections: int, queues: int) -> None:
        self.clients = []
        for _ in range(connections):
            self.clients.append(RawClient(port, "bench-many-queues"))
            time.sleep(_CONNECT_S)
        self._by_fd = {client.fileno(): client for client in self.clients}
        self._poll = select.epoll()
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)
        self.queues = queues
        for number in range(queues):
            client, q_id = self._of(number)
            client.open(f"bmq://{DOMAINS['priority']}/many.{number}", q_id, READ | WRITE)
            client.consume(q_id, number)
        self.samples, self.posted, self.received = Samples(), 0, 0

    def _of(self, queue: int) -> tuple[RawClient, int]:
        return self.clients[queue % len(self.clients)], queue // len(self.clients)

    def post(self, size: int) -> None:
        """Post one message to the next queue."""
        client, q_id = self._of(self.posted * _STRIDE % self.queues)
        client.send(client.put_event(q_id, [_STAMP.pack(time.monotonic_ns(), q_id).ljust(size, b"x")])[0])
        self.posted += 1

    def receive(self, seconds: float) -> None:
        """Wait at most `seconds` for data, and confirm the received messages."""
        for fd, _ in self._poll.poll(max(0.0, seconds)):
            client = self._by_fd[fd]
            for buffer, (kind, _, start, end) in client.events():
                if kind == EventType.PUSH:
                    self._confirm(client, buffer, start, end)

    def _confirm(self, client: RawClient, buffer: bytes, start: int, end: int) -> None:
        now, confirms = time.monotonic_ns(), []
        for guid, data in pushes(buffer, start, end):
            posted, q_id = _STAMP.unpack_from(buffer, data)
            self.samples.pairs.extend((posted, now))
            confirms.append(CONFIRM_MESSAGE.pack(q_id, guid, 0))
        self.received += len(confirms)
        client.send(items_event(EventType.CONFIRM, confirms))


def run(queues: int, connections: int, rate: float, seconds: float, size: int) -> dict[str, Any]:
    """Measure one number of queues; return a row of results."""
    with tempfile.TemporaryDirectory(prefix="bmq-many-") as name, Broker(Path(name)) as broker:
        empty = memory_mib(broker.pid)["now"]
        began = time.monotonic()
        client = ManyQueuesClient(broker.port, connections, queues)
        opened = time.monotonic() - began
        opening = broker.loop_stalls_ms()
        start, busy, cpu = time.monotonic(), busy_seconds(), sum(cpu_seconds(broker.pid))
        while (now := time.monotonic()) < start + seconds:
            due = start + client.posted / rate
            if now >= due:
                client.post(size)
                due += 1 / rate
            client.receive(min(due, start + seconds) - time.monotonic())
        took = time.monotonic() - start
        cpu, busy = sum(cpu_seconds(broker.pid)) - cpu, busy_seconds() - busy
        deadline = time.monotonic() + _DRAIN_S
        while client.received < client.posted and time.monotonic() < deadline:
            client.receive(0.1)
        return {"queues": queues, "connections": connections, "messages": client.posted,
                "messages_per_s": round(client.posted / took), "received": client.received,
                "cpu_us_per_message": round(cpu / client.posted * 1e6, 1), "cores": round(cpu / took, 3),
                "busy_cores_of_all": round(busy / took, 2),
                "latency_ms": client.samples.percentiles_ms(int((start + seconds * _WARM_UP_SHARE) * 1e9)),
                "rss_empty_mib": empty, "rss_mib": memory_mib(broker.pid)["now"], "opened_s": round(opened, 1),
                "stalls_ms_opening": opening, "loop_stalls_ms": broker.loop_stalls_ms()}


def main() -> int:
    """Run from the command line; return 1 if a message was not delivered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", default="1,100,10000", help="numbers of queues (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=1, help="connections of the client (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5000.0, help="messages/s (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="posting time (default: %(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="payload bytes (default: %(default)s)")
    options = parser.parse_args()
    complete = True
    for queues in map(int, options.queues.split(",")):
        row = run(queues, min(options.connections, queues), options.rate, options.seconds, options.size)
        complete = complete and row["received"] == row["messages"]
        print(json.dumps(row), flush=True)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
