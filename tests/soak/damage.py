"""Soak test with damaged storage directories: a broker opens each of them, and consumers empty its queues.

    python -m tests.soak damage [--count 2000] [--seed N] [--case N]

The sources are directories with known content: of a broker that was stopped or killed, after rollovers with an archive, and
of several runs. Each case is a copy of a source with one or two damages (`Damage.ways`) in one kind of file. A broker must
either start, or refuse with an error that names the file or its directory. All delivered messages must have been stored in
that queue with the same bytes; the broker must raise an alarm for lost messages and for messages that were confirmed before
and are delivered again, except as in `SILENT_KINDS` (docs/operations.md, "After damage"). Then each queue must deliver
another message, and the next start must find the same messages. Called by `command.py`; `test_damage.py` is its short run.
Recovery without a broker is in `tests/fuzz/storage_tails.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutation import Mutator
from kit.memory import MemoryWorld

from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.storage.files import LOCK_NAME, RealDisk
from bmqtwist.storage.slot_file import VoteFile
from bmqtwist.testing.config import CLUSTER, member_configuration
from bmqtwist.testing.node import ImmediateNode

COUNT = 2000
RESTART_SHARE = 0.3  # share of cases with a second start
SIZES = {"maxJournalFileSize": 64 << 10, "maxDataFileSize": 1 << 20, "maxQlistFileSize": 64 << 10,
         "maxCSLFileSize": 64 << 10, "maxArchivedFileSets": 3}
QUEUES = {"bmq://d/one": ("",), "bmq://d/two": ("",), "bmq://f/fan": ("foo", "bar")}
KINDS = ("journal", "data", "qlist", "ledger", "lock", "vote", "archive")
_SUFFIXES = {".bmq_journal": "journal", ".bmq_data": "data", ".bmq_qlist": "qlist", ".bmq_csl": "ledger"}
# Kinds of files whose damage can be undetectable: a truncated journal equals that of an earlier moment, its records have no
# checksums, and a missing file set leaves no trace.
SILENT_KINDS = {"journal"}
ALARM = ("ALARM", "PANIC", "ERROR")

Content = dict[tuple[str, str], dict[bytes, bytes]]  # queue and app: GUID: payload


class World(MemoryWorld):
    """A broker in this process with its storage on the real disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, cluster={"partition": SIZES}, start=False)
        self.disk = RealDisk()  # type: ignore[assignment]
        self.storage, self.archive = (Path(self.partition(member)) for member in ("location", "archive_location"))
        self.domain("d")
        self.domain("f", "fanout", apps=("foo", "bar"))

    def partition(self, member: str) -> str:
        """Return a member of the configuration of the partitions."""
        cluster, = self._configure().clusters.my_clusters
        return str(getattr(cluster.partition_config, member))

    def crash(self) -> None:
        """End the broker; the files keep their content of this moment."""
        for place in (self.storage, self.archive):
            shutil.copytree(place, f"{place}.now")
        self.end()
        for place in (self.storage, self.archive):
            shutil.rmtree(place)
            os.rename(f"{place}.now", place)

    def end(self) -> None:
        """End the broker without a graceful stop, and close its files."""
        self._drop_clients()
        with contextlib.suppress(Exception):
            self.assembled.close()

    def delivered(self, uri: str, app: str) -> dict[bytes, bytes]:
        """Return the messages that a consumer receives, without confirms: GUID: payload."""
        consumer = self.consumer(uri, app or None, m=1 << 20)
        found = {push.guid: push.payload for push in self.pushes(consumer)}
        consumer.client.disconnect()
        return found

    def content(self) -> Content:
        """Return the messages of all queues and apps."""
        return {(uri, app): self.delivered(uri, app) for uri, apps in QUEUES.items() for app in apps}


