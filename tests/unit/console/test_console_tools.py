"""Console operations on domains, storage files, delayed stops, and demonstration traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.console import ConsoleWorld

from bmqtwist.console import documents_api as copies
from bmqtwist.console.access import Refusal
from bmqtwist.console.demonstration import PAUSE_PERIOD_S, PAUSE_S, Demonstration, DemonstrationQueue
from bmqtwist.console.merge import merge_domains
from bmqtwist.console.samples import FlowSampler
from bmqtwist.console.stops import STOP_STARTED, DelayedStop
from bmqtwist.errors import LocalError
from bmqtwist.view import storage_files
from bmqtwist.view.stopping import STAGES

URI = "bmq://d/q"
MESSAGES = 30


@pytest.fixture
def console(tmp_path: Path) -> ConsoleWorld:
    """Console of a broker with a queue of some messages, one of them confirmed."""
    made = ConsoleWorld(tmp_path)
    world = made.world
    world.domain("d")
    producer = world.producer(URI)
    for number in range(MESSAGES):
        producer.post(b"message %d" % number)
    world.run()
    made.read_csrf()
    return made


def edit_domain_file(console: ConsoleWorld, name: str, **parameters: Any) -> None:
    """Change the file of a domain."""
    path = console.world.config.etc / "domains" / f"{name}.json"
    document = json.loads(path.read_text())
    document["definition"]["parameters"].update(parameters)
    path.write_text(json.dumps(document))


# -- domains ----------------------------------------------------------------------------------------------------------


def test_the_list_of_domains_includes_domains_in_use_and_domain_files(console: ConsoleWorld) -> None:
    console.world.domain("unused")
    rows = {row["name"]: row for row in console.ask("/api/v1/domains").json["domains"]}
    assert rows["d"]["inUse"] and rows["d"]["queues"] == 1 and rows["d"]["messages"] == MESSAGES
    assert rows["d"]["nodes"] == ["n1"] and rows["d"]["mode"] == "priority"
    assert not rows["unused"]["inUse"] and rows["unused"]["nodes"] == []


def test_domain_rows_of_several_nodes_are_added() -> None:
    row = {"name": "d", "inUse": True, "cluster": "c", "queues": 2, "messages": 3, "bytes": 4, "mode": "priority"}
    idle = {"name": "d", "inUse": False, "cluster": "", "queues": 0, "messages": 0, "bytes": 0, "mode": ""}
    (found,) = merge_domains({"n1": [idle], "n2": [row], "n3": [row]})
    assert found["mode"] == "priority" and found["nodes"] == ["n2", "n3"]
    assert (found["queues"], found["messages"], found["bytes"]) == (4, 6, 8)
    (found,) = merge_domains({"n2": [row], "n3": [{**idle, "inUse": True, "queues": 1, "messages": 5}]})
    assert (found["mode"], found["inUse"], found["queues"], found["messages"]) == ("priority", True, 3, 8), "n3 has a copy"


def test_a_changed_domain_file_is_shown_beside_the_loaded_definition(console: ConsoleWorld) -> None:
    found = console.ask("/api/v1/domain?name=d").json
    assert found["config"] == found["file"] and found["problem"] == ""
    edit_domain_file(console, "d", messageTtl=77)
    found = console.ask("/api/v1/domain?name=d").json
    assert found["file"]["messageTtl"] == 77 != found["config"]["messageTtl"]
    assert console.ask("/api/v1/domain?name=d").json["config"] == found["config"], "reading changes no setting"
    assert console.post("/api/v1/domains/d/reconfigure", {"reason": "r"}).json["ok"]
    assert console.ask("/api/v1/domain?name=d").json["config"]["messageTtl"] == 77


def test_an_invalid_domain_file_is_shown_with_its_problem_and_not_logged(console: ConsoleWorld) -> None:
    before = len(console.world.report.lines)
    edit_domain_file(console, "d", mode={"broadcast": {}})
    found = console.ask("/api/v1/domain?name=d").json
    assert found["file"] is None and "must have its storage in memory" in found["problem"] and found["config"]
    assert console.world.report.lines[before:] == []
    assert console.ask("/api/v1/domain?name=none").status == 404
    assert console.ask("/api/v1/domain?name=..%2F..%2Fbmqbrkrcfg").status == 404


# -- storage ----------------------------------------------------------------------------------------------------------


def partition_of(console: ConsoleWorld) -> int:
    return int(console.ask("/api/v1/queues").json["rows"][0]["partition"])


def test_the_storage_files_of_a_node_are_listed(console: ConsoleWorld) -> None:
    found = console.ask("/api/v1/storage").json
    assert found["node"] == "n1"
    journal, data, _ = found["partitions"][partition_of(console)]["files"]
    assert journal["kind"] == "journal" and journal["used"] > MESSAGES * 60 and journal["used"] <= journal["max"]
    assert data["outstanding"] > 0


def test_records_are_counted_by_type(console: ConsoleWorld) -> None:
    found = console.ask(f"/api/v1/storage/records?partition={partition_of(console)}").json
    counts = {row["kind"]: row["records"] for row in found["kinds"]}
    assert counts["MESSAGE"] == MESSAGES and counts["QUEUE_OP"] >= 1
    assert sum(counts.values()) * 60 == found["bytes"] - 44
    assert console.ask("/api/v1/storage/records?partition=99").status == 409
    assert console.ask("/api/v1/storage/records?partition=-1").status == 400


@pytest.mark.parametrize("step", [7, storage_files.STEP_RECORDS])
def test_a_journal_is_read_from_its_end_page_by_page(console: ConsoleWorld, step: int,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_files, "STEP_RECORDS", step)
    path, seen, before = f"/api/v1/storage/journal?partition={partition_of(console)}&limit=7", list[int](), 0
    while True:
        page = console.ask(f"{path}&before={before}" if before else path).json
        seen += [row["sequence"] for row in page["records"]]
        if page["next"] is None:
            break
        before = page["next"]
    assert seen == list(range(max(seen), 0, -1)) and len(seen) > MESSAGES
    kinds = console.ask(f"{path}&kind=MESSAGE").json["records"]
    assert len(kinds) == 7 and {row["kind"] for row in kinds} == {"MESSAGE"} and kinds[0]["queue"] == URI
    guid = dict(kinds[3]["fields"])["GUID"]
    (row,) = console.ask(f"{path}&guid={guid.lower()}").json["records"]
    assert row["sequence"] == kinds[3]["sequence"]
    assert console.ask(f"{path}&kind=NONSENSE").status == 409


def test_copies_of_a_partition_are_compared_in_their_common_range(console: ConsoleWorld) -> None:
    partition = partition_of(console)
    found = console.ask(f"/api/v1/storage/compare?partition={partition}").json
    assert found["differing"] == [] and found["missing"] == {} and found["comparedRecords"] == found["last"][1] > MESSAGES
    reached = [{"first": [1, 1], "last": [2, 50]}, {"first": [1, 40], "last": [2, 70]}]
    assert copies.common_range(reached) == ((1, 40), (2, 50))
    one = {"blocks": {"1-0": [10, 5], "1-1": [1000, 7], "2-0": [3, 9]}}
    assert copies.differing_blocks({"n1": one, "n2": {"blocks": dict(one["blocks"])}}) == (1013, [])
    other = {"blocks": {"1-0": [10, 5], "1-1": [1000, 8]}}
    assert copies.differing_blocks({"n1": one, "n2": other})[1] == [{"lease": 1, "from": 1000, "to": 1999},
                                                                {"lease": 2, "from": 0, "to": 999}]


def test_a_differing_copy_of_a_record_is_found(console: ConsoleWorld) -> None:
    """One bit of a GUID differs between two copies of the same records."""
    partition = console.world.broker.clusters["c3"].partitions[partition_of(console)]

    def checked() -> Any:
        reached = storage_files.comparable_range(partition)
        steps = storage_files.checksums_in_steps(partition, tuple(reached["first"]), tuple(reached["last"]))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    good, read = checked(), partition.files.read_journal

    def damaged(offset: int, size: int) -> bytes:
        data = bytearray(read(offset, size))
        if size > 60:
            data[60 * 20 + 45] ^= 1
        return bytes(data)

    partition.files.read_journal = damaged  # type: ignore[method-assign]
    assert copies.differing_blocks({"n1": good, "n2": checked()})[1]


# -- stops ------------------------------------------------------------------------------------------------------------


def test_a_delayed_stop_can_be_aborted_before_it_begins(console: ConsoleWorld) -> None:
    asked = {"confirm": "n1", "reason": "new kernel", "delay": 30}
    assert console.post("/api/v1/nodes/n1/stop", asked).json == {"ok": True}
    console.advance(10.0)
    (node,) = console.ask("/api/v1/cluster").json["nodes"]
    assert node["state"] == "up" and node["stop"]["stage"] == STAGES[0] and 19 < node["stop"]["secondsLeft"] <= 20
    assert node["stop"]["stages"] == list(STAGES)
    again = console.post("/api/v1/nodes/n1/stop", asked)
    assert again.status == 409 and "new kernel" in again.json["error"]
    assert console.post("/api/v1/nodes/n1/abort-stop", {}).json == {"ok": True}
    console.advance(60.0)
    assert not console.host.stops and console.ask("/api/v1/cluster").json["nodes"][0]["stop"] is None
    assert console.post("/api/v1/nodes/n1/abort-stop", {}).json["error"] == "No stop of this node is scheduled."
    assert console.post("/api/v1/nodes/n1/stop", {**asked, "delay": -1}).json["field"] == "delay"


def test_a_delayed_stop_begins_after_its_delay(console: ConsoleWorld) -> None:
    console.post("/api/v1/nodes/n1/stop", {"confirm": "n1", "reason": "r", "delay": 30})
    console.advance(29.0)
    assert not console.host.stops
    console.advance(2.0)
    assert console.host.stops == [("r", "local")]


def test_a_stop_in_progress_cannot_be_aborted(console: ConsoleWorld) -> None:
    stop = DelayedStop(console.host)  # type: ignore[arg-type]
    stop.request("r", "ada", 0)
    console.host.node.broker.stop(console.world.now, "r", "ada")
    with pytest.raises(Refusal) as refused:
        stop.abort("ada")
    assert refused.value.reason == STOP_STARTED and console.host.stops == [("r", "ada")]


def test_a_sent_document_keeps_its_state_of_a_rolling_restart(console: ConsoleWorld) -> None:
    """Patches are the differences from the last sent document: a change inside it would never be sent."""
    assert console.post("/api/v1/rolling-restart", {"reason": "r", "confirm": "restart all"}).status == 200
    sent = console.service.collector.action_states()["restart"]
    for _ in range(5):
        console.advance(1.0)
    assert sent["text"] == "beginning"
    assert console.ask("/api/v1/cluster").json["restart"]["text"] == "restarting n1"


# -- rates ------------------------------------------------------------------------------------------------------------


def test_client_rates_are_counter_differences_and_none_at_first() -> None:
    sampler = FlowSampler()
    assert sampler.sample(0.0, {"a": (10, 100, 0, 0)})["a"]["putRate"] is None
    found = sampler.sample(2.0, {"a": (30, 300, 0, 0), "b": (5, 5, 5, 5)})
    assert found["a"] == {"putRate": 10.0, "putBytesRate": 100.0, "pushRate": 0.0, "pushBytesRate": 0.0}
    assert found["b"]["putRate"] is None
    assert sampler.sample(4.0, {"a": (50, 500, 0, 0)})["a"]["putRate"] == 10.0


def test_clients_of_a_queue_are_shown_with_their_rates(console: ConsoleWorld) -> None:
    path = f"/api/v1/queue?uri={URI}"
    consumer = console.world.consumer(URI)
    console.world.run()
    console.ask(path)
    producer = console.world.producer(URI)
    for _ in range(20):
        producer.post(b"x" * 50)
    console.world.run()
    console.advance(2.0)
    found = console.ask(path).json
    assert consumer is not None and found["tree"]["bytesRate"] > 0
    assert found["consumers"][0]["pushRate"] > 0 and found["consumers"][0]["queues"] == 1
    leaf = next(each for each in found["tree"]["children"] if each["name"] == found["consumers"][0]["client"])
    assert leaf["pushRate"] == found["consumers"][0]["pushRate"]


# -- demonstration traffic --------------------------------------------------------------------------------------------


def test_demonstration_traffic_is_offered_only_where_it_is_configured(tmp_path: Path, console: ConsoleWorld) -> None:
    assert console.ask("/api/v1/cluster").json["demo"] is None
    refused = console.post("/api/v1/demo/start", {})
    assert refused.status == 409 and "demoDomains" in refused.json["error"]
    offered = ConsoleWorld(tmp_path / "offered", {"demoDomains": ["d"]})
    assert offered.ask("/api/v1/cluster").json["demo"]["running"] is False


def test_demonstration_traffic_starts_once_and_requires_a_listener(tmp_path: Path) -> None:
    host = ConsoleWorld(tmp_path, {"demoDomains": ["d"]}).host
    without_listener = Demonstration(host)  # type: ignore[arg-type]
    without_listener._address = ""
    with pytest.raises(LocalError, match="without TLS"):
        without_listener.start("ada")
    assert without_listener.state is not None and not without_listener.state["running"]
    without_listener.stop("ada")
    assert not any("demonstration" in line for _, line in host.report.lines)


def test_demonstration_consumers_pause_at_different_times() -> None:
    queues = [DemonstrationQueue(None, number) for number in range(3)]  # type: ignore[arg-type]
    for queue in queues:
        resting = sum(queue.is_paused(second) for second in range(int(10 * PAUSE_PERIOD_S)))
        assert resting == pytest.approx(10 * PAUSE_S, abs=10)
        assert all(0 < queue.rate(second) < 20 for second in range(300))
    assert not any(all(queue.is_paused(second) for queue in queues) for second in range(300))
