"""Benchmark of the message path through session, queue and partition in one process: real files, no sockets or reactor.

    python -m bench.hotpath [--messages 200000] [--size 1024] [--profile FILE] [--compare TREE [--rounds 60]]

Feeds prebuilt PUT events to a producer's session and CONFIRM events to a consumer's, with a turn after each chunk, for
several numbers of events per chunk, and prints the CPU time per message. `py-spy record -- python -m bench.hotpath` or
`--profile` (cProfile) profile it.

`--compare`: the checkout of another commit, with a compiled broker in both (`make fast`). They alternate on one processor,
some hundredths of a second each, so that changes of the machine affect both. Throughput with sockets and clients is
measured by `run.py`.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent.parent
ROOT = Path(os.environ.get("BMQ_TREE", HERE))  # checkout whose test kit builds the broker
sys.path.insert(0, str(ROOT / "tests"))

from crc32c import crc32c  # noqa: E402
from kit.memory import MemoryLink, MemoryWorld  # noqa: E402

from bmqtwist.storage.files import RealDisk  # noqa: E402
from bmqtwist.wire.fast import (  # noqa: E402
    ACK_REQUESTED,
    CONFIRM_MESSAGE,
    EventType,
    event_header,
    items_event,
    put_message,
)

# (name, PUT events per chunk, messages per PUT event, CONFIRMs per event)
SHAPES = (("1 event per chunk", 1, 1, 1), ("5 events per chunk", 5, 1, 1), ("20 events per chunk", 20, 1, 1),
          ("events of 20", 1, 20, 20))
ROUND_MESSAGES = 2000  # per round of a comparison
WARM_UP_ROUNDS = 2


class DiscardingLink(MemoryLink):
    """A link that discards its output."""

    def write(self, data: bytes) -> int:
        """From the broker: accept and discard output."""
        return 0


def build(folder: str) -> tuple[MemoryWorld, MemoryLink, MemoryLink]:
    """Return a broker on real files, with the links of a producer and a consumer."""
    world = MemoryWorld(Path(folder), start=False, app={"bmqtwist": {"durability": "none"}}, cluster={
        "partition": {"maxDataFileSize": 4 << 30, "maxJournalFileSize": 1 << 30}})
    world.disk = RealDisk()  # type: ignore[assignment]
    world.domain("d", queue_messages=1 << 30, domain_messages=1 << 30)
    world.start()
    producer, consumer = world.producer("bmq://d/q"), world.consumer("bmq://d/q", m=1 << 30, b=1 << 40)
    links = producer.client.link, consumer.client.link
    for link in links:
        link.__class__ = DiscardingLink  # type: ignore[assignment]
    return world, links[0], links[1]  # type: ignore[return-value]


def run(world: MemoryWorld, producer: MemoryLink, consumer: MemoryLink, size: int, count: int, events: int, batch: int,
        confirms: int, first: int) -> float:
    """Return the CPU seconds of `count` messages in chunks of `events` events of `batch` messages."""
    payload = b"x" * size
    crc = crc32c(payload)
    per_chunk = events * batch
    chunks = []
    for start in range(first, first + count, per_chunk):
        guids = [b"\x40\0\0" + number.to_bytes(7, "big") + b"client" for number in range(start, start + per_chunk)]
        bodies = [put_message(0, guid, payload, crc, ACK_REQUESTED) for guid in guids]
        puts = b"".join(event_header(EventType.PUT, len(body)) + body
                        for body in (b"".join(bodies[at:at + batch]) for at in range(0, per_chunk, batch)))
        items = [CONFIRM_MESSAGE.pack(0, guid, 0) for guid in guids]
        chunks.append((puts, b"".join(items_event(EventType.CONFIRM, items[at:at + confirms])
                                      for at in range(0, per_chunk, confirms))))
    broker, posting, reading = world.broker, producer.session, consumer.session
    assert posting is not None and reading is not None
    clock = time.monotonic
    wall = int(world.now + world.clock.wall_offset)
    gc.collect()
    gc.freeze()  # as a broker does after its start
    began = time.process_time()
    for puts, done in chunks:
        posting.receive(puts, clock(), wall)
        broker.turn(clock())
        reading.receive(done, clock(), wall)
        broker.turn(clock())
    return time.process_time() - began


def serve(size: int) -> None:
    """For each line of stdin, a shape and a number of messages, print the CPU time per message in microseconds."""
    with tempfile.TemporaryDirectory(prefix="bmq-hotpath-") as folder:
        world, producer, consumer = build(folder)
        first = 0
        for line in sys.stdin:
            number, messages = map(int, line.split())
            _, events, batch, confirms = SHAPES[number]
            seconds = run(world, producer, consumer, size, messages, events, batch, confirms, first)
            print(seconds / messages * 1e6, flush=True)
            first += messages


def compare(tree: Path, size: int, rounds: int) -> None:
    """Print the CPU times of this commit and of the one at `tree`, both compiled."""
    processes = []
    for root in (tree.resolve(), HERE):
        command = [str(root / ".venv-fast/bin/python"), "-P", str(HERE / "bench/hotpath.py"), "--serve", "--size", str(size)]
        processes.append(subprocess.Popen(command, env={**os.environ, "BMQ_TREE": str(root)}, text=True,
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        os.sched_setaffinity(processes[-1].pid, {max(os.sched_getaffinity(0))})

    def measure(side: int, shape: int) -> float:
        requests, results = processes[side].stdin, processes[side].stdout
        assert requests is not None and results is not None
        requests.write(f"{shape} {ROUND_MESSAGES}\n")
        requests.flush()
        return float(results.readline())

    times: list[tuple[list[float], list[float]]] = [([], []) for _ in SHAPES]
    for turn in range(-WARM_UP_ROUNDS, rounds):
        for shape, sides in enumerate(times):
            for side in (0, 1) if turn % 2 else (1, 0):
                took = measure(side, shape)
                if turn >= 0:
                    sides[side].append(took)
    for (name, *_), (other_times, own_times) in zip(SHAPES, times, strict=True):
        ratio = median(one / other for one, other in zip(own_times, other_times, strict=True))
        print(f"{name:<22} {median(other_times):7.2f} us other {median(own_times):7.2f} us this, median ratio {ratio:.3f}, "
              f"minima {min(other_times):.2f} and {min(own_times):.2f} us")
    for process in processes:
        process.communicate()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="messages per shape (default: %(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="payload bytes (default: %(default)s)")
    parser.add_argument("--profile", help="write a cProfile of 5 events per chunk to this file")
    parser.add_argument("--compare", type=Path, help="the checkout of another commit to compare with")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each side (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.size)
    if options.compare:
        return compare(options.compare, options.size, options.rounds)
    with tempfile.TemporaryDirectory(prefix="bmq-hotpath-") as folder:
        world, producer, consumer = build(folder)
        first = 0
        for name, events, batch, confirms in SHAPES:
            count = options.messages // (events * batch) * events * batch
            seconds = run(world, producer, consumer, options.size, count, events, batch, confirms, first)
            first += count
            print(f"{name:<22} {seconds / count * 1e6:7.2f} us CPU/message", flush=True)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(run, world, producer, consumer, options.size, 20_000, 5, 1, 1, first)
            profile.dump_stats(options.profile)


if __name__ == "__main__":
    main()