class Source:
    """A directory with known content: `ever` has all stored messages, `content` the unconfirmed ones."""

    def __init__(self, world: World, place: Path, name: str, seed: int) -> None:
        self.name, self.place = name, place
        self.ever: dict[str, dict[bytes, bytes]] = {uri: {} for uri in QUEUES}
        random = Random(seed)
        for part in (world.storage, world.archive):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        for _ in range(2 if "several runs" in name else 1):
            world.start()
            self._work(world, random, 60)
            if "rollovers" in name:
                for _ in range(3):
                    self._work(world, random, 60)
                    world.admin(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 0 ROLLOVER")
                    world.admin(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 1 ROLLOVER")
                    world.wait_idle()
            if "killed" in name:
                world.crash()
            else:
                world._drop_clients()
                world.stop()
        self._save(world)
        world.start()
        self.content = world.content()
        world.end()
        assert any(self.content.values()) and all(
            found.items() <= self.ever[uri].items() for (uri, _), found in self.content.items())

    def _work(self, world: World, random: Random, number: int) -> None:
        producers = {uri: world.producer(uri) for uri in QUEUES}
        consumers = [(uri, world.consumer(uri, app or None, m=1 << 20)) for uri, apps in QUEUES.items() for app in apps]
        for _ in range(number):
            uri = random.choice(list(QUEUES))
            payload = random.randbytes(random.choice((1, 7, 8, 100, 1000)))
            self.ever[uri][producers[uri].post(payload)] = payload
        for _, consumer in consumers:
            pushed = world.pushes(consumer)
            consumer.confirm(*random.sample(pushed, len(pushed) * 2 // 3))
        world.wait_idle()

    def _save(self, world: World) -> None:
        self.place.mkdir()
        for part in (world.storage, world.archive):
            shutil.copytree(part, self.place / part.name)

    def copy_to(self, world: World) -> dict[str, list[Path]]:
        """Copy the source to the directories of the broker; return its files by kind."""
        for part in (world.storage, world.archive):
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(self.place / part.name, part)
        files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
        for path in sorted(world.storage.iterdir()):
            if path.suffix in _SUFFIXES:
                files[_SUFFIXES[path.suffix]].append(path)
        files["archive"] = [path for path in sorted(world.archive.iterdir()) if path.name != LOCK_NAME]
        files["lock"] = [world.storage / LOCK_NAME]
        return files


class Damage:
    """Ways to damage a file, by name; each returns whether it has changed a file."""

    def __init__(self, random: Random) -> None:
        self._random, self._mutator = random, Mutator(random)
        self.ways: dict[str, Callable[[Path, list[Path]], bool]] = {
            "bits flipped": self._flip, "cut": self._cut, "swapped": self._swap, "missing": self._remove,
            "zeros": self._zero, "doubled set": self._double, "grown": self._grow, "emptied": self._empty,
            "mutated": self._mutate, "directory": self._directory}

    def _used(self, data: bytes | bytearray) -> int:
        return max(1, len(data.rstrip(b"\0")))

    def _edit(self, path: Path, edit: Callable[[bytearray], None]) -> bool:
        data = bytearray(path.read_bytes())
        if not data:
            return False
        before = bytes(data)
        edit(data)
        path.write_bytes(data)
        return data != before

    def _flip(self, path: Path, others: list[Path]) -> bool:
        def edit(data: bytearray) -> None:
            for _ in range(self._random.choice((1, 1, 1, 5))):
                data[self._random.randrange(self._used(data))] ^= 1 << self._random.randrange(8)
        return self._edit(path, edit)

    def _cut(self, path: Path, others: list[Path]) -> bool:
        return self._edit(path, lambda data: data.__delitem__(slice(self._random.randrange(self._used(data)), None)))

    def _zero(self, path: Path, others: list[Path]) -> bool:
        def edit(data: bytearray) -> None:
            start = self._random.randrange(self._used(data))
            stop = min(len(data), start + self._random.choice((4, 60, 512, 4096, 1 << 20)))
            data[start:stop] = bytes(stop - start)
        return self._edit(path, edit)

    def _mutate(self, path: Path, others: list[Path]) -> bool:
        def edit(data: bytearray) -> None:
            start = self._random.randrange(self._used(data))
            stop = min(len(data), start + self._random.choice((16, 60, 400)))
            data[start:stop] = self._mutator.mutate(bytes(data[start:stop]))
        return self._edit(path, edit)

    def _grow(self, path: Path, others: list[Path]) -> bool:
        more = self._random.choice((1, 59, 4096, 1 << 20))
        return self._edit(path, lambda data: data.extend(self._random.choice((bytes(more), self._random.randbytes(more)))))

    def _empty(self, path: Path, others: list[Path]) -> bool:
        return self._edit(path, lambda data: data.clear())

    def _remove(self, path: Path, others: list[Path]) -> bool:
        if path.exists():
            path.unlink()
            return True
        return False

    def _swap(self, path: Path, others: list[Path]) -> bool:
        other = self._random.choice(others)
        if other == path or not path.is_file() or not other.is_file() or path.read_bytes() == other.read_bytes():
            return False
        path_content, other_content = path.read_bytes(), other.read_bytes()
        path.write_bytes(other_content)
        other.write_bytes(path_content)
        return True

    def _double(self, path: Path, others: list[Path]) -> bool:
        """Copy the file set, or the file only, to names with another time."""
        stem, _, _ = path.name.rpartition(".")
        name, _, stamp = stem.rpartition("_")
        if not stamp.isdigit():
            return False
        other = f"{name}_{max(0, int(stamp) + self._random.choice((-1, 1, 100))):06d}"
        pieces = list(path.parent.glob(f"{stem}.*")) if self._random.random() < 0.7 else [path]
        for each in pieces:
            if each.is_file():
                shutil.copyfile(each, path.parent / (other + each.suffix))
        return bool(pieces)

    def _directory(self, path: Path, others: list[Path]) -> bool:
        if path.exists():
            path.unlink()
        path.mkdir()
        return True


class Campaign:
    """The cases and their outcomes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.seed, self.root = seed, root
        self.world = World(root)
        self.sources = [Source(self.world, root / f"source{number}", name, seed + number) for number, name in enumerate(
            ("stopped", "killed", "stopped after rollovers", "killed after rollovers", "killed, several runs"))]
        self._seed_case(0)
        self.outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.damages: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.findings: list[str] = []

    def _seed_case(self, number: int) -> None:
        """Seed the random numbers of a case by its number, so that it can be repeated alone."""
        self.number, self.random = number, Random(f"{self.seed} {number}")
        self.damage = Damage(self.random)

    def run(self, numbers: Iterable[int]) -> None:
        """Run the cases with these numbers."""
        for number in numbers:
            self._seed_case(number)
            kind = KINDS[number % len(KINDS)]
            try:
                outcome = self._vote() if kind == "vote" else self._case(kind)
            except Exception as error:  # all exceptions here come from the broker
                outcome = "violation"
                self._report(kind, "", f"{type(error).__name__}: {error}")
                traceback.print_exc()
            self.outcomes[kind][outcome] += 1

    def _report(self, kind: str, done: str, what: str) -> None:
        if len(self.findings) < 50:
            self.findings.append(f"case {self.number}, {kind}, {done}: {what}")

    def _damaged(self, files: dict[str, list[Path]], kind: str) -> tuple[str, set[Path]]:
        touched: set[Path] = set()
        done = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            for _ in range(50):
                if not files[kind]:
                    break
                path = self.random.choice(files[kind])
                way = self.random.choice(list(self.damage.ways))
                everything = [each for some in files.values() for each in some if each.is_file()]
                others = everything if self.random.random() < 0.3 else files[kind]
                if path.is_dir():
                    continue
                if not path.exists() and way not in ("directory",):
                    continue
                if self.damage.ways[way](path, others):
                    touched.add(path)
                    done.append(way)
                    break
        return " and ".join(done), touched

    # -- one case ---------------------------------------------------------------------------------------------------

    def _case(self, kind: str) -> str:
        archived = kind == "archive"  # only rollovers create archives
        source = self.random.choice([each for each in self.sources if not archived or "rollovers" in each.name])
        world = self.world
        done, touched = self._damaged(source.copy_to(world), kind)
        if not done:
            return "nothing to damage"
        for way in done.split(" and "):
            self.damages[way] += 1
        what = f"{source.name}: {done} ({', '.join(path.name for path in touched)})"
        since = len(world.report.lines)
        world._lines_checked = since
        world.allow_internal_errors = True  # _started reports them
        try:
            world.start()
        except StartFailure as failure:
            world.end()
            return self._refused(kind, what, str(failure))
        try:
            return self._started(source, kind, what, since)
        finally:
            world.end()

    def _refused(self, kind: str, what: str, error: str) -> str:
        if str(self.world.storage) not in error and str(self.world.archive) not in error:
            self._report(kind, what, f"refused without a file name: {error}")
            return "violation"
        return "refused with an error"

    def _started(self, source: Source, kind: str, what: str, since: int) -> str:
        world = self.world
        lost = returned = other_guid = 0
        found = world.content()
        for (uri, app), messages in found.items():
            expected = source.content[uri, app]
            ever = source.ever[uri]
            payloads = set(ever.values())
            lost += len(expected.keys() - messages.keys())
            for guid, payload in messages.items():
                self.messages["delivered"] += 1
                if payload not in payloads:
                    self._report(kind, what, f"{uri} delivered {len(payload)} bytes that were never stored there")
                    return "violation"
                other_guid += guid not in ever or ever[guid] != payload
                returned += guid in ever and guid not in expected
        alarms = [text for severity, text in world.report.lines[since:] if severity in ALARM]
        mistakes = [text for text in alarms if "INTERNAL_ERROR" in text or "Traceback" in text]
        if mistakes:
            self._report(kind, what, mistakes[0])
            return "violation"
        self.messages["lost"] += lost
        self.messages["returned"] += returned
        self.messages["under another GUID"] += other_guid
        problem = self._check_operation(source, found)
        if problem:
            self._report(kind, what, problem)
            return "violation"
        if not lost and not returned and not other_guid:
            return "complete" + (", alarms" if alarms else "")
        if alarms:
            return "lost or returned, alarms"
        if kind in SILENT_KINDS or "swapped" in what or "missing" in what:
            return "of an earlier moment"
        self._report(kind, what, f"{lost} lost, {returned} returned, {other_guid} under another GUID: no alarm was raised")
        return "violation"

    def _check_operation(self, source: Source, found: Content) -> str:
        """Post another message to each queue, and restart the broker in some cases; return the violation or ""."""
        world = self.world
        for uri in QUEUES:
            guid = world.producer(uri).post(b"after")
            missing_apps = [app for app in QUEUES[uri] if guid not in world.delivered(uri, app)]
            if missing_apps:
                return f"{uri} does not deliver a message posted after the start"
            for app in QUEUES[uri]:
                found[uri, app][guid] = b"after"
        if self.random.random() < RESTART_SHARE:
            world._drop_clients()
            world.stop()
            world.start()
            again = world.content()
            if again != found:
                differ = sum(len(again[key].items() ^ found[key].items()) for key in again)
                return f"the next start finds other messages ({differ})"
        return ""

    def _vote(self) -> str:
        """Damage the vote file of a node of three: it must start, or refuse with the name of the file."""
        place = self.root / "vote"
        shutil.rmtree(place, ignore_errors=True)
        (place / "storage").mkdir(parents=True)
        (place / "archive").mkdir()
        vote_file = VoteFile(RealDisk(), str(place / "storage"))
        for term in range(1, self.random.randrange(2, 5)):
            vote_file.write((term, self.random.choice((1, 2, 3, None))))
        vote_file.close()
        node = _Member(place)
        done, _ = self._damaged({"vote": [place / "storage" / VoteFile.name]}, "vote")
        if not done:
            return "nothing to damage"
        for way in done.split(" and "):
            self.damages[way] += 1
        since = len(node.report.lines)
        try:
            node.start()
        except StartFailure as failure:
            return "refused with an error" if str(place) in str(failure) else self._violation("vote", done, str(failure))
        node.advance(30)
        node.assembled.close()
        alarms = [text for severity, text in node.report.lines[since:] if severity in ALARM]
        if any("INTERNAL_ERROR" in text for text in alarms):
            return self._violation("vote", done, alarms[0])
        return "started, alarms" if alarms else "started"

    def _violation(self, kind: str, done: str, what: str) -> str:
        self._report(kind, done, what)
        return "violation"


class _Member(ImmediateNode):
    """A node of three whose peers do not run, with its storage on the real disk."""

    def __init__(self, place: Path) -> None:
        def configure() -> Any:
            return member_configuration(1, 3, 30114, cluster={"partition": {
                "location": str(place / "storage"), "archiveLocation": str(place / "archive")}})

        super().__init__(configure, lambda configuration: None)  # type: ignore[arg-type, return-value]
        self.disk = RealDisk()  # type: ignore[assignment]


def run(numbers: Sequence[int], seed: int) -> dict[str, Any]:
    """Run the cases with these numbers; return the counts and violations."""
    start_time = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bmq-damage-") as name:
        campaign = Campaign(Path(name), seed)
        campaign.run(numbers)
        return {"run": "damage", "seed": seed, "seconds": round(time.monotonic() - start_time), "cases": len(numbers),
                "damages": dict(campaign.damages), "messages": dict(campaign.messages),
                "outcomes": {kind: dict(found) for kind, found in campaign.outcomes.items()},
                "violations": campaign.findings}


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak damage", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int, help="run only this case")
    options = parser.parse_args(arguments)
    result = run(range(options.count) if options.case is None else [options.case], options.seed)
    print(json.dumps(result), flush=True)
    for finding in result["violations"][:5]:
        print(finding, file=sys.stderr)
    return 1 if result["violations"] else 0
