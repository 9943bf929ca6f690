"""Kit of the tests of `bmq storage`: runs the command, and creates directories of storage files.

Used by tests/unit/storagetool; partitions are in `storage_kit.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from bmqtwist.cli.main import main
from bmqtwist.storage.ledger_file import encode_ledger, ledger_file_name
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.wire.cluster_schema import (
    AppIdInfo,
    ClusterMessage,
    ClusterStateRecord,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    LedgerRecordType,
    PartitionPrimaryInfo,
    QueueAssignmentAdvisory,
    QueueInfo,
)

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
TOLD = VECTORS / "storage-tool"
SETS = VECTORS / "storage-recorded"
LEDGERS = VECTORS / "ledger-files"
LOG_ID = bytes.fromhex("0102030405")


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a run."""

    code: int
    out: str
    err: str


def bmq(*arguments: object) -> Outcome:
    """Run `bmq storage ...`; exceptions are not caught."""
    result = CliRunner().invoke(main, ["storage", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def files_of(case: str, partition: str = "0", archived: str = "") -> tuple[Path, Path, Path]:
    """Return journal, DATA and ledger of a recorded case in the vectors."""
    name, node = case.split(".", 1)
    folder = SETS / name / node / ("archive" if archived else "")
    journal = next(folder.glob(f"bmq_{partition}.{archived or '*'}.bmq_journal"))
    return journal, journal.with_suffix(".bmq_data"), ledger_of(case)


def ledger_of(case: str) -> Path:
    """Return the ledger of a recorded case."""
    name, node = case.split(".", 1)
    return next((LEDGERS / (case if name != "golden" else f"cluster-run.{node}")).glob("*.bmq_csl"))


def storage_directory(case: str, target: Path) -> Path:
    """Copy all files of a recorded case to one directory, as a broker stores them."""
    target.mkdir(parents=True, exist_ok=True)
    name, node = case.split(".", 1)
    folder = SETS / name / node if (SETS / name / node).exists() else TOLD / case
    for path in folder.glob("bmq_*"):
        shutil.copy(path, target / path.name)
    ledger = ledger_of(case)
    shutil.copy(ledger, target / ledger.name)
    return target


def spill(disk: MemoryDisk, target: Path) -> Path:
    """Copy the storage directory of a simulated disk to the file system."""
    target.mkdir(parents=True, exist_ok=True)
    for path in disk.paths():
        if path.startswith("/l/"):
            (target / path.rpartition("/")[2]).write_bytes(disk.content(path))
    return target


def change(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    content = bytearray(path.read_bytes())
    content[offset:offset + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, offset: int) -> None:
    """Invert one byte of a file."""
    change(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))


def one(directory: Path, kind: str) -> Path:
    """Return the only file of a kind in a directory."""
    (path,) = directory.glob(f"*.bmq_{kind}")
    return path


def write_ledger(directory: Path, wall: int, queues: list[tuple[str, bytes, list[tuple[str, bytes]]]],
                 lease: int = 1) -> Path:
    """Create a ledger that assigns queues to partition 0, as a single node writes it."""
    first, second = LeaderMessageSequence(1, 1), LeaderMessageSequence(1, 3)
    infos = [QueueInfo(uri, key, 0, [AppIdInfo(*app) for app in apps]) for uri, key, apps in queues]
    snapshot = LeaderAdvisory(first, [PartitionPrimaryInfo(0, 1, lease)])
    messages = [
        (LedgerRecordType.SNAPSHOT, 1, "leaderAdvisory", snapshot),
        (LedgerRecordType.COMMIT, 2, "leaderAdvisoryCommit", LeaderAdvisoryCommit(LeaderMessageSequence(1, 2), first)),
        (LedgerRecordType.UPDATE, 3, "queueAssignmentAdvisory", QueueAssignmentAdvisory(second, infos)),
        (LedgerRecordType.COMMIT, 4, "leaderAdvisoryCommit", LeaderAdvisoryCommit(LeaderMessageSequence(1, 4), second)),
    ]
    path = directory / ledger_file_name(LOG_ID, wall)
    path.write_bytes(encode_ledger(LOG_ID, [ClusterStateRecord(kind, 1, number, wall, ClusterMessage(choice, value))
                                            for kind, number, choice, value in messages]))
    return path
