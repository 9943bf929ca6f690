"""Acknowledgements: broker.md 21.3."""

from __future__ import annotations

import pytest
from kit import codec
from kit.client import ACK, WRITE, payloads
from kit.world import World

spec = pytest.mark.spec


@pytest.mark.real
@spec("broker", 51)
def test_a_put_with_ack_requested_gets_exactly_one_ack_with_its_guid(world: World) -> None:
    world.domain()
    producer = world.producer()
    guid = producer.put(b"m")
    ack = producer.next_ack()
    assert (ack.status, ack.guid, ack.correlation_id) == (0, guid, 0)
    world.wait_idle()
    assert producer.acks() == []


@spec("broker", 52)
def test_a_put_without_ack_requested_gets_no_ack_when_accepted(world: World) -> None:
    """An unrequested positive ACK would abort an official client."""
    world.domain()
    producer = world.producer()
    producer.put(b"m", ack=False)
    world.wait_idle()
    assert producer.acks() == []
    assert world.stored() == 1


@spec("broker", 53)
def test_a_refused_put_is_nacked_without_ack_requested(world: World) -> None:
    """Without the NACK the producer would not detect the loss of the message."""
    world.domain(queue_messages=0)
    producer = world.producer()
    producer.post(b"fits")
    guid = producer.put(b"does not", ack=False)
    assert producer.next_ack(guid).status == 1


@spec("broker", 54)
def test_a_queue_opened_without_the_ack_flag_still_gets_its_nacks(world: World) -> None:
    """Positive ACKs are requested by each message."""
    world.domain(queue_messages=0)
    producer = world.client().open("bmq://d/q", write=1, flags=WRITE)
    producer.put(b"fits", ack=False)
    guid = producer.put(b"does not", ack=False)
    world.wait_idle()
    assert [(ack.guid, ack.status) for ack in producer.acks()] == [(guid, 1)]
    assert WRITE | ACK == 12


@pytest.mark.real
@spec("broker", 55)
@pytest.mark.parametrize("ack", [True, False])
def test_a_put_to_an_unknown_queue_id_is_nacked_and_the_connection_kept(world: World, ack: bool) -> None:
    """The log has #CLIENT_INVALID_PUT."""
    world.domain()
    producer = world.producer()
    client = producer.client
    guid = client.new_guid()
    client.send(codec.put_frame([codec.put_message(55, guid, b"m", ack=ack)]))
    nack = client.wait(lambda e: e.kind == "ack" and e.ack.guid == guid, "no NACK").ack
    assert (nack.status, nack.q_id) == (5, 55)
    world.expect_log("#CLIENT_INVALID_PUT", "PUT message for queue with unknown Id")
    producer.post()


@spec("broker", 56)
def test_a_put_on_a_read_only_handle_is_nacked(world: World) -> None:
    world.domain()
    consumer = world.consumer()
    guid = consumer.put(b"m")
    assert consumer.next_ack(guid).status == 5
    assert world.stored() == 0


@spec("broker", 57)
def test_an_unset_guid_from_a_client_that_generates_guids_is_nacked(world: World) -> None:
    """The other messages of the event are processed."""
    world.domain()
    producer = world.producer()
    good = producer.client.new_guid()
    producer.client.send(codec.put_frame([codec.put_message(producer.q_id, bytes(16), b"bad"),
                                          codec.put_message(producer.q_id, good, b"good")]))
    statuses = {ack.guid: ack.status for ack in (producer.next_ack(), producer.next_ack())}
    assert statuses == {bytes(16): 5, good: 0}
    assert world.stored() == 1


