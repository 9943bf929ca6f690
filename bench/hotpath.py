"""The way of a message through session, queue and partition in this very process: no sockets, no reactor, real files.

    python -m bench.hotpath [--messages 200000] [--size 1024] [--profile FILE] [--beside TREE [--rounds 60]]

Prebuilt PUT events go into a producer's session and CONFIRM events into a consumer's, with a turn after each chunk, for
several numbers of events per chunk. What is printed is CPU time per message, so that it means something on a busy
machine too; `py-spy record -- python -m bench.hotpath` or `--profile` (cProfile) show where it goes.

`--beside` is the checkout of another commit, with its compiled broker as this one has it (`make fast` in both). The two take
turns on one processor, some hundredths of a second each, so that whatever changes on the machine hits both.
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
ROOT = Path(os.environ.get("BMQ_TREE", HERE))  # whose test kit builds the broker
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

# (what it is, PUT events per chunk, messages per PUT event, CONFIRMs per event)
SHAPES = (("1 event per chunk", 1, 1, 1), ("5 events per chunk", 5, 1, 1), ("20 events per chunk", 20, 1, 1),
          ("events of 20", 1, 20, 20))
ROUND_MESSAGES = 2000  # of one turn beside another commit
WARM_UP_ROUNDS = 2


class NullLink(MemoryLink):
    """A link whose output is thrown away."""

    def write(self, data: bytes) -> int:
        """The broker wrote; everything is taken."""
        return 0


def build(folder: str) -> tuple[MemoryWorld, MemoryLink, MemoryLink]:
    """A broker on real files with a producer and a consumer."""
    world = MemoryWorld(Path(folder), start=False, app={"bmqtwist": {"durability": "none"}}, cluster={
        "partition": {"maxDataFileSize": 4 << 30, "maxJournalFileSize": 1 << 30}})
    world.disk = RealDisk()  # type: ignore[assignment]
    world.domain("d", queue_messages=1 << 30, domain_messages=1 << 30)
    world.start()
    producer, consumer = world.producer("bmq://d/q"), world.consumer("bmq://d/q", m=1 << 30, b=1 << 40)
    links = producer.client.link, consumer.client.link
    for link in links:
        link.__class__ = NullLink  # type: ignore[assignment]
    return world, links[0], links[1]  # type: ignore[return-value]


def run(world: MemoryWorld, producer: MemoryLink, consumer: MemoryLink, size: int, count: int, events: int, batch: int,
        confirms: int, first: int) -> float:
    """CPU seconds of `count` messages in chunks of `events` events of `batch` messages."""
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
    gc.freeze()  # as a broker does when it has started
    began = time.process_time()
    for puts, done in chunks:
        posting.receive(puts, clock(), wall)
        broker.turn(clock())
        reading.receive(done, clock(), wall)
        broker.turn(clock())
    return time.process_time() - began


def serve(size: int) -> None:
    """Each line of stdin is a shape and how many messages of it to run; one of stdout tells its us CPU per message."""
    with tempfile.TemporaryDirectory(prefix="bmq-hotpath-") as folder:
        world, producer, consumer = build(folder)
        first = 0
        for line in sys.stdin:
            number, messages = map(int, line.split())
            _, events, batch, confirms = SHAPES[number]
            seconds = run(world, producer, consumer, size, messages, events, batch, confirms, first)
            print(seconds / messages * 1e6, flush=True)
            first += messages


def beside(tree: Path, size: int, rounds: int) -> None:
    """Print what this commit takes, compiled, and what the other one does."""
    processes = []
    for root in (tree.resolve(), HERE):
        command = [str(root / ".venv-fast/bin/python"), "-P", str(HERE / "bench/hotpath.py"), "--serve", "--size", str(size)]
        processes.append(subprocess.Popen(command, env={**os.environ, "BMQ_TREE": str(root)}, text=True,
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        os.sched_setaffinity(processes[-1].pid, {max(os.sched_getaffinity(0))})

    def ask(side: int, shape: int) -> float:
        questions, answers = processes[side].stdin, processes[side].stdout
        assert questions is not None and answers is not None
        questions.write(f"{shape} {ROUND_MESSAGES}\n")
        questions.flush()
        return float(answers.readline())

    times: list[tuple[list[float], list[float]]] = [([], []) for _ in SHAPES]
    for turn in range(-WARM_UP_ROUNDS, rounds):
        for shape, sides in enumerate(times):
            for side in (0, 1) if turn % 2 else (1, 0):
                took = ask(side, shape)
                if turn >= 0:
                    sides[side].append(took)
    for (name, *_), (theirs, ours) in zip(SHAPES, times, strict=True):
        ratio = median(one / other for one, other in zip(ours, theirs, strict=True))
        print(f"{name:<22} {median(theirs):7.2f} us there {median(ours):7.2f} us here, median of the ratios {ratio:.3f}, "
              f"least {min(theirs):.2f} and {min(ours):.2f} us")
    for process in processes:
        process.communicate()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--profile", help="write a cProfile of the last shape but one to this file")
    parser.add_argument("--beside", type=Path, help="the checkout of another commit to compare with")
    parser.add_argument("--rounds", type=int, default=60, help="turns that each of both has (default %(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.size)
    if options.beside:
        return beside(options.beside, options.size, options.rounds)
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
