"""Queue as a stream, as a table and as a sink, through Spark and a broker process.

The tested modules are `bmqtwist/spark/source.py` and `sink.py`; batches without Spark are tested in `test_engine.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bmqtwist.sdk.results import SdkError
from bmqtwist.sdk.simple import Session
from bmqtwist.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
_numbers = itertools.count(1)


@pytest.fixture
def uri() -> str:
    """A separate queue per test."""
    return f"bmq://d.prio/q{next(_numbers)}"


def post(broker: BrokerProcess, uri: str, *payloads: bytes, properties: dict[str, object] | None = None) -> None:
    with Session(broker.url) as session, session.open(uri, write=True) as queue:
        queue.post_many([(each, properties) for each in payloads])


def left(broker: BrokerProcess, uri: str, wait_s: float = 0.5) -> list[bytes]:
    """Return the unconfirmed messages of a queue without confirming them."""
    found = []
    with Session(broker.url) as session:
        queue = session.open(uri, read=True)
        while (message := queue.get(wait_s)) is not None:
            found.append(message.payload)
    return found


def source(spark: SparkSession, broker: BrokerProcess, uri: str, place: Path | None = None, **more: str) -> DataFrame:
    spool = {"spoolDir": str(place / "spool")} if place is not None else {}
    return spark.readStream.format("bmq").options(**{"bmq.bootstrap.servers": broker.url, "subscribe": uri, **spool,
                                                     "availableNow.idle": "300ms", **more}).load()


def drained(rows: DataFrame, place: Path) -> Any:
    """Drain a queue into Parquet; return the query."""
    query = rows.writeStream.format("parquet").option("path", str(place / "out")).option(
        "checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_draining_a_queue_moves_its_messages_to_the_table(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                          tmp_path: Path) -> None:
    """With all columns, in order of arrival."""
    post(broker, uri, b"one", b"two", properties={"n": 7, "s": "text", "b": b"\x01\xff", "t": True})
    query = drained(source(spark, broker, uri, tmp_path, minPartitions="2"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("seq").collect()
    assert [bytes(row["value"]) for row in rows] == [b"one", b"two"]
    first = rows[0]
    assert first["properties"] == {"n": "7", "s": "text", "b": "01FF", "t": "true"}
    assert first["propertyTypes"] == {"n": "INT64", "s": "STRING", "b": "BINARY", "t": "BOOL"}
    assert [first[name] for name in ("queue", "appId", "size", "redelivered", "problem")] == [uri, None, 3, False, None]
    assert len(first["guid"]) == 16 and first["received"].year >= 2026 and [row["seq"] for row in rows] == [0, 1]
    assert left(broker, uri) == []
    progress = json.loads(query.lastProgress.json)["sources"][0]
    assert {"buffered", "unconfirmed", "lagSeconds"} <= progress["latestOffset"].keys()


def test_a_second_run_continues_after_the_first_one(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                    tmp_path: Path) -> None:
    for number in range(2):
        post(broker, uri, b"%d" % number)
        drained(source(spark, broker, uri, tmp_path), tmp_path)
    assert sorted(bytes(row["value"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [b"0", b"1"]


def test_a_batch_has_at_most_the_configured_number_of_messages_and_only_selected_columns(
        spark: SparkSession, broker: BrokerProcess, uri: str, tmp_path: Path) -> None:
    post(broker, uri, *(b"%d" % number for number in range(25)))
    sizes: list[int] = []
    query = source(spark, broker, uri, tmp_path, maxMessagesPerTrigger="10", includeProperties="false").select(
        "value", "seq").writeStream.foreachBatch(lambda rows, number: sizes.append(rows.count())).option(
        "checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sizes == [10, 10, 5] and left(broker, uri) == []


def test_a_failed_batch_is_not_confirmed_and_is_repeated_unchanged(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                                   tmp_path: Path) -> None:
    """The error is in the query after the source; later messages are in a later batch."""
    post(broker, uri, b"a", b"b")
    got: dict[int, list[bytes]] = {}

    def run(work: Callable[[DataFrame, int], None]) -> None:
        source(spark, broker, uri, tmp_path).writeStream.foreachBatch(work).option(
            "checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()

    def fail(rows: DataFrame, number: int) -> None:
        rows.collect()
        raise ValueError("a mistake")

    def keep(rows: DataFrame, number: int) -> None:
        got.setdefault(number, []).extend(bytes(row["value"]) for row in rows.orderBy("seq").collect())

    with pytest.raises(Exception, match="a mistake"):
        run(fail)
    assert left(broker, uri) == [b"a", b"b"]
    post(broker, uri, b"c")
    run(keep)
    assert got == {0: [b"a", b"b"], 1: [b"c"]} and left(broker, uri) == []


def test_a_query_stopped_after_all_batches_has_confirmed_all_messages(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                                      tmp_path: Path) -> None:
    post(broker, uri, *(b"%d" % number for number in range(50)))
    query = source(spark, broker, uri, tmp_path, maxOffsetsPerTrigger="10").writeStream.format("noop").option(
        "checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    assert left(broker, uri) == []


def test_several_receivers_share_a_queue(spark: SparkSession, broker: BrokerProcess, uri: str, tmp_path: Path) -> None:
    """Each message once, with all columns; its receiver confirms it."""
    post(broker, uri, *(b"%d" % number for number in range(300)), properties={"n": 7})
    drained(source(spark, broker, uri, tmp_path, receivers="2", maxMessagesPerTrigger="100"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(300)) and left(broker, uri) == []
    assert rows[0]["properties"] == {"n": "7"}


def test_app_id_and_subscription_expression_select_messages(spark: SparkSession, broker: BrokerProcess,
                                                            tmp_path: Path) -> None:
    uri = f"bmq://d.fan/q{next(_numbers)}"
    with Session(broker.url) as session:
        session.open(f"{uri}?id=b", read=True).close()
        with session.open(uri, write=True) as queue:
            queue.post_many([(b"%d" % number, {"n": number}) for number in range(6)])
    drained(source(spark, broker, uri, tmp_path, appId="a", subscriptionExpression="n >= 4"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((bytes(row["value"]), row["appId"]) for row in rows) == [(b"4", "a"), (b"5", "a")]
    assert len(left(broker, f"{uri}?id=b")) == 6


def test_a_batch_read_leaves_all_messages_in_the_queue(spark: SparkSession, broker: BrokerProcess, uri: str) -> None:
    """With repeated and partial reads."""
    post(broker, uri, *(b"%d" % number for number in range(5)))
    rows = spark.read.format("bmq").options(**{"bmq.bootstrap.servers": broker.url, "subscribe": uri,
                                               "maxWait": "2s"}).load()
    assert rows.count() == 5 and len(rows.limit(2).collect()) == 2
    assert sorted(left(broker, uri)) == [b"%d" % number for number in range(5)]


def test_an_invalid_option_fails_the_planning_of_the_query(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="subscribe is missing"):
        spark.read.format("bmq").option("bmq.bootstrap.servers", broker.url).load().count()


def test_a_queue_that_cannot_be_opened_fails_the_query_with_the_reason(spark: SparkSession, broker: BrokerProcess,
                                                                       tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unknown.domain|UNKNOWN|REFUSED|NOT_"):
        drained(source(spark, broker, "bmq://unknown.domain/q", tmp_path), tmp_path)


# -- the sink -----------------------------------------------------------------------------------------------------------


def sink(rows: DataFrame, broker: BrokerProcess, **options: str) -> None:
    rows.write.format("bmq").options(**{"bmq.bootstrap.servers": broker.url, **options}).mode("append").save()


def test_rows_become_messages_with_typed_properties(spark: SparkSession, broker: BrokerProcess, uri: str) -> None:
    rows = spark.sql("select cast(id as string) value, named_struct('n', id, 'flag', id = 0, 'none', cast(null as string)) "
                     "properties from range(3)").repartition(2)
    sink(rows, broker, queue=uri)
    with Session(broker.url) as session, session.open(uri, read=True) as queue:
        found = sorted((each.payload, each.properties) for each in (queue.get(5.0) for _ in range(3)) if each is not None)
    assert found == [(b"%d" % number, {"n": number, "flag": number == 0}) for number in range(3)]


def test_the_column_queue_selects_the_target_queue(spark: SparkSession, broker: BrokerProcess, uri: str) -> None:
    rows = spark.createDataFrame([(f"{uri}a", "1"), (f"{uri}b", "2")], "queue string, value string")
    sink(rows, broker)
    assert (left(broker, f"{uri}a"), left(broker, f"{uri}b")) == ([b"1"], [b"2"])


def test_rows_that_are_written_again_are_in_the_queue_once(spark: SparkSession, broker: BrokerProcess, uri: str) -> None:
    """With a key in any write, without a key in the same write."""
    keyed = spark.sql("select cast(id as string) value, concat('k', id % 5) dedupKey from range(10)")
    sink(keyed, broker, queue=uri)
    sink(keyed.repartition(3), broker, queue=uri)
    assert len(left(broker, uri)) == 5
    plain = spark.sql("select 'same' value from range(4)").coalesce(1)
    for _ in range(2):
        sink(plain, broker, queue=f"{uri}x", writeId="w")
    assert left(broker, f"{uri}x") == [b"same"] * 4
    sink(plain, broker, queue=f"{uri}x", writeId="other")
    assert len(left(broker, f"{uri}x")) == 8


def test_a_repeated_task_posts_each_row_once(broker: BrokerProcess, spark: SparkSession, uri: str,
                                             tmp_path: Path) -> None:
    """The first attempt of each task posts all rows and ends before it reports to Spark, as with speculation."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from bmqtwist.spark.options import sink_options
    from bmqtwist.spark.sink import BatchSink

    made = BatchSink(sink_options({"bmq.bootstrap.servers": broker.url, "queue": uri, "writeId": "w"}),
                     StructType.fromDDL("value string"))

    def attempts(numbers: Any) -> Any:
        values = [str(number) for number in numbers]
        for order in (values[::-1], values):
            made.write(iter([pa.RecordBatch.from_pydict({"value": part}) for part in (order[:3], order[3:])]))
        return [len(values)]

    assert spark.sparkContext.parallelize(range(20), 2).mapPartitions(attempts).sum() == 20
    assert sorted(map(int, left(broker, uri))) == list(range(20))


