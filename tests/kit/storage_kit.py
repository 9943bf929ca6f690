"""Kit of the storage tests: recorded file sets, a partition on a simulated disk, and its state as a value.

Used by tests/unit/storage and the property tests of partitions; a queue on a partition is in `engine_kit.py`, files for
`bmq storage` are in `storagetool_kit.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from construct import Array, Bytes, Computed, Const, Container, Struct, this  # type: ignore[import-untyped]
from crc32c import crc32c

from bmqtwist.storage import layout
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.partition import Message, Partition
from bmqtwist.storage.recovery import RecoveredPartition, recover
from bmqtwist.storage.store import FileSizes

RECORDED = Path(__file__).resolve().parent.parent / "vectors" / "storage-recorded"
KINDS = ("journal", "data", "qlist")
WALL = 1795237326  # epoch seconds, time of the recordings
SMALL = FileSizes(1 << 20, 4 << 20, 1 << 20)
TINY = FileSizes(16384, 1 << 16, 1 << 13)
KEY, OTHER = b"queue", b"other"
DEFAULT = [("__default", b"0\0\0\0\0")]
FANOUT = [("foo", b"fookk"), ("bar", b"barkk"), ("baz", b"bazkk")]

RECORDS = {1: layout.MESSAGE_RECORD, 2: layout.CONFIRM_RECORD, 3: layout.DELETION_RECORD, 4: layout.QUEUE_OP_RECORD,
           5: layout.JOURNAL_OP_RECORD}

# Layouts of the records with texts for construct, to check the parsers of storage/, which do not use it.
DATA_RECORD = Struct(
    "header" / layout.DATA_HEADER.construct,
    "options" / Bytes(this.header.options_words * 4),
    "padded" / Bytes((this.header.record_words - this.header.header_words - this.header.options_words) * 4),
    "pad" / Computed(lambda context: context.padded[-1]),
    "data" / Computed(lambda context: context.padded[:-context.padded[-1]]),
)
_APP_ENTRY = Struct(
    "header" / layout.APP_HEADER.construct,
    "padded_id" / Bytes(this.header.words * 4),
    "key" / layout.QUEUE_KEY.construct,
)
QUEUE_RECORD = Struct(
    "header" / layout.QUEUE_RECORD_HEADER.construct,
    "padded_uri" / Bytes(this.header.uri_words * 4),
    "key" / layout.QUEUE_KEY.construct,
    "apps" / Array(this.header.app_count, _APP_ENTRY),
    "magic" / Const(b"qUrI"),
)


def unpadded(data: bytes) -> bytes:
    """Return a padded text without its padding."""
    return data[:-data[-1]]


def parse_record(data: bytes) -> Container:
    """Parse a journal record of 60 bytes by its type; KeyError for an unknown type."""
    return RECORDS[data[0] >> 4].parse(data)


def journals(*, archives: bool = True) -> list[Path]:
    """Return all recorded journals."""
    found = sorted(RECORDED.rglob("*.bmq_journal"))
    return [path for path in found if archives or path.parent.name != "archive"]


def name_of(path: Path) -> str:
    """Return the test id of a recorded journal."""
    return "/".join(path.relative_to(RECORDED).parts[:-1]) + "/p" + path.name[4]


def disk_with(journal: Path) -> MemoryDisk:
    """Return a simulated disk with the file set of a recorded journal."""
    disk = MemoryDisk()
    for kind in KINDS:
        path = journal.with_suffix(f".bmq_{kind}")
        disk.put(f"/l/{path.name}", path.read_bytes())
    return disk


def open_files(disk: Any, partition_id: int = 0, sizes: FileSizes = SMALL, keep: int = 9, wall: int = WALL,
               location: str = "/l", archive: str = "/a") -> FileSets:
    """Open the file sets of a partition."""
    files = FileSets(disk, location, archive, partition_id, sizes, keep)
    files.open(wall)
    return files


def start(disk: Any, sizes: FileSizes = SMALL, lease: int | None = 1, wall: int = WALL,
          **options: Any) -> tuple[Partition, RecoveredPartition]:
    """Recover and become primary, as a broker does at its start. `lease` None = one more than the last."""
    files = open_files(disk, sizes=sizes, wall=wall)
    recovered = recover(files)
    partition = Partition(1, files, recovered, **options)
    partition.activate(recovered.lease + 1 if lease is None else lease, wall)
    return partition, recovered


def make_message(number: int, payload: bytes = b"payload", ref_count: int = 1, **fields: Any) -> Message:
    """Create a message as a queue does."""
    message = Message((0x40 << 120 | number).to_bytes(16, "big"), payload, crc=crc32c(payload), **fields)
    message.ref_count, message.pending = ref_count, (1 << ref_count) - 1
    return message


def state(recovered: RecoveredPartition) -> dict[str, Any]:
    """Return the state visible to consumers: uri -> (app ids, [(GUID, apps that it is pending for)])."""
    return {queue.uri: ([app.app_id for app in queue.apps.values()],
                        [(message.guid, [app.app_id for app in queue.apps.values() if message.pending & app.bit])
                         for message in queue.messages.values() if message.pending])
            for queue in recovered.queues.values()}


def reread(disk: Any, sizes: FileSizes = SMALL, **options: Any) -> RecoveredPartition:
    """Return the visible state that a start would recover from the disk."""
    return recover(open_files(disk, sizes=sizes), **options)


def stored(recovered: RecoveredPartition) -> list[Message]:
    """Return the messages of all queues that are pending for an app."""
    return [message for queue in recovered.queues.values() for message in queue.messages.values() if message.pending]


def guids(recovered: RecoveredPartition) -> list[str]:
    """Return the GUIDs of the outstanding messages in hexadecimal digits."""
    return [message.guid.hex().upper() for message in stored(recovered)]


class Held(str):
    """Effect for a gate, compared by its text."""

    position = 0


def entries(journal: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """Return the accepted records of a journal's bytes."""
    return list(JournalScan(lambda offset, size: journal[offset:offset + size], len(journal)))


def path_of(disk: MemoryDisk, kind: str, directory: str = "/l") -> str:
    """Return the only file of a kind in a directory."""
    paths = [path for path in disk.paths() if path.startswith(directory + "/") and path.endswith(f".bmq_{kind}")]
    assert len(paths) == 1, paths
    return paths[0]
