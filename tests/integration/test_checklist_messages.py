"""Message content, storage and deletion: broker.md 21.11 and 21.12."""

from __future__ import annotations

from typing import Any

import pytest
from kit import codec
from kit.client import payloads
from kit.world import World

spec = pytest.mark.spec
OLD_FEATURES = "PROTOCOL_ENCODING:BER,JSON"
EVERY_TYPE: dict[str, Any] = {"a": ("BOOL", True), "b": ("CHAR", 65), "c": ("SHORT", -5), "d": ("INT32", 1 << 30),
                              "e": ("INT64", -(1 << 62)), "f": ("STRING", "täxt"), "g": ("BINARY", b"\0\1\xff")}


@pytest.mark.real
@spec("broker", 197)
def test_properties_of_all_types_arrive_as_posted_though_the_set_changes(world: World) -> None:
    """Consumers must not assume that the next message has the same property names."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    sets: list[dict[str, Any]] = [EVERY_TYPE, {"a": ("INT64", 1)}, {}, {"z": ("STRING", ""), "a": ("BOOL", False)},
                                  EVERY_TYPE]
    for properties in sets:
        producer.post(b"m", properties=properties or None)
    pushes = world.pushes(consumer)
    assert [push.properties or {} for push in pushes] == sets
    assert payloads(pushes) == [b"m"] * 5


@spec("broker", 198)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("features", [OLD_FEATURES, OLD_FEATURES + ";MPS:MESSAGE_PROPERTIES_EX"])
def test_old_and_new_property_styles_can_be_mixed(world: World, v2: bool, compress: bool, features: str) -> None:
    """The broker converts v2 to v1 for a client without v2, and never converts v1; values and payloads are equal."""
    world.domain()
    world.producer().post(b"payload" * 300, properties=EVERY_TYPE, v2=v2, compress=compress)
    client = world.client(features=features)
    push = world.pushes(client.consume("bmq://d/q"))[0]
    assert push.properties == EVERY_TYPE
    assert push.payload == b"payload" * 300
    if features == OLD_FEATURES or not v2:
        assert push.schema_id == 0


@spec("broker", 199)
@pytest.mark.real
def test_compressed_payloads_pass_through_and_survive_a_restart(world: World) -> None:
    """The broker stores compressed payloads; consumers decompress them."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"squeeze me " * 1000, compress=True)
    producer.post(b"squeeze me " * 1000, compress=True, properties={"k": "v"})
    pushes = world.pushes(consumer)
    assert payloads(pushes) == [b"squeeze me " * 1000] * 2
    assert [push.compression for push in pushes] == [1, 1]
    world.restart()
    pushes = world.pushes(world.consumer())
    assert payloads(pushes) == [b"squeeze me " * 1000] * 2
    assert pushes[1].values == {"k": "v"}


