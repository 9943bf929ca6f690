"""Storage files as a table and as a stream in Spark; lifelines; archive, report, replay.

The tested modules are `bmqtwist/spark/storage.py`, `tables.py` and `pipelines/`; blocks without Spark are tested in
`test_records.py`.
"""

from __future__ import annotations

import gc
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kit.shell import until

from bmqtwist.cli.main import main
from bmqtwist.sdk.simple import Session
from bmqtwist.spark import tasks
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storagetool.inputs import ReadOnlyFile
from bmqtwist.storagetool.journalview import records
from bmqtwist.storagetool.selection import MessageRecords, by_message
from bmqtwist.testing.process import BrokerProcess
from spark.recorded_journals import SETS, as_tool_row, tool_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
ROLLOVER = str(SETS / "rollover" / "n1")
CASES = sorted(path.parent for path in SETS.glob("*/*/bmq_0.*.bmq_journal"))


def table(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("bmq-storage").options(**options).load(path)


def journal_in(place: Path) -> Path:
    return next(place.glob("bmq_0.*.bmq_journal"))


def test_rows_of_all_recorded_journals_equal_those_of_the_storage_tool(spark: SparkSession) -> None:
    """In one read with small ranges."""
    paths = [str(journal_in(case)) for case in CASES]
    rows = table(spark, ",".join(paths), maxPartitionRecords="50", columns="").orderBy("offset").collect()
    expected = sorted((row for path in paths for row in tool_rows(Path(path))), key=str)
    assert sorted((as_tool_row(row.asDict()) for row in rows), key=str) == expected


def test_payloads_are_those_of_the_data_file(spark: SparkSession) -> None:
    """With all property types, compressed and not, with checksums."""
    found = table(spark, str(SETS / "props-zlib" / "n1"), payload="true", verifyCrc="true", recordTypes="MESSAGE").collect()
    assert len(found) == 14 and all(row["crcGood"] and row["problem"] is None for row in found)
    assert {row["size"] for row in found} >= {1, 2, 3, 4, 5, 6, 7, 8}
    with_all = max(found, key=lambda row: len(row["properties"] or {}))
    assert len(with_all["propertyTypes"]) == len(with_all["properties"]) > 3


def test_the_mode_decides_whether_a_damaged_payload_is_reported_dropped_or_fails_the_job(
        spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "s"
    shutil.copytree(SETS / "payload-60k" / "n1", place)
    data = next(place.glob("*.bmq_data"))
    whole = bytearray(data.read_bytes())
    whole[1000] ^= 1
    data.write_bytes(whole)
    options = {"payload": "true", "verifyCrc": "true", "recordTypes": "MESSAGE"}
    kept = table(spark, str(place), **options).collect()
    assert sorted(row["crcGood"] for row in kept) == [False, True]
    assert [row["problem"] for row in kept if not row["crcGood"]] == ["checksum mismatch"]
    assert table(spark, str(place), **options, mode="DROPMALFORMED").count() == 1
    with pytest.raises(Exception, match="checksum mismatch"):
        table(spark, str(place), **options, mode="FAILFAST").collect()


def test_filters_as_options_and_pushed_filters_select_the_rows_of_the_condition(spark: SparkSession) -> None:
    whole = table(spark, ROLLOVER, includeArchive="true").select(
        "type", "offset", "fileSet", "queue", "guid", "time").persist()
    some = whole.where("type = 'MESSAGE'").first()
    assert some is not None
    for condition, options in (
            ("type in ('CONFIRM', 'DELETION')", {"recordTypes": "confirm,deletion"}),
            (f"queue = '{some['queue']}'", {"queues": some["queue"]}),
            (f"hex(guid) = '{some['guid'].hex().upper()}'", {"guid": some["guid"].hex()}),
            (f"unix_seconds(time) < {int(some['time'].timestamp()) + 1}",
             {"until": str(int(some["time"].timestamp()) + 1)})):
        expected = sorted((row["fileSet"], row["offset"]) for row in whole.where(condition).collect())
        chosen = table(spark, ROLLOVER, includeArchive="true", **options).select("fileSet", "offset").collect()
        assert sorted(map(tuple, chosen)) == expected and expected, condition
    pushed = table(spark, ROLLOVER, includeArchive="true", pushFilters="true").where("type = 'CONFIRM'")
    assert pushed.count() == whole.where("type = 'CONFIRM'").count()
    whole.unpersist()


def test_filters_of_a_query_become_options_of_the_reader() -> None:
    """Spark applies the filters that cannot be expressed, and time filters again."""
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, StringContains

    from bmqtwist.spark.options import StorageOptions
    from bmqtwist.spark.storage import PushingReader, narrow

    plain = StorageOptions(("x",))
    typed = narrow(plain, In(("type",), ("MESSAGE", "CONFIRM")))
    assert typed is not None and typed.record_types == ("CONFIRM", "MESSAGE")
    both = narrow(typed, EqualTo(("type",), "CONFIRM"))
    assert both is not None and both.record_types == ("CONFIRM",)
    named = narrow(plain, EqualTo(("guid",), bytearray(b"g" * 16)))
    assert named is not None and named.guids == (b"g" * 16,)
    assert narrow(both, EqualTo(("type",), "MESSAGE")) is None and narrow(plain, StringContains(("queue",), "x")) is None
    noon = datetime(2026, 11, 21, 12, 0, 0, 500_000, UTC)
    since, until = narrow(plain, GreaterThan(("time",), noon)), narrow(plain, LessThan(("time",), noon))
    assert since is not None and until is not None
    assert (since.since, until.until) == (int(noon.timestamp()), int(noon.timestamp()) + 1)
    reader = PushingReader.__new__(PushingReader)
    reader.options = plain
    filters = [EqualTo(("type",), "CONFIRM"), GreaterThan(("time",), noon), EqualTo(("offset",), 44)]
    assert list(reader.pushFilters(list(filters))) == filters[1:]
    assert (reader.options.record_types, reader.options.since) == (("CONFIRM",), int(noon.timestamp()))


def test_only_selected_columns_are_read(spark: SparkSession) -> None:
    assert table(spark, ROLLOVER, columns="type,time").columns == ["type", "time"]
    narrow = spark.read.format("bmq-storage").schema("type string, time timestamp").load(ROLLOVER)
    assert narrow.columns == ["type", "time"] and narrow.count() > 0
    with pytest.raises(Exception, match="no column 'tipe'"):
        table(spark, ROLLOVER, columns="tipe").count()


def test_a_task_excludes_imported_modules_from_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark runs the garbage collector after each task; the first task freezes existing objects."""
    from pyspark.sql.types import LongType, StructType

    from bmqtwist.spark.storage import StorageDataSource

    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    tasks.freeze_imports.cache_clear()
    source = StorageDataSource({"path": ROLLOVER, "maxPartitionRecords": "10"})
    reader = source.reader(StructType().add("sequence", LongType()))
    for part in reader.partitions():
        assert list(reader.read(part)) and frozen == [1]
    assert len(reader.partitions()) > 1


def test_a_journal_is_a_view_in_sql(spark: SparkSession) -> None:
    spark.sql(f"create or replace temporary view journal using `bmq-storage` options (path '{ROLLOVER}')")
    assert spark.sql("select count(*) n from journal where type = 'JOURNAL_OP'").first()["n"] >= 2


@pytest.mark.parametrize("case", ["fanout-partial", "purge", "ttl", "poison", "auto-confirm", "queue-gc-recreated",
                                  "no-quorum-deletion", "app-added-removed"])
def test_lifelines_equal_the_messages_of_the_storage_tool(spark: SparkSession, case: str) -> None:
    from bmqtwist.spark import lifelines

    place = SETS / case / "n1"
    file = ReadOnlyFile(str(journal_in(place)))
    messages_of_tool = {item.message.guid: item for item in by_message(records(JournalScan(file.read, file.size)))
                        if isinstance(item, MessageRecords) and item.message is not None}
    file.close()
    rows = {bytes(row["guid"]): row for row in lifelines(spark, str(journal_in(place))).collect()}
    assert rows.keys() == messages_of_tool.keys()
    for guid, expected in messages_of_tool.items():
        row = rows[guid]
        assert len(row["confirms"]) == len(expected.confirms)
        assert row["state"] == ("purged" if expected.purged else "outstanding" if expected.outstanding else row["state"])
        assert (row["removed"] is None) == expected.outstanding
        assert (row["deletionReason"] is None) == (expected.deletion is None)
        if expected.deletion is not None:
            assert row["state"] == {2: "expired", 4: "no-quorum"}.get(expected.deletion.flags, "confirmed")


@pytest.mark.parametrize("records_max", [1 << 22, 40])
def test_lifelines_of_the_reader_equal_those_computed_from_records(spark: SparkSession, records_max: int) -> None:
    """For all recorded sets including archives, in shares and whole."""
    from pyspark.sql import functions as F

    from bmqtwist.spark import lifelines
    from bmqtwist.spark.tables import OF_MESSAGES, RECORD_COLUMNS, lifelines_of
    from bmqtwist.spark.tables import records as table_of

    def comparable(lines: DataFrame) -> list[Any]:
        rows = lines.withColumn("confirms", F.array_sort("confirms")).withColumn("arrived", F.unix_seconds("arrived"))
        return sorted(map(str, rows.collect()))

    path = ",".join([ROLLOVER, *(str(case) for case in CASES if case.name == "n1" and case.parent.name != "rollover")])
    records = table_of(spark, path, [*RECORD_COLUMNS, *OF_MESSAGES], includeArchive=True)
    made = lifelines(spark, path, includeArchive=True, maxShareRecords=records_max)
    old = lifelines_of(records, OF_MESSAGES)
    expected = comparable(old)
    assert comparable(made.select(*old.columns)) == expected and len(expected) > 100


def test_a_stream_over_journals_returns_each_record_once_across_a_rollover(spark: SparkSession, tmp_path: Path) -> None:
    """First the oldest set, then all sets."""
    place, out = tmp_path / "storage", tmp_path / "out"
    shutil.copytree(Path(ROLLOVER), place)
    archive = place / "archive"
    held = tmp_path / "held"
    held.mkdir()
    oldest = min(archive.glob("*.bmq_journal")).name
    for path in [*archive.iterdir(), *place.glob("bmq_0*")]:
        if not path.name.startswith(oldest.removesuffix(".bmq_journal")):
            shutil.move(path, held / path.name)

    def run() -> None:
        rows = spark.readStream.format("bmq-storage").options(includeArchive="true", maxRecordsPerTrigger="100").load(
            str(place))
        rows.writeStream.format("parquet").option("path", str(out)).option(
            "checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start().awaitTermination()

    run()
    first = spark.read.parquet(str(out)).count()
    for path in held.iterdir():
        shutil.move(path, archive / path.name)
    run()
    keys = [tuple(row) for row in spark.read.parquet(str(out)).select("partition", "lease", "sequence").collect()]
    everything = table(spark, str(place), includeArchive="true").select("partition", "lease", "sequence").collect()
    assert 0 < first < len(keys) == len(set(keys)) and set(keys) == set(map(tuple, everything))


# -- pipelines --------------------------------------------------------------------------------------------------------------


def bmq(*arguments: str) -> str:
    """Return the output of `bmq pipeline`, which uses the session of these tests."""
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def storage(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Live files of a broker with confirmed and unconfirmed messages."""
    uri = "bmq://d.prio/pipelines"
    with Session(broker.url) as session, session.open(uri, read=True, write=True) as queue:
        queue.post_many([(b"payload %d" % number, {"kind": "even" if number % 2 == 0 else "odd", "n": number})
                         for number in range(40)])
        for _ in range(10):
            message = queue.get(5.0)
            assert message is not None
            message.confirm()
        session.step(0.2)
    return broker.config.storage


def test_repeated_archive_jobs_archive_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    from bmqtwist.spark.tables import RECORD_COLUMNS, lifelines_of
    from bmqtwist.spark.tables import records as table_of

    target = str(tmp_path / "archive")
    output = [bmq("archive", ROLLOVER, target, "--cluster", "c") for _ in range(2)]
    assert not output[0].startswith("0 ") and output[1].startswith("0 records archived")
    rows = spark.read.parquet(f"{target}/records")
    finished = table(spark, ROLLOVER + "/archive").select("partition", "lease", "sequence").distinct()
    assert rows.count() == finished.count() == rows.select("partition", "lease", "sequence").distinct().count()
    assert {row["cluster"] for row in rows.select("cluster").distinct().collect()} == {"c"}
    assert rows.where("type = 'MESSAGE' and value is null").count() == 0
    lines = lifelines_of(table_of(spark, f"{target}/records", RECORD_COLUMNS))
    assert lines.count() == rows.where("type = 'MESSAGE'").select("queueKey", "guid").distinct().count() > 0


def test_an_archive_job_counts_the_records_of_all_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Including batches whose progress Spark discards with the setting of the session."""
    from bmqtwist.spark.pipelines.streams import archive

    setting = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(setting, 1)
    try:
        count = archive(spark, ROLLOVER, str(tmp_path / "archive"), records_max=100)
        assert spark.conf.get(setting) == "1"
    finally:
        spark.conf.unset(setting)
    batches = len(list((tmp_path / "archive" / "_checkpoint" / "commits").glob("[0-9]*")))
    assert batches > 2 and count == spark.read.parquet(str(tmp_path / "archive" / "records")).count()


def test_the_report_contains_tables_plots_and_measured_latencies(spark: SparkSession, storage: Path, broker: BrokerProcess,
                                                                 tmp_path: Path) -> None:
    """With the broker's measured latencies."""
    log = broker.root / "logs" / "stat.log.json"

    def confirm_count() -> int:
        """Return the number of confirms in the broker's statistics."""
        found = re.findall(r'"bmq://d.prio/pipelines":\{"confirmLatency":\{([^}]*)\}', log.read_text())
        return sum(int(each.rpartition(":")[2]) for counts in found for each in counts.split(","))

    until(lambda: confirm_count() == 10)
    path = Path(bmq("report", str(storage), str(tmp_path / "report"), "--replica", str(storage), "--statistics", str(log),
                    "--title", "A title").strip())
    measured = spark.read.parquet(str(tmp_path / "report" / "tables" / "measured")).where(
        "queue = 'bmq://d.prio/pipelines'").collect()
    assert [row["messages"] for row in measured] == [10] and 0 < measured[0]["p50"] <= measured[0]["max"] < 60_000
    text = path.read_text(encoding="utf-8")
    assert "<title>A title</title>" in text and "Measured latency" in text and "bmq://d.prio/pipelines" in text
    assert "All records are equal." in text
    assert "<svg" in text and "<script" not in text and "http" not in text.replace("http://www.w3.org", "").replace(
        "http://purl.org", "").replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")
    endings = {row["queue"]: row for row in spark.read.parquet(str(tmp_path / "report" / "tables" / "endings")).collect()}
    found = endings["bmq://d.prio/pipelines"]
    assert (found["messages"], found["confirmed"], found["outstanding"]) == (40, 10, 30)
    assert list((tmp_path / "report").glob("*.png"))


def test_measured_latencies_come_from_the_statistics_logs_of_primaries(spark: SparkSession, tmp_path: Path) -> None:
    """From several prints and nodes; only the primary of a queue counts confirmations."""
    from bmqtwist.spark.tables import measured_latency

    def line(role: int, counts: dict[str, int]) -> str:
        queue = {"confirmLatency": counts, "appIds": {"a": {"confirmLatency": counts, "values": {}}},
                 "values": {"queue_role": role, "queue_put_msgs": 7}}
        return json.dumps({"_timestamp": "t", "domainQueues": {"domains": {"d": {"bmq://d/q": queue}}}})

    first = [line(1, {"1000000": 50}), line(1, {"1000000": 40, "8000000": 9}), line(1, {})]
    (tmp_path / "n1.json").write_text("\n".join(first))
    (tmp_path / "n2.json").write_text("\n".join([line(1, {"64000000": 1}), line(2, {"1": 1000})]))
    found = measured_latency(spark, f"{tmp_path}/n1.json,{tmp_path}/n2.json").orderBy("appId").collect()
    assert [tuple(row) for row in found] == [("bmq://d/q", app, 100, 1.0, 1.0, 8.0, 64.0, 64.0) for app in (None, "a")]


def test_differences_between_replicas_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    from bmqtwist.spark.tables import RECORD_COLUMNS, replica_diff
    from bmqtwist.spark.tables import records as table_of

    place = tmp_path / "other"
    shutil.copytree(SETS / "crash-single" / "n1", place)
    path = journal_in(place)
    data = bytearray(path.read_bytes())
    data[44 + 60 * 3 + 40] ^= 1
    path.write_bytes(data[:44 + 60 * 6])
    columns = [*RECORD_COLUMNS, "crc"]
    left = table_of(spark, str(SETS / "crash-single" / "n1"), columns)
    found = replica_diff(left, table_of(spark, str(place), columns)).orderBy("lease", "sequence").collect()
    assert [row["what"] for row in found][:2] == ["different", "missing right"]


def test_a_replay_posts_the_selected_messages_once_with_properties_of_their_origin(
        spark: SparkSession, broker: BrokerProcess, storage: Path) -> None:
    from bmqtwist.spark.pipelines.replay import MessageSelection, ReplayOptions, replay

    wanted = MessageSelection(("bmq://d.prio/pipelines",), expression="p['kind'] = 'even' and int(p['n']) < 20")
    sink: dict[str, str] = {"bmq.bootstrap.servers": broker.url}
    progress: list[tuple[int, int]] = []
    assert "10 messages would be posted" in bmq(
        "replay", str(storage), "--queue", wanted.queues[0], "--where", wanted.expression, "-b", broker.url, "--dry-run")
    for _ in range(2):
        assert replay(spark, str(storage), sink, wanted, ReplayOptions("bmq://d.prio/again", rate=5.0),
                      lambda done, total: progress.append((done, total))) == 10
    assert progress[-1] == (10, 10) and len(progress) >= 2
    with Session(broker.url) as session, session.open("bmq://d.prio/again", read=True) as queue:
        found: list[Any] = []
        while (message := queue.get(0.5)) is not None:
            found.append(message)
            message.confirm()
    assert sorted(each.payload for each in found) == sorted(b"payload %d" % number for number in range(0, 20, 2))
    assert {each.properties["replay.queue"] for each in found} == {"bmq://d.prio/pipelines"}
    assert all(each.properties["replay.guid"] != each.guid.hex().upper() for each in found)


def test_live_statistics_have_a_row_for_each_window(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    from bmqtwist.spark.pipelines.streams import live

    uri = "bmq://d.prio/live"
    options = {"bmq.bootstrap.servers": broker.url, "subscribe": uri, "availableNow.idle": "300ms"}
    with Session(broker.url) as session, session.open(uri, write=True) as queue:
        for _ in range(2):
            queue.post_many([b"12345"] * 5)
            live(spark, options, str(tmp_path), "1 second", "0 seconds", available_now=True).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "windows")).collect()
    assert sum(row["messages"] for row in rows) in (5, 10) and sum(row["bytes"] for row in rows) in (25, 50)