def test_a_refused_message_fails_the_task_with_its_reason(spark: SparkSession, broker: BrokerProcess) -> None:
    broker.domain("d.full", max_messages=3)
    rows = spark.sql("select cast(id as string) value from range(10)").coalesce(1)
    with pytest.raises(Exception, match="LIMIT_MESSAGES"):
        sink(rows, broker, queue="bmq://d.full/q")


def test_a_streaming_query_posts_each_row_once(spark: SparkSession, broker: BrokerProcess, uri: str, tmp_path: Path) -> None:
    """From one queue to another, with two rows per message."""
    post(broker, uri, *(b"%d" % number for number in range(20)))
    rows = source(spark, broker, uri, tmp_path, maxOffsetsPerTrigger="8").selectExpr(
        "concat('x', cast(value as string)) value")
    rows.writeStream.format("bmq").options(**{"bmq.bootstrap.servers": broker.url, "queue": f"{uri}out"}).option(
        "checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(left(broker, f"{uri}out")) == sorted(b"x%d" % number for number in range(20))
    assert left(broker, uri) == []


@pytest.mark.parametrize(("columns", "text"), [
    ("1 as value", "value of type"), ("'x' as value, 1 as extra", "no column 'extra'"),
    ("'x' as value, 'k' as dedupKey, cast('g' as binary) as guid", "not both"),
    ("'x' as value, 1 as properties", "properties to be a map"),
])
def test_an_unsuitable_table_fails_before_a_row_is_posted(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                          columns: str, text: str) -> None:
    with pytest.raises(Exception, match=text):
        sink(spark.sql(f"select {columns}"), broker, queue=uri)
    with pytest.raises(SdkError), Session(broker.url) as session:
        session.open("bmq://unknown.domain/q", read=True)


def test_drain_returns_the_messages_of_all_drains_to_its_path(spark: SparkSession, broker: BrokerProcess, uri: str,
                                                              tmp_path: Path) -> None:
    from bmqtwist.spark import drain

    options = {"bmq.bootstrap.servers": broker.url, "subscribe": uri, "availableNow.idle": "300ms"}
    for number in range(2):
        post(broker, uri, b"%d" % number)
        found = drain(spark, options, str(tmp_path / "d"))
        assert sorted(bytes(row["value"]) for row in found.collect()) == [b"%d" % each for each in range(number + 1)]
