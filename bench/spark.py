"""Benchmark of the Spark data sources for storage files and queues, against alternatives. One JSON object per line.

    python -m bench.spark [--records 10000000] [--messages 200000] [--rounds 3] [--only scan|source] [--large]

scan: rows per second of the columns common to all journal records and the GUID (`_SCANNED`), without output and aggregated
by queue, type and minute, on local[1] and local[2], against `sc.binaryRecords` with unpacking in Python; also all columns.
A task on local[1] uses more than one processor, because Python prepares batches for the JVM; therefore local[2] is also
compared with local[1] on a single processor, and both with many small tasks, between which nothing is prepared.
source: messages per second of a streaming query, against consumers with the official client library and that of bmqtwist.
`--large`: seconds of one run of the report on 10,000,000 records on local[2], without warm-up.

Correctness on a cluster is tested by `spark_cluster.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bmqtwist.spark.records import DTYPES
from bmqtwist.storage import layout
from bmqtwist.storage.records import (
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    FileType,
    RecordType,
    SyncPoint,
)
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

_QUEUES, _CHUNK = 16, 1 << 20
_SCANNED = "type,lease,sequence,time,queueKey,guid,refCount"
_TASKS, _SMALL_TASKS = 8, 40  # tasks of a scan, on any number of cores
_OVER_TCP = "aggregated, workers over TCP"  # the default of Spark; `bmqtwist.spark.session` configures Unix sockets
_BATCH, _WINDOW = 100_000, 400_000  # messages
_LARGE = 10_000_000

_FORMAT = RECORD.format  # a Struct cannot be sent to a worker
_OF_KIND = {RecordType.MESSAGE: layout.MESSAGE_RECORD, RecordType.CONFIRM: layout.CONFIRM_RECORD,
            RecordType.DELETION: layout.DELETION_RECORD}
_KEYS = {int(kind): of.offset("queue_key") for kind, of in _OF_KIND.items()}
_GUIDS = {int(kind): of.offset("guid") for kind, of in _OF_KIND.items()}


def make_journal(path: Path, count: int) -> None:
    """Write a journal of `count` records: a sync point, then messages of 16 queues, each confirmed and deleted."""
    header = layout.FILE_HEADER.build(version=1, header_words=layout.FILE_HEADER.words, wide=1, type=int(FileType.JOURNAL),
                                      partition_id=0)
    sizes = layout.JOURNAL_FILE_HEADER.build(header_words=layout.JOURNAL_FILE_HEADER.words, record_words=RECORD_BYTES >> 2,
                                             mark=0)
    kinds = [RecordType.MESSAGE, RecordType.CONFIRM, RecordType.DELETION]
    with open(path, "wb") as file:
        file.write(header + sizes)
        for start in range(0, count, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, count), dtype=np.uint64)
            rows = np.zeros(len(numbers), DTYPES[RecordType.JOURNAL_OP])
            types = np.array([int(each) for each in kinds], np.uint64)[numbers % 3]
            message = numbers // 3
            raw = rows.view(np.uint8).reshape(-1, RECORD_BYTES)
            for kind in kinds:
                mask = types == int(kind)
                view = raw[mask].view(DTYPES[kind]).reshape(-1)
                if kind is RecordType.MESSAGE:
                    view["data_dwords"] = 5 + message[mask] % (1 << 31)
                    view["crc"] = message[mask] % (1 << 32)
                body = view.view(np.uint8).reshape(-1, RECORD_BYTES)
                key = _OF_KIND[kind]
                body[:, key.offset("queue_key") + 4] = 1 + message[mask] % _QUEUES
                at = key.offset("guid")
                body[:, at] = 0x40
                body[:, at + 8:at + 16] = message[mask].astype(">u8").view(np.uint8).reshape(-1, 8)
                raw[mask] = body
            rows["type"] = types << TYPE_SHIFT | np.where(types == int(RecordType.MESSAGE), 1, 0).astype(
                np.uint64) << FLAGS_SHIFT | numbers + 1
            if not start:
                rows[0]["type"] = int(RecordType.JOURNAL_OP) << TYPE_SHIFT | 1
                rows[0]["op"], rows[0]["sync_point_type"], rows[0]["inner_sequence"] = 2, int(SyncPoint.REGULAR), 1
            rows["lease"], rows["wall"], rows["magic"] = 1, 1795237326 + numbers // 5000, MAGIC
            file.write(rows.tobytes())


def _session(cores: int, adaptive: bool = False, unix_sockets: bool = True) -> Any:
    from bmqtwist.spark import session

    created = session(f"local[{cores}]", "bench", **{
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
        "spark.sql.shuffle.partitions": cores, "spark.driver.memory": "2g", "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": str(adaptive).lower()})
    created.sparkContext.setLogLevel("ERROR")
    return created


def _best(rounds: int, work: Any) -> float:
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return min(times)


def scan(way: str, cores: int, tasks: int, path: str, count: int, rounds: int) -> float:
    """Return the seconds of the fastest round, after two scans as warm-up."""
    from pyspark.sql import functions as F

    spark = _session(cores, way == "report", way != _OVER_TCP)

    def table(columns: str = _SCANNED) -> Any:
        options = {"maxPartitionRecords": -(-count // tasks), "columns": columns}
        return spark.read.format("bmq-storage").options(**options).load(path)

    def to_nowhere(rows: Any) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def raw() -> None:
        rows = spark.sparkContext.binaryRecords(f"{path}.raw", RECORD_BYTES).map(_unpacked)
        to_nowhere(spark.createDataFrame(rows, "type int, lease long, sequence long, time timestamp, queueKey binary, "
                                               "guid binary, refCount int"))

    def aggregated() -> None:
        table().groupBy("queueKey", "type", F.date_trunc("minute", "time")).agg(
            F.count("*"), F.max("sequence"), F.approx_count_distinct("guid")).collect()

    def report() -> None:
        from bmqtwist.spark.pipelines.report import report as run

        with tempfile.TemporaryDirectory(prefix="bmq-report-") as target:
            run(spark, path, target)

    work = {"table": lambda: to_nowhere(table()), "all columns": lambda: to_nowhere(table("")), "aggregated": aggregated,
            _OVER_TCP: aggregated, "binaryRecords": raw, "report": report}[way]
    if way != "report":
        work()
        work()  # second warm-up: the JVM still compiles
    seconds = _best(rounds, work)
    spark.stop()
    return seconds


def _unpacked(data: bytes) -> tuple[Any, ...]:
    """Unpack a record to the same row as `bmq-storage`."""
    from datetime import UTC, datetime
    from struct import unpack

    head, lease, wall, body, _ = unpack(_FORMAT, data)
    kind = head >> TYPE_SHIFT
    at = _GUIDS.get(kind)
    keys = _KEYS.get(kind)
    return (kind, lease, head & SEQUENCE_MASK, datetime.fromtimestamp(wall, UTC),
            data[keys:keys + 5] if keys else None, data[at:at + 16] if at else None,
            body[0] << REF_COUNT_LOW_BITS | head >> FLAGS_SHIFT & FLAGS_MASK if kind == RecordType.MESSAGE else None)


def source(count: int, rounds: int) -> dict[str, float]:
    """Return messages per second of both client libraries, and of a query without output."""
    from bench.broker import DOMAINS, Broker
    from bmqtwist.sdk.simple import Session

    found: dict[str, float] = {}
    spark = _session(2)
    with tempfile.TemporaryDirectory(prefix="bmq-bench-") as root, Broker(Path(root) / "broker") as broker:
        url = f"tcp://127.0.0.1:{broker.port}"
        with Session(url) as session:
            for turn in range(rounds):
                uri = f"bmq://{DOMAINS['priority']}/plain{turn}"
                _fill(session, uri, count)
                with session.open(uri, read=True) as queue:
                    queue.configure(max_unconfirmed_messages=_WINDOW)
                    began = time.monotonic()
                    for _ in range(count):
                        message = queue.get()
                        assert message is not None
                        message.payload  # noqa: B018 - as any consumer does
                        message.confirm()
                    found["client"] = max(found.get("client", 0.0), count / (time.monotonic() - began))
                uri = f"bmq://{DOMAINS['priority']}/official{turn}"
                _fill(session, uri, count)
                found["official client"] = max(found.get("official client", 0.0), _official(url, uri, count))
            for turn in range(rounds + 1):
                uri = f"bmq://{DOMAINS['priority']}/spark{turn}"
                _fill(session, uri, count)
                rate = _stream(spark, url, uri, Path(root) / str(turn), count)
                if turn:
                    found["query"] = max(found.get("query", 0.0), rate)
    spark.stop()
    return {**found, "query/official client": found["query"] / found["official client"],
            "query/client": found["query"] / found["client"]}


def _official(url: str, uri: str, count: int) -> float:
    import blazingmq

    done, left = threading.Event(), [count]

    def on_message(message: Any, handle: Any) -> None:
        message.data  # noqa: B018 - as any consumer does
        handle.confirm()
        left[0] -= 1
        if not left[0]:
            done.set()
    session = blazingmq.Session(lambda event: None, on_message=on_message, broker=url)
    began = time.monotonic()
    session.open_queue(uri, read=True, options=blazingmq.QueueOptions(max_unconfirmed_messages=_WINDOW,
                                                                      max_unconfirmed_bytes=1 << 28))
    done.wait()
    seconds = time.monotonic() - began
    session.close_queue(uri)
    session.stop()
    return count / seconds


def _fill(session: Any, uri: str, count: int) -> None:
    with session.open(uri, write=True) as queue:
        for _ in range(count):
            queue.post_nowait(b"x" * 100)
        queue.flush()


def _stream(spark: Any, url: str, uri: str, root: Path, count: int) -> float:
    rows = spark.readStream.format("bmq").options(**{
        "bmq.bootstrap.servers": url, "subscribe": uri, "maxOffsetsPerTrigger": _BATCH, "maxUnconfirmedMessages": _WINDOW,
        "spoolDir": str(root / "spool"), "availableNow.idle": "1s", "minPartitions": "2"}).load()
    began = time.monotonic()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(root / "checkpoint")).trigger(
        availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - began - 1.0  # availableNow.idle
    taken = sum(each["numInputRows"] for each in query.recentProgress)
    assert taken == count, f"{taken} of {count} messages"
    return count / seconds


def child(arguments: list[str], processors: int | None = None) -> float:
    """Run one measurement in a separate process, limited to some processors, and return its result."""
    mine = sorted(os.sched_getaffinity(0))[:processors]
    ended = subprocess.run([sys.executable, "-m", "bench.spark", "--child", *arguments], capture_output=True,
                           text=True, check=False, preexec_fn=lambda: os.sched_setaffinity(0, mine))
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    return float(ended.stdout.strip().splitlines()[-1])


def scans(path: Path, count: int, rounds: list[str]) -> None:
    """Run and print all scans of a journal, and their ratios."""
    def seconds(way: str, cores: int, tasks: int = _TASKS, processors: int | None = None) -> float:
        took = child([way, str(cores), str(tasks), str(path), str(count), *rounds], processors)
        print(json.dumps({"scan": way, "cores": cores, "tasks": tasks, "processors": processors or "all",
                          "rows/s": round(count / took)}), flush=True)
        return took

    single_core = {}
    for way in ("table", "aggregated"):
        two, one = seconds(way, 2), seconds(way, 1)
        single_core[way] = one
        ratios = {"2/1": one / two, "2/1 on one processor": seconds(way, 1, processors=1) / two,
                  f"2/1, {_SMALL_TASKS} tasks": seconds(way, 1, _SMALL_TASKS) / seconds(way, 2, _SMALL_TASKS)}
        print(json.dumps({"scan": way, **{name: round(each, 2) for name, each in ratios.items()}}), flush=True)
    print(json.dumps({"scan": _OVER_TCP, "2/1": round(seconds(_OVER_TCP, 1) / seconds(_OVER_TCP, 2), 2)}), flush=True)
    seconds("all columns", 2)
    print(json.dumps({"table/binaryRecords": round(seconds("binaryRecords", 1) / single_core["table"], 1)}), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="records of a scan (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of a query (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the fastest counts (default: %(default)s)")
    parser.add_argument("--only", choices=["scan", "source"], help="run only this part")
    parser.add_argument("--large", action="store_true", help="only the report on 10,000,000 records")
    parser.add_argument("--child", nargs=5, metavar=("WAY", "CORES", "TASKS", "PATH", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, cores, tasks, name, count = options.child
        print(scan(way, int(cores), int(tasks), name, int(count), options.rounds))
        return
    rounds = ["--rounds", str(options.rounds)]
    if options.only != "source":
        with tempfile.TemporaryDirectory(prefix="bmq-bench-") as root:
            count = _LARGE if options.large else options.records
            path = Path(root) / "bmq_0.20261121_000000.bmq_journal"
            make_journal(path, count)
            if options.large:
                print(json.dumps({"records": count, "report on local[2], seconds": child(
                    ["report", "2", str(_TASKS), str(path), str(count), "--rounds", "1"])}), flush=True)
                return
            with open(path, "rb") as whole, open(f"{path}.raw", "wb") as records:
                whole.seek(JOURNAL_HEADER_BYTES)
                while data := whole.read(1 << 24):
                    records.write(data)
            scans(path, count, rounds)
    if options.only != "scan":
        print(json.dumps({"messages": options.messages, **{
            name: round(value, 2) for name, value in source(options.messages, options.rounds).items()}}), flush=True)


if __name__ == "__main__":
    main()
