"""Recovery of damaged file sets: the only exception is a refusal with a text, no message is delivered that was not stored,
and the partition works afterwards.

For damage that only removes bytes (a truncation, zeros up to the end of the file, other bytes after the end) exactly the
messages outstanding at that point of the journal are recovered. Run by `test_fuzz.py` and by `tests/soak/command.py`
(`storage`). It tests `bmqtwist/storage/recovery.py`; whole directories with a broker are in `tests/soak/damage.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

from crc32c import crc32c

from bmqtwist.errors import BmqError
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition, PartitionUnavailable
from bmqtwist.storage.recovery import recover
from bmqtwist.storage.store import FileSizes
from fuzz.findings import Finding
from fuzz.mutation import Mutator

_SIZES = FileSizes(journal=64 << 10, data=256 << 10, qlist=16 << 10)
_WALL = 1_700_000_000
_RECORD_BYTES, _JOURNAL_HEADER_BYTES = 60, 44
_APPS = [("foo", b"\0\0\0\0\1"), ("bar", b"\0\0\0\0\2")]
_QUEUES = {b"\x11\x11\x11\x11\x11": ("bmq://d/one", [("__default", b"\x30\0\0\0\0")]),
           b"\x22\x22\x22\x22\x22": ("bmq://d/fan", _APPS)}
_KINDS = ("bmq_journal", "bmq_data", "bmq_qlist")


def _open(disk: MemoryDisk, wall: int) -> tuple[FileSets, Partition, dict[bytes, Message]]:
    """Return the recovered partition of a disk before its activation."""
    files = FileSets(disk, "storage", "archive", 0, _SIZES)
    files.open(wall)
    recovered = recover(files, None, 0, 0.0, 0)
    partition = Partition(1, files, recovered, "none")
    return files, partition, {
        message.guid: message for message in recovered.state.live_messages() if message.pending}


class Original:
    """A partition after some work: its files, all stored payloads, and the outstanding messages at each record."""

    def __init__(self, seed: int, closed: bool) -> None:
        random = Random(seed)
        disk = MemoryDisk()
        _, partition, _ = _open(disk, _WALL)
        self.lease = 0
        self.payloads: dict[bytes, bytes] = {}
        self.outstanding: dict[int, dict[bytes, int]] = {}  # journal position -> GUID: pending
        self._living: list[tuple[bytes, Message]] = []
        for _ in range(2):
            self.lease += 1
            partition.activate(self.lease, _WALL)
            if self.lease == 1:
                for key, (uri, apps) in _QUEUES.items():
                    partition.queues.create(key, uri, apps, _WALL)
            for number in range(40):
                self._step(random, partition, number)
                partition.flush(_WALL + number)
                self.outstanding[partition.tail.positions()[0]] = {m.guid: m.pending for _, m in self._living}
            partition.write_sync_point(_WALL + 50)
            self.outstanding[partition.tail.positions()[0]] = {m.guid: m.pending for _, m in self._living}
        self.ends = partition.tail.positions()
        if closed:
            partition.stop(_WALL + 60)
        self.content = {path.rpartition(".")[2]: (path, disk.content(path)) for path in disk.paths()}

    def _step(self, random: Random, partition: Partition, number: int) -> None:
        key = random.choice(list(_QUEUES))
        if self._living and random.random() < 0.4:
            key, message = self._living.pop(random.randrange(len(self._living)))
            if message.pending.bit_count() > 1:
                app_key = next(key for number, (_, key) in enumerate(_APPS) if message.pending >> number & 1)
                partition.append_confirm(key, app_key, message, 0, _WALL)
                self._living.append((key, message))
            else:
                partition.append_deletion(key, message, 0, _WALL)
            return
        payload = random.randbytes(random.choice((1, 7, 8, 100, 1000)))
        guid = b"\x40" + random.randbytes(15)
        message = Message(guid, payload, crc=crc32c(payload), wall=_WALL + number)
        message.ref_count = len(_QUEUES[key][1])
        message.pending = (1 << message.ref_count) - 1
        partition.append_message(key, message, _WALL + number)
        self.payloads[guid] = payload
        self._living.append((key, message))


class Tails:
    """Runs damaged copies of originals through recovery."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mutator = Mutator(self.random)
        self.originals = [Original(seed + number, closed) for number in range(3) for closed in (False, True)]
        self.counts = {"cases": 0, "recovered": 0, "refused": 0, "messages": 0, "damaged payloads withheld": 0,
                       "exact states checked": 0}
        self._ways: tuple[Callable[[bytearray, int], None], ...] = (
            self._flip, self._flip, self._mutate_end, self._mutate_end, self._swap_records, self._double_record)

    def run(self, count: int) -> dict[str, int]:
        """Recover `count` damaged file sets; return the counts."""
        for _ in range(count):
            original = self.random.choice(self.originals)
            contents = {kind: bytearray(data) for kind, (_, data) in original.content.items() if kind in _KINDS}
            expected = self._damage(original, contents)
            self._check(original, contents, expected)
            self.counts["cases"] += 1
        return self.counts

    def _damage(self, original: Original, contents: dict[str, bytearray]) -> dict[bytes, int] | None:
        """Damage in place; return the exact expected state, None if any subset of the stored messages is valid."""
        ends = dict(zip(_KINDS, original.ends, strict=True))
        if self.random.random() < 0.3:
            journal = contents["bmq_journal"]
            at = self.random.randrange(_JOURNAL_HEADER_BYTES, ends["bmq_journal"])
            way = self.random.randrange(3)
            if way == 0:
                del journal[at:]
            elif way == 1:
                journal[at:] = bytes(len(journal) - at)
            else:
                at = ends["bmq_journal"]
                journal[at:at + 200] = b"\xff" + self.random.randbytes(self.random.randrange(1, 200))
            whole = (at - _JOURNAL_HEADER_BYTES) // _RECORD_BYTES * _RECORD_BYTES + _JOURNAL_HEADER_BYTES
            return max(((position, state) for position, state in original.outstanding.items() if position <= whole),
                       default=(0, dict[bytes, int]()))[1]
        for kind in self.random.choices(_KINDS, (6, 3, 2), k=self.random.choice((1, 1, 2))):
            if contents[kind]:
                self.random.choice(self._ways)(contents[kind], ends[kind])
        return None

    def _tail(self, end: int) -> int:
        reach = self.random.choice((60, 180, 1200, end))
        return self.random.randrange(max(0, end - reach), end)

    def _flip(self, data: bytearray, end: int) -> None:
        for _ in range(self.random.choice((1, 1, 4))):
            at = self._tail(min(end, len(data)) or 1)
            if at < len(data):
                data[at] ^= 1 << self.random.randrange(8)

    def _mutate_end(self, data: bytearray, end: int) -> None:
        at = self._tail(min(end, len(data)) or 1)
        data[at:end] = self.mutator.mutate(bytes(data[at:end]))

    def _record(self, data: bytearray) -> int:
        count = max(1, (len(data.rstrip(b"\0")) - _JOURNAL_HEADER_BYTES) // _RECORD_BYTES)
        return _JOURNAL_HEADER_BYTES + _RECORD_BYTES * self.random.randrange(count)

    def _swap_records(self, data: bytearray, end: int) -> None:
        first, second = self._record(data), self._record(data)
        a, b = bytes(data[first:first + _RECORD_BYTES]), bytes(data[second:second + _RECORD_BYTES])
        data[first:first + _RECORD_BYTES], data[second:second + _RECORD_BYTES] = b, a

    def _double_record(self, data: bytearray, end: int) -> None:
        source, target = self._record(data), self._record(data)
        data[target:target + _RECORD_BYTES] = data[source:source + _RECORD_BYTES]

    def _check(self, original: Original, contents: dict[str, bytearray], expected: dict[bytes, int] | None) -> None:
        damaged = [bytes(contents[kind]) for kind in _KINDS]
        disk = MemoryDisk()
        for kind in _KINDS:
            disk.put(original.content[kind][0], bytes(contents[kind]))
        try:
            self._recover_and_use(original, disk, expected)
            self.counts["recovered"] += 1
        except BmqError as error:
            if not str(error) or expected is not None:
                raise Finding(f"refused: {error!r}", "recovery", *damaged) from error
            self.counts["refused"] += 1
        except Finding as finding:
            raise Finding(finding.what, "recovery", *damaged) from finding
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}", "recovery", *damaged) from error

    def _recover_and_use(self, original: Original, disk: MemoryDisk, expected: dict[bytes, int] | None) -> None:
        _, partition, found = _open(disk, _WALL + 100)
        partition.activate(original.lease + 1, _WALL + 100)
        known = set(original.payloads.values())
        if expected is not None:
            self.counts["exact states checked"] += 1
            pending = {guid: message.pending for guid, message in found.items()}
            if pending != expected:
                lost, more = expected.keys() - pending.keys(), pending.keys() - expected.keys()
                raise Finding(f"{len(lost)} lost, {len(more)} too many, of {len(expected)} messages; "
                              f"{sum(pending.get(g) != p for g, p in expected.items())} differ", "recovery")
        for message in found.values():
            try:
                payload = partition.payloads.read(message)
            except PartitionUnavailable:
                self.counts["damaged payloads withheld"] += 1
                continue
            self.counts["messages"] += 1
            if payload not in known:
                raise Finding(f"a payload that was never stored: {message}", "recovery")
        key = next(iter(_QUEUES))
        fresh = Message(b"\x40" + bytes(14) + b"\1", b"after", crc=crc32c(b"after"), wall=_WALL + 100)
        fresh.ref_count, fresh.pending = 1, 1
        partition.queues.create(b"\x33\x33\x33\x33\x33", "bmq://d/after", _QUEUES[key][1], _WALL + 100)
        partition.append_message(b"\x33\x33\x33\x33\x33", fresh, _WALL + 100)
        partition.hold_effect(fresh_effect := SimpleNamespace())
        if partition.flush(_WALL + 100) != [fresh_effect]:
            raise Finding("the partition takes nothing any more", "recovery")
        disk.kill()
        again = _open(disk, _WALL + 200)[2]
        if again.keys() != found.keys() | {fresh.guid}:
            raise Finding(f"the second recovery gives {len(again)} messages after {len(found)} and one more", "recovery")


if __name__ == "__main__":
    print(json.dumps(Tails(1).run(500)))
