"""Start-up, configuration and domains: broker.md 21.1."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.client import refusal
from kit.config import app_subscription, domain_config
from kit.process import START_SECONDS_MAX, BrokerProcess, free_port
from kit.world import World

from bmqtwist.cli.cluster.processes import broker_command
from bmqtwist.errors import BmqError

spec = pytest.mark.spec


@pytest.mark.only_real
@spec("broker", 1)
def test_a_valid_directory_starts_a_broker_that_listens_and_stops_on_sigterm(world: Any) -> None:
    """The exit code is 0; the pid file has its pid."""
    world.domain()
    world.producer().post()
    assert (world.root / "bmqbrkr.pid").read_text(encoding="ascii").strip() == str(world.broker.process.pid)
    world.expect_log("STARTED bmqbrkr [pid: ")
    lines = [line for line in world.log() if "BMQbrkr started successfully" in line or " is available" in line]
    assert "started" in lines[0] and lines[1].endswith("Cluster (c3) is available") and len(lines) == 2
    world._drop_clients()
    assert world.broker.terminate() == 0
    world.expect_log("BMQbrkr stopped (shutdown took")


@spec("broker", 2)
def test_unknown_keys_are_accepted_in_every_file(broker_process: BrokerProcess) -> None:
    """Keys of other versions must not prevent a start."""
    config = broker_process.config
    config.broker["mystery"] = 1
    config.broker["appConfig"]["mystery"] = {"deep": []}
    config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]["mystery"] = "x"
    config.clusters["mystery"] = []
    config.clusters["myClusters"][0]["mystery"] = True
    config.write()
    domain = domain_config("d")
    domain["mystery"] = domain["definition"]["mystery"] = domain["definition"]["parameters"]["mystery"] = None
    config.domain_text("d", json.dumps(domain))
    broker_process.start()
    from kit.client import Client
    from kit.process import SocketLink
    client = Client(SocketLink(broker_process.port), "c")
    client.negotiate()
    client.open("bmq://d/q", write=1).post()
    client.drop()


def start_fails(broker: BrokerProcess, code: int | None = None) -> str:
    """Start a broker that must fail; return its output."""
    broker.config.write()
    broker.launch()
    exit_code = broker.wait()
    assert exit_code != 0
    assert code in (None, exit_code)
    text = "\n".join(broker.records)
    assert "BMQbrkr started successfully" not in text
    assert "PANIC [STARTUP] (" in text, text
    return text


@spec("broker", 3)
def test_a_print_interval_that_is_no_multiple_of_the_snapshot_interval_fails_the_start(
        broker_process: BrokerProcess) -> None:
    stats = broker_process.config.broker["appConfig"]["stats"]
    stats["snapshotInterval"], stats["printer"]["printInterval"] = 7, 60
    start_fails(broker_process)


@spec("broker", 4)
def test_a_publish_interval_beyond_the_print_interval_fails_the_start(broker_process: BrokerProcess) -> None:
    """Statistics are kept for one print interval."""
    stats = broker_process.config.broker["appConfig"]["stats"]
    stats["plugins"] = [{"name": "PrometheusStatConsumer", "publishInterval": 120}]
    start_fails(broker_process)


@pytest.mark.only_real
@spec("broker", 5)
@pytest.mark.setting(start=False)
def test_clients_of_two_listeners_share_the_queues(world: Any) -> None:
    """A producer on one port, a consumer on the other."""
    listeners = world.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]["listeners"]
    listeners.append({"name": "second", "address": "127.0.0.1", "port": free_port(), "tls": False})
    world.config.write()
    world.start()
    world.domain()
    producer = world.client(listener=0).open("bmq://d/q", write=1)
    consumer = world.client(listener=1).consume("bmq://d/q")
    producer.post(b"m")
    assert world.new_payloads(consumer) == [b"m"]


@spec("broker", 6)
def test_a_storage_directory_that_is_missing_and_cannot_be_made_fails_the_start(broker_process: BrokerProcess) -> None:
    """With exit code 6 and the reason."""
    storage = broker_process.config.storage
    storage.rmdir()
    storage.symlink_to(storage.parent / "nowhere" / "at all")
    text = start_fails(broker_process, 6)
    assert "PANIC [STARTUP]" in text
    assert "Failed to open cluster state ledger" in text


@pytest.mark.parametrize("text", [None, "{", "{}", '{"appConfig": {"stats": 5}}'])
def test_an_unreadable_or_undecodable_broker_config_fails_the_start(broker_process: BrokerProcess, text: str | None) -> None:
    """With exit code 2."""
    path = broker_process.config.etc / "bmqbrkrcfg.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    broker_process.launch()
    assert broker_process.wait() == 2
    assert "PANIC [STARTUP] (-1): Failed to read the config [file: " in "\n".join(broker_process.records)


def test_the_version_option_prints_and_exits(broker_process: BrokerProcess) -> None:
    broker_process.launch("-v")
    assert broker_process.wait() == 0
    assert any("version" in record.lower() for record in broker_process.records)


# -- domains


@spec("broker", 7)
def test_an_open_in_an_unknown_domain_fails_and_others_are_unaffected(world: World) -> None:
    """With UNKNOWN, code -1 and the name of the file."""
    world.domain("d")
    refused = refusal(world.client().open, "bmq://nosuch/q", write=1)
    assert (refused.category, refused.code) == ("E_UNKNOWN", -1)
    assert "domains/nosuch.json' doesn't exist" in refused.message
    world.producer("bmq://d/q").post()


@pytest.mark.real
@spec("broker", 8)
def test_a_domain_created_while_running_can_be_used(world: World) -> None:
    """Without a restart or command."""
    client = world.client()
    assert refusal(client.open, "bmq://d/q", write=1).category == "E_UNKNOWN"
    world.domain("d")
    world.producer("bmq://d/q").post()


@spec("broker", 10)
def test_a_redirected_domain_uses_the_configuration_of_its_target(world: World) -> None:
    """Its limits and its queues."""
    world.domain("b", "fanout", apps=["only"])
    world.config.domain_text("a", json.dumps({"redirect": "b"}))
    producer = world.producer("bmq://a/q")
    producer.post(b"m")
    assert world.new_payloads(world.consumer("bmq://a/q", "only")) == [b"m"]
    assert producer.answer["routingConfiguration"]["flags"] == 10


@spec("broker", 11)
def test_a_redirect_loop_is_refused(world: World) -> None:
    """One redirection is allowed."""
    for name, target in (("a", "b"), ("b", "a")):
        world.config.domain_text(name, json.dumps({"redirect": target}))
    refused = refusal(world.client().open, "bmq://a/q", write=1)
    assert (refused.category, refused.code) == ("E_UNKNOWN", -3)
    assert "Too many redirections" in refused.message


@spec("broker", 12)
def test_a_tier_is_a_domain_of_its_own(world: World) -> None:
    """It has its own file and messages."""
    world.domain("d")
    world.domain("d.~lab", queue_messages=0)
    lab = world.producer("bmq://d.~lab/q")
    assert [lab.status_of(b"lab"), lab.status_of(b"lab")] == [0, 1]
    assert world.new_payloads(world.consumer("bmq://d/q")) == []
    assert world.new_payloads(world.consumer("bmq://d.~lab/q")) == [b"lab"]


@spec("broker", 13)
def test_a_malformed_domain_file_can_be_corrected(world: World) -> None:
    """Invalid JSON: UNKNOWN -2, and a corrected file is read at the next open.

    Invalid values: REFUSED -10, and a corrected file needs RECONFIGURE.
    """
    client = world.client()
    world.config.domain_text("d", '{"definition": ')
    refused = refusal(client.open, "bmq://d/q", write=1)
    assert (refused.category, refused.code) == ("E_UNKNOWN", -2)
    assert "Error while decoding domain configuration [domain: 'd'" in refused.message
    world.domain("d")
    client.open("bmq://d/q", write=1).post()
    world.domain("e", subscriptions=[app_subscription("", "x >")])
    refused = refusal(client.open, "bmq://e/q", write=1)
    assert (refused.category, refused.code) == ("E_REFUSED", -10)
    assert "ConfigProvider failed to load domain config" in refused.message
    world.reconfigure("e")
    client.open("bmq://e/q", write=1).post()


@spec("broker", 14, 15)
def test_an_edited_file_counts_only_after_reconfigure(world: World) -> None:
    """RECONFIGURE of an unchanged file succeeds without effect."""
    world.domain(queue_messages=0)
    producer = world.producer()
    assert [producer.status_of(), producer.status_of()] == [0, 1]
    world.domain(queue_messages=10)
    assert producer.status_of() == 1
    assert world.admin("DOMAINS RECONFIGURE d") == "SUCCESS"
    assert producer.status_of() == 0
    assert world.admin("DOMAINS RECONFIGURE d") == "SUCCESS"
    assert producer.status_of() == 0


@spec("broker", 16)
@pytest.mark.parametrize(("change", "message"), [
    ({"mode": "broadcast", "in_memory": True}, "Reconfiguration of domain routing mode is not allowed (was "),
    ({"mode": "fanout"}, "Reconfiguration of domain routing mode is not allowed (was "),
    ({"in_memory": True}, "Reconfiguration of storage type is not allowed (was ")])
def test_mode_and_storage_type_cannot_change(world: World, change: dict[str, Any], message: str) -> None:
    """The error says so; the previous configuration remains."""
    world.domain()
    producer = world.producer()
    producer.post(b"1")
    assert message in world.reconfigure(**change)
    producer.post(b"2")
    assert world.new_payloads(world.consumer()) == [b"1", b"2"]


@spec("broker", 17)
def test_a_watermark_ratio_beyond_one_is_refused(world: World) -> None:
    """The previous configuration remains; a domain without one does not exist."""
    world.domain(queue_messages=0)
    producer = world.producer()
    producer.post()
    answer = world.reconfigure(queue_messages=10, queue_messages_ratio=1.5)
    assert "'messagesWatermarkRatio' must be in range [0; 1], got: 1.5" in answer
    assert producer.status_of() == 1
    assert world.reconfigure("x", queue_messages_ratio=1.5) == "Domain 'x' doesn't exist"


@spec("broker", 19)
def test_a_domain_moved_to_another_cluster_is_not_served_here_after_a_restart(world: World) -> None:
    world.domain()
    world.producer().post()
    world.domain(cluster="another")
    world.restart()
    refused = refusal(world.client().open, "bmq://d/q", write=1)
    assert (refused.category, refused.code) == ("E_REFUSED", -10)
    assert "another" in refused.message


@spec("broker", 20)
def test_infos_of_a_domain_that_is_not_loaded_yet_is_answered(world: World) -> None:
    """A domain exists if its file does."""
    world.domain()
    assert "ActiveQueues ..: 0" in world.admin("DOMAINS DOMAIN d INFOS")


@spec("broker", 21)
def test_reconfiguring_a_domain_without_file_is_an_error(world: World) -> None:
    """The message is that of the original."""
    assert world.admin("DOMAINS RECONFIGURE x") == "Domain 'x' doesn't exist"


@pytest.mark.real
@spec("broker", 22)
def test_the_configuration_dump_shows_the_listening_port(world: World) -> None:
    """In JSON."""
    dump = json.loads(world.admin("BROKERCONFIG DUMP"))
    assert dump["networkInterfaces"]["tcpInterface"]["port"] == world.config.port


def test_a_file_backed_broadcast_domain_is_refused(world: World) -> None:
    """The original crashes on it."""
    world.domain("b", "broadcast")
    assert refusal(world.client().open, "bmq://b/q", write=1).category == "E_REFUSED"


def test_a_bad_key_file_ends_the_start_before_a_client_can_connect(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    broker = BrokerProcess(tmp_path / "broker", free_port(), app={"bmqtwist": {"http": {
        "port": free_port(), "keyFile": str(tmp_path / "key")}}})
    assert "http.keyFile" in start_fails(broker)
    assert not any("successfully listening" in line for line in broker.records)
    broker.cleanup()


@pytest.mark.process
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_broker_starts_with_closed_standard_streams(broker_process: BrokerProcess, closed: str) -> None:
    """As some supervisors start it."""
    broker_process.command = ["sh", "-c", f'exec "$@" {closed}', "sh", *broker_command()]
    broker_process.launch()
    answer, end = "", time.monotonic() + START_SECONDS_MAX
    while not answer:
        assert broker_process.running and time.monotonic() < end
        with suppress(BmqError, OSError):
            answer = broker_process.admin("DOMAINS DOMAIN bmq.test.mem.priority INFOS")
        time.sleep(0.05)
    assert broker_process.stop() == 0