@pytest.mark.real
@spec("broker", 58)
def test_the_same_guid_twice_is_stored_once_and_acked_both_times(world: World) -> None:
    """A producer that received no ACK sends the message again."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    guid = producer.post(b"first")
    producer.post(b"again", guid=guid)
    assert world.new_payloads(consumer) == [b"first"]
    assert world.stored() == 1


@spec("broker", 58)
def test_the_same_guid_twice_before_the_first_ack_gets_one_ack(world: World) -> None:
    """An ACK for a message that is not outstanding would abort an official client."""
    world.domain()
    producer = world.producer()
    guid = producer.client.new_guid()
    message = codec.put_message(producer.q_id, guid, b"m")
    producer.client.send(codec.put_frame([message, message]))
    world.wait_idle()
    assert [(ack.guid, ack.status) for ack in producer.acks()] == [(guid, 0)]
    assert world.stored() == 1


@spec("broker", 59)
def test_a_guid_is_stored_again_after_the_deduplication_time(world: World) -> None:
    """The time counts from the arrival of the message, which is confirmed before."""
    world.domain(deduplicationTimeMs=10_000)
    producer, consumer = world.producer(), world.consumer()
    guid = producer.post(b"first")
    consumer.confirm(consumer.next_push())
    world.wait_idle()
    world.advance(5)
    producer.post(b"within", guid=guid)
    assert world.new_payloads(consumer) == []
    world.advance(10)
    producer.post(b"after", guid=guid)
    assert world.new_payloads(consumer) == [b"after"]


@spec("broker", 60)
def test_a_broadcast_put_without_consumers_is_acked(world: World) -> None:
    """An ACK of broadcast mode covers the first hop only."""
    world.domain("b", "broadcast", in_memory=True)
    world.producer("bmq://b/q").post()


@spec("broker", 63)
def test_strong_consistency_on_a_single_node_acks_at_once(world: World) -> None:
    """The quorum of one node is one."""
    world.domain(strong=True)
    world.producer().post()


@spec("broker", 64)
def test_a_quorum_above_the_live_nodes_holds_strong_puts_until_it_is_lowered(world: World) -> None:
    """With the quorum an operator chooses between availability and durability."""
    world.domain(strong=True)
    producer, consumer = world.producer(), world.consumer()
    assert world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2") == "Quorum set to 2 from 1"
    guid = producer.put(b"m")
    world.wait_idle()
    assert producer.acks() == []
    assert world.new_payloads(consumer) == []
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 1")
    world.wait_idle()
    assert [(ack.guid, ack.status) for ack in producer.acks()] == [(guid, 0)]
    assert world.new_payloads(consumer) == [b"m"]


@spec("broker", 62)
def test_a_strong_put_without_receipts_is_nacked_after_the_deduplication_time(world: World) -> None:
    """The message is removed and never delivered."""
    world.domain(strong=True, deduplicationTimeMs=5000)
    producer, consumer = world.producer(), world.consumer()
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2")
    guid = producer.put(b"m")
    world.advance(8)
    assert producer.next_ack(guid).status == 5
    assert world.stored() == 0
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 1")
    world.advance(1)
    assert world.new_payloads(consumer) == []


@spec("broker", 65)
def test_consistency_changes_live(world: World) -> None:
    """After a change to strong later PUTs wait for receipts.

    After a change to eventual they do not wait, but do not overtake waiting ones.
    """
    world.domain()
    producer = world.producer()
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2")
    producer.post(b"eventual")
    world.reconfigure(strong=True)
    waiting = producer.put(b"strong")
    world.wait_idle()
    assert producer.acks() == []
    world.reconfigure(strong=False)
    behind = producer.put(b"eventual again")
    world.wait_idle()
    assert producer.acks() == [], "it waits for no receipts, but for the message in front of it"
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 1")
    world.wait_idle()
    assert [(ack.guid, ack.status) for ack in producer.acks()] == [(waiting, 0), (behind, 0)]
    world.admin("CLUSTERS CLUSTER c3 STORAGE REPLICATION SET QUORUM 2")
    producer.post(b"eventual with nothing in front")


@pytest.mark.real
@spec("broker", 66)
def test_one_refused_message_among_good_ones_is_the_only_one_nacked(world: World) -> None:
    world.domain()
    producer = world.producer()
    client = producer.client
    guids = [client.new_guid() for _ in range(3)]
    client.send(codec.put_frame([codec.put_message(producer.q_id if i != 1 else 99, guid, b"m")
                                 for i, guid in enumerate(guids)]))
    acks = [client.wait(lambda e: e.kind == "ack", "no ACK").ack for _ in guids]
    assert {ack.guid: ack.status for ack in acks} == {guids[0]: 0, guids[1]: 5, guids[2]: 0}
    assert world.stored() == 2


@pytest.mark.real
@spec("broker", 67)
def test_puts_before_a_disconnect_are_stored(world: World) -> None:
    """Their ACKs may be lost."""
    world.domain()
    consumer = world.consumer()
    producer = world.producer()
    for number in range(5):
        producer.put(b"%d" % number)
    producer.client.disconnect()
    assert payloads(consumer.take(5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_nack_is_logged_at_most_once_in_five_seconds_a_queue(world: World) -> None:
    """The limit keeps the log small when a producer posts to a full queue."""
    world.domain(queue_messages=0)
    producer = world.producer()
    producer.post()
    for _ in range(3):
        assert producer.status_of() == 1
    assert len(world.logged("failed Ack [status: LIMIT_MESSAGES")) == 1
    world.advance(6)
    assert producer.status_of() == 1
    assert len(world.logged("failed Ack [status: LIMIT_MESSAGES")) == 2
