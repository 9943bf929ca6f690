"""State of a queue: admin commands, statistics, metrics and the console show the same values."""

from __future__ import annotations

import json
import re

from kit.admin_kit import Bench
from kit.layers import PACKAGE
from kit.statistics import families

from bmqtwist.console.queues import QueueBook
from bmqtwist.steps import at_once
from bmqtwist.view import snapshots
from bmqtwist.view.queue_facts import queue_view, stored

URI, DOMAIN = "bmq://d/q", "DOMAINS DOMAIN d "


def console_row(bench: Bench) -> dict[str, object]:
    book = QueueBook(lambda: bench.cluster.queues.values())
    book.begin_sweep(lambda: bench.now)
    while book.step():
        pass
    return book.rows([URI], bench.now, 0.0)[0]


def test_admin_commands_metrics_and_console_show_the_same_depth_of_a_queue() -> None:
    bench = Bench()
    bench.write_domain()
    bench.post(bench.open(), b"1", b"22", b"333")
    queue = bench.queue()
    assert stored(queue) == (3, 6)
    internals = json.loads(bench.run(f"ENCODING JSON_COMPACT {DOMAIN}QUEUE q INTERNALS"))
    storage = internals["queueInternals"]["state"]["storage"]
    infos = json.loads(bench.run(f"ENCODING JSON_COMPACT {DOMAIN}INFOS"))["domainInfo"]["storageContent"]["storages"][0]
    listed = re.search(r"/ (\d+)\] \(total: (\d+)", bench.run(f"{DOMAIN}QUEUE q LIST 0 UNLIMITED"))
    at_once(bench.statistics.sampling(bench.now, snapshots.sources(bench.broker)))
    metrics = {family.name: family.samples[0][1] for family in families(
        at_once(snapshots.broker_in_steps(bench.broker, bench.now)), bench.statistics)}
    row = console_row(bench)
    assert listed is not None
    assert {(storage["numMessages"], storage["numBytes"]), (infos["numMessages"], infos["numBytes"]),
            (int(listed[1]), int(listed[2])), (metrics["queue_msgs_current"], metrics["queue_bytes_current"]),
            (row["messages"], row["bytes"]), stored(queue)} == {(3, 6)}


def test_a_queue_view_has_the_age_of_its_oldest_message_and_its_quota_usage() -> None:
    bench = Bench()
    bench.write_domain()
    poster = bench.open()
    assert queue_view(bench.queue()).age(1e10) is None
    bench.post(poster, b"1", b"22")
    seen = queue_view(bench.queue(), 7.0)
    assert seen.oldest_wall is not None and (seen.at, seen.counters, seen.writers) == (7.0, (2, 0, 0), 1)
    assert seen.age(seen.oldest_wall + 30) == 30 and seen.age(seen.oldest_wall - 1) == 0
    assert seen.message_limit and seen.byte_limit
    assert seen.quota == max(2 / seen.message_limit, 3 / seen.byte_limit)


def test_the_console_reads_the_broker_only_through_view() -> None:
    """Only view/ may read the parts of a cluster and the counters and messages of queues."""
    live = re.compile(r"\.(metadata|leadership|replication|members|relays|downstreams|meter|stats|apps|handles)\b")
    found = [f"{path.name}: {line.strip()}" for path in sorted((PACKAGE / "console").glob("*.py"))
             for line in path.read_text(encoding="utf-8").splitlines()
             if live.search(line) and not line.startswith(("from ", "import "))]
    assert found == []