@spec("broker", 202)
@pytest.mark.real
def test_binary_payloads_and_guids_are_the_same_at_both_ends(world: World) -> None:
    """With all byte values, zeros at the end, and sizes near a multiple of the padding."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    sent = [bytes(range(256)), b"\0", b"\0" * 4, b"\1\1", b"abc\4\4\4\4", b"\xff" * 5]
    guids = [producer.post(payload) for payload in sent]
    pushes = world.pushes(consumer)
    assert payloads(pushes) == sent
    assert [push.guid for push in pushes] == guids


def test_a_payload_above_64_mib_is_nacked(world: World) -> None:
    """The original accepts it from a client without an SDK; official SDKs never send it."""
    world.domain(in_memory=True)
    producer = world.producer()
    assert producer.status_of(bytes((64 << 20) + 1)) == 5
    producer.post(b"still here")


def test_schema_ids_of_a_producer_are_not_mixed_up_at_a_consumer(world: World) -> None:
    """Schema ids are per connection; the original maps them, this broker always sends 1."""
    world.domain()
    consumer = world.consumer()
    for name, schema_ids in (("one", (3, 2, 5, 2)), ("two", (7, 6, 2, 3))):
        producer = world.producer(name=name)
        for number, schema_id in enumerate(schema_ids):
            producer.post(b"m", properties={f"{name}{number}": number}, schema_id=schema_id)
    pushes = world.pushes(consumer)
    assert [push.values for push in pushes] == [{f"{n}{i}": i} for n in ("one", "two") for i in range(4)]
    assert {push.schema_id for push in pushes} == {1}


def test_a_malformed_put_drops_the_following_puts_of_its_event_but_not_the_connection(world: World) -> None:
    """Its length is unreliable, so the rest of the event is lost; earlier messages of the event are processed."""
    world.domain()
    producer = world.producer()
    client = producer.client
    good = [client.new_guid() for _ in range(2)]
    broken = bytearray(codec.put_message(producer.q_id, client.new_guid(), b"m"))
    broken[-1] = 9
    client.send(codec.put_frame([codec.put_message(producer.q_id, good[0], b"1"), bytes(broken),
                                 codec.put_message(producer.q_id, good[1], b"2")]))
    assert producer.next_ack(good[0]).status == 0
    world.wait_idle()
    assert world.stored() in (1, 2)
    assert world.logged("#CORRUPTED_EVENT", "Invalid Put event")
    producer.post(b"3")


# -- 21.12


@spec("broker", 203)
@pytest.mark.real
@pytest.mark.parametrize("end", ["restart", "crash_and_start"])
def test_after_a_restart_unconfirmed_messages_are_delivered_again(world: World, end: str) -> None:
    """Unread and unconfirmed messages are delivered, confirmed ones are not, both after a graceful stop and a kill."""
    world.domain()
    producer, consumer = world.producer(), world.consumer(m=3)
    producer.post_all(b"1", b"2", b"3", b"4")
    held = world.pushes(consumer)
    assert payloads(held) == [b"1", b"2", b"3"]
    consumer.confirm(held[0], held[2])
    world.wait_idle()
    getattr(world, end)()
    assert set(world.new_payloads(world.consumer())) == {b"2", b"4"}
    assert world.stored() == 2


@spec("broker", 204)
def test_after_a_restart_an_in_memory_queue_is_empty(world: World) -> None:
    """It accepts new messages."""
    world.domain(in_memory=True)
    world.producer().post(b"lost")
    world.restart()
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"new")
    assert world.new_payloads(consumer) == [b"new"]


@spec("broker", 205)
@pytest.mark.setting(cluster={"queue_operations": {"keepaliveDurationMs": 60_000}})
def test_an_empty_unused_queue_is_deleted_after_its_keepalive(world: World) -> None:
    """The next open creates a queue with another key."""
    world.domain()

    def key() -> str:
        storages = world.admin_json("DOMAINS DOMAIN d INFOS")["domainInfo"]["storageContent"]["storages"]
        helper = world.admin("CLUSTERS CLUSTER c3 QUEUEHELPER")
        return str(storages) if storages else helper.partition("bmq://d/q")[2].partition("key..............: ")[2][:10]

    producer, consumer = world.producer(), world.consumer()
    producer.post()
    confirm = world.pushes(consumer)
    consumer.confirm(*confirm)
    world.wait_idle()
    first = key()
    for queue in (producer, consumer):
        queue.client.disconnect()
    world.advance(50)
    assert key() == first
    world.advance(30)
    assert "bmq://d/q" not in world.admin("CLUSTERS CLUSTER c3 QUEUEHELPER")
    producer = world.producer()
    assert key() not in ("", first)
    producer.post()


@spec("broker", 206)
@pytest.mark.setting(cluster={"queue_operations": {"keepaliveDurationMs": 60_000}})
def test_a_queue_with_messages_is_never_deleted(world: World) -> None:
    """Neither after its keepalive nor by forced garbage collection."""
    world.domain()
    producer = world.producer()
    producer.post(b"m")
    producer.client.disconnect()
    world.advance(200)
    assert world.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES") == "SUCCESS"
    assert world.stored() == 1
    assert world.new_payloads(world.consumer()) == [b"m"]


@spec("broker", 207)
def test_forced_garbage_collection_deletes_an_empty_closed_queue(world: World) -> None:
    """Its storage is removed; an open creates it again, also after a restart."""
    world.domain()
    producer = world.producer()
    producer.close()
    assert "bmq://d/q" in world.admin("CLUSTERS CLUSTER c3 STORAGE SUMMARY")
    assert world.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES") == "SUCCESS"
    assert "bmq://d/q" not in world.admin("CLUSTERS CLUSTER c3 STORAGE SUMMARY")
    world.producer().post(b"m")
    world.restart()
    assert world.new_payloads(world.consumer()) == [b"m"]


@spec("broker", 208)
@pytest.mark.real
def test_a_rollover_preserves_queues_apps_and_messages(world: World) -> None:
    """Also after a following restart."""
    world.domain("d")
    world.domain("f", "fanout")
    producer, fan = world.producer(), world.producer("bmq://f/q")
    producer.post_all(b"1", b"2", b"3")
    fan.post_all(b"a", b"b")
    consumer, foo = world.consumer(), world.consumer("bmq://f/q", "foo")
    consumer.confirm(world.pushes(consumer)[1])
    foo.confirm(world.pushes(foo)[0])
    world.wait_idle()
    assert world.admin("CLUSTERS CLUSTER c3 STORAGE PARTITION ALL ROLLOVER") == "SUCCESS"
    producer.post(b"4")
    fan.post(b"c")
    assert world.new_payloads(consumer) == [b"4"]
    world.restart()
    assert world.new_payloads(world.consumer()) == [b"1", b"3", b"4"]
    assert world.new_payloads(world.consumer("bmq://f/q", "foo")) == [b"b", b"c"]
    assert world.new_payloads(world.consumer("bmq://f/q", "bar")) == [b"a", b"b", b"c"]


@spec("broker", 209)
def test_a_disabled_partition_refuses_puts_until_it_is_enabled(world: World) -> None:
    """The status is STORAGE_FAILURE."""
    world.domain()
    producer = world.producer()
    for partition in range(2):
        assert world.admin(f"CLUSTERS CLUSTER c3 STORAGE PARTITION {partition} DISABLE") == "SUCCESS"
    assert producer.status_of() == 6
    for partition in range(2):
        assert world.admin(f"CLUSTERS CLUSTER c3 STORAGE PARTITION {partition} ENABLE") == "SUCCESS"
    producer.post()


@spec("broker", 210)
def test_partition_commands_accept_valid_partition_ids_and_all(world: World) -> None:
    """ROLLOVER accepts -1 and ALL, the other commands do not."""
    command = "CLUSTERS CLUSTER c3 STORAGE PARTITION {} {}".format
    world.domain()
    world.producer().post()
    for partition in ("0", "1", "-1", "ALL"):
        assert world.admin(command(partition, "ROLLOVER")) == "SUCCESS"
    for word in ("SUMMARY", "ENABLE"):
        for partition in ("0", "1"):
            assert "partitionId value" not in world.admin(command(partition, word))
        assert world.admin(command("-1", word)) == "Too low partitionId value: '-1'"
        assert world.admin(command("2", word)) == "Too high partitionId value: '2'"
    assert world.admin(command("2", "ROLLOVER")) == "Too high partitionId value: '2'"
    assert world.admin(command("-2", "ROLLOVER")) == "Too low partitionId value: '-2'"
