"""Opening, configuring and closing queues: broker.md 21.2."""

from __future__ import annotations

import pytest
from kit.client import INT_MIN, READ, WRITE, Client, Expired, RequestRefused, payloads, refusal
from kit.world import World

spec = pytest.mark.spec


@pytest.mark.real
@spec("broker", 23)
def test_a_consumer_receives_exactly_the_posted_message(world: World) -> None:
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    guid = producer.post(b"foo")
    pushes = world.pushes(consumer)
    assert payloads(pushes) == [b"foo"]
    assert pushes[0].guid == guid
    assert pushes[0].properties is None


@spec("broker", 24)
@pytest.mark.parametrize("writer_first", [True, False])
def test_reader_and_writer_may_open_in_either_order(world: World, writer_first: bool) -> None:
    """The first open creates the queue."""
    world.domain()
    if writer_first:
        producer, consumer = world.producer(), world.consumer()
    else:
        consumer = world.consumer()
        producer = world.producer()
    producer.post(b"m")
    assert world.new_payloads(consumer) == [b"m"]


@pytest.fixture
def client(world: World) -> Client:
    """Connect a client to a broker with the priority domain `d` and the fanout domain `f`."""
    world.domain("d")
    world.domain("f", "fanout")
    return world.client()


@spec("broker", 25)
def test_an_open_that_neither_reads_nor_writes_is_an_invalid_argument(client: Client) -> None:
    assert refusal(client.open, "bmq://d/q", flags=0).category == "E_INVALID_ARGUMENT"


@spec("broker", 26)
def test_an_open_with_an_admin_count_is_an_invalid_argument(client: Client) -> None:
    """The ADMIN flag is reserved."""
    assert refusal(client.open, "bmq://d/q", read=1, admin=1).category == "E_INVALID_ARGUMENT"


@spec("broker", 27)
@pytest.mark.parametrize(("flags", "read", "write"), [(WRITE, 1, 1), (READ, 0, 0), (WRITE, 1, 0), (READ, 1, 1)])
def test_counts_that_disagree_with_the_flags_are_an_invalid_argument(client: Client, flags: int, read: int,
                                                                     write: int) -> None:
    assert refusal(client.open, "bmq://d/q", flags=flags, read=read, write=write).category == "E_INVALID_ARGUMENT"


@spec("broker", 28)
def test_a_queue_name_has_at_most_64_characters(client: Client) -> None:
    """A longer one is refused with the reason."""
    refused = refusal(client.open, f"bmq://d/{'q' * 65}", write=1)
    assert refused.category == "E_REFUSED"
    assert "exceeds 64 characters" in refused.message
    client.open(f"bmq://d/{'q' * 64}", write=1)


@spec("broker", 29)
def test_an_app_id_cannot_be_written_to(client: Client) -> None:
    """A producer posts to all apps."""
    refused = refusal(client.open, "bmq://f/q?id=foo", write=1, app_id="foo", sub_id=1)
    assert refused.category == "E_INVALID_ARGUMENT"


@spec("broker", 30)
def test_an_app_id_on_a_priority_queue_is_refused_saying_that_it_is_not_fanout(client: Client) -> None:
    """A priority queue has one app, without an id."""
    refused = refusal(client.open, "bmq://d/q", read=1, app_id="foo", sub_id=1)
    assert refused.category == "E_UNKNOWN"
    assert "non-fanout" in refused.message


@spec("broker", 31)
def test_a_fanout_reader_without_app_id_is_refused_saying_that_one_is_required(client: Client) -> None:
    refused = refusal(client.open, "bmq://f/q", read=1)
    assert refused.category == "E_UNKNOWN"
    assert "requires an appId" in refused.message


@spec("broker", 32)
def test_one_queue_id_names_one_queue_of_a_session(client: Client) -> None:
    """A second queue with the same id is refused: PUTs could not be routed."""
    client.open("bmq://d/a", write=1, q_id=5)
    refused = refusal(client.open, "bmq://d/b", write=1, q_id=5)
    assert refused.category == "E_INVALID_ARGUMENT"
    assert "already in use" in refused.message


@spec("broker", 33)
def test_opens_of_one_queue_id_add_up_and_closing_the_read_leaves_the_write_usable(world: World, client: Client) -> None:
    """A session has one handle per queue, with counts."""
    reader = client.open("bmq://d/q", read=1)
    writer = client.open("bmq://d/q", write=1)
    assert writer.q_id == reader.q_id
    reader.configure()
    writer.post(b"1")
    assert world.new_payloads(reader) == [b"1"]
    reader.close(final=False)
    writer.post(b"2")
    assert world.stored() == 2


@spec("broker", 34)
def test_two_sessions_with_the_same_queue_ids_both_consume(world: World) -> None:
    """Queue ids are per session."""
    world.domain("f", "fanout")
    first = world.client().consume("bmq://f/q", "foo", sub_id=1)
    second = world.client().consume("bmq://f/q", "foo", sub_id=1)
    world.producer("bmq://f/q").post_all(b"1", b"2")
    assert sorted(world.new_payloads(first) + world.new_payloads(second)) == [b"1", b"2"]


@pytest.mark.real
@spec("broker", 35)
def test_closing_an_unknown_queue_id_is_refused(client: Client) -> None:
    """The message is that of the original."""
    refused = refusal(client.request, {"closeQueue": {
        "handleParameters": client.handle_parameters("bmq://d/q", 77, write=1), "isFinal": True}})
    assert (refused.category, refused.message) == ("E_UNKNOWN", "No queue with specified Id")


@spec("broker", 36)
def test_the_second_of_two_final_closes_is_refused(client: Client) -> None:
    """Both are sent in one write, so that the second arrives before the answer to the first."""
    writer = client.open("bmq://d/q", write=1)
    close = {"closeQueue": writer.close_parameters()}
    first, second = client.send_request(close), client.send_request(close)
    assert "closeQueueResponse" in client.response(first)
    refused = refusal(client.response, second)
    assert refused.category == "E_UNKNOWN"
    assert refused.message in ("Duplicate closeQueue request", "No queue with specified Id")


@spec("broker", 37)
def test_configuring_after_the_final_close_is_refused(client: Client) -> None:
    reader = client.consume("bmq://d/q")
    reader.close()
    assert refusal(reader.configure).category == "E_UNKNOWN"


@spec("broker", 38)
def test_configuring_a_write_only_handle_succeeds(client: Client) -> None:
    """It has no effect; SDKs send it."""
    assert client.open("bmq://d/q", write=1).configure()["request"]["qId"] == 0


@spec("broker", 39)
def test_configuring_twice_with_the_same_values_loses_and_duplicates_no_message(world: World) -> None:
    """As by an SDK that sends the request again."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"1")
    parameters = consumer.stream_parameters()
    consumer.configure_stream(parameters)
    consumer.configure_stream(parameters)
    producer.post(b"2")
    assert world.new_payloads(consumer) == [b"1", b"2"]


@spec("broker", 40)
def test_an_invalid_priority_with_a_count_is_refused(client: Client) -> None:
    """INT_MIN means that the consumer receives no messages; a count contradicts it."""
    reader = client.open("bmq://d/q", read=1)
    refused = refusal(reader.configure, priority=INT_MIN, count=1)
    assert refused.category == "E_UNKNOWN"
    assert "invalid priority" in refused.message
    assert refusal(reader.configure, priority=0, count=0).category == "E_UNKNOWN"


@spec("broker", 41)
def test_an_app_reopened_with_another_sub_id_gets_its_deliveries_under_the_new_one(world: World, client: Client) -> None:
    """In the old form of configure the PUSH has the sub-queue id."""
    producer = world.producer("bmq://f/q")
    client.open("bmq://f/q", read=1, app_id="bar", sub_id=9)
    reader = client.open("bmq://f/q", read=1, app_id="foo", sub_id=1)
    reader.configure_old()
    reader.close_only(final=False)
    again = client.open("bmq://f/q", read=1, app_id="foo", sub_id=2)
    again.configure_old()
    producer.post(b"m")
    client.barrier()
    assert [push.ids for push in world.pushes(again)] == [[]], "the PUSH named another id than 2"


@spec("broker", 42)
def test_one_app_can_be_closed_and_reopened_while_others_stay_open(world: World) -> None:
    """Other consumers of the same app and of other apps are not affected."""
    world.domain("f", "fanout")
    producer = world.producer("bmq://f/q")
    client = world.client()
    foo, bar = client.consume("bmq://f/q", "foo"), client.consume("bmq://f/q", "bar")
    other_foo = world.consumer("bmq://f/q", "foo")
    foo.close(final=False)
    foo = client.consume("bmq://f/q", "foo")
    producer.post_all(b"1", b"2")
    assert world.new_payloads(bar) == [b"1", b"2"]
    assert sorted(world.new_payloads(foo) + world.new_payloads(other_foo)) == [b"1", b"2"]


@spec("broker", 46)
def test_a_client_that_closes_and_disconnects_at_once_leaves_no_handle(world: World) -> None:
    """An SDK does this when its close times out."""
    world.domain()
    witness = world.producer()
    client = world.client("impatient")
    reader = client.consume("bmq://d/q")
    client.send_request({"closeQueue": reader.close_parameters()})
    client.kill()
    assert "impatient" not in world.admin("DOMAINS DOMAIN d QUEUE q INTERNALS")
    witness.post()


@spec("broker", 49)
def test_a_producer_that_closes_with_unacknowledged_messages_does_not_affect_another_one(world: World) -> None:
    """The storage is blocked, so no message is acknowledged; then the other producer gets its ACKs and no NACK."""
    world.domain()
    leaving, staying = world.producer(), world.producer()
    with world.storage_stalled():
        leaving.put(b"1")
        mine = staying.put(b"2")
        leaving.close()
        assert staying.acks() == []
    assert [(ack.guid, ack.status) for ack in staying.acks()] == [(mine, 0)]
    assert world.stored() == 2


@pytest.mark.real
@spec("broker", 50)
def test_the_disconnect_response_is_the_last_event_and_all_handles_are_closed(world: World) -> None:
    """The client closes the connection after the response; the broker does not close it before."""
    world.domain()
    witness = world.producer()
    client = world.client("leaver")
    reader = client.consume("bmq://d/q")
    client.open("bmq://d/q", write=1)
    disconnect = client.send_request({"disconnect": {}})
    after = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(
        "bmq://d/late", 9, write=1)}})
    assert "disconnectResponse" in client.response(disconnect)
    witness.post()
    with pytest.raises(Expired):
        client.response(after, 0.3)
    assert not client.link.closed
    assert "disconnectResponse" in client.events[-1].control
    assert "leaver" not in world.admin("DOMAINS DOMAIN d QUEUE q INTERNALS")
    assert reader.q_id == 0


def test_a_wrong_substream_or_count_in_a_close_is_refused(client: Client) -> None:
    """A close cannot release more than the handle has."""
    writer = client.open("bmq://d/q", write=1)
    for read, write, expected in ((0, 0, "must be > 0"), (0, 2, "Failed to release handle."),
                                  (1, 0, "Failed to release handle.")):
        with pytest.raises(RequestRefused) as refused:
            writer.close_only(read=read, write=write)
        assert expected in refused.value.message


@pytest.mark.parametrize(("uri", "message"), [
    ("bmx://d/q", 'Invalid scheme: uri must start with "bmq://"'),
    ("bmq:///q", "Missing domain"),
    ("bmq://d/", "Missing queue"),
    ("bmq://d.~/q", "Empty tier"),
    ("bmq://d/q q", "Path parsing failed: unsupported char (int)32"),
    ("bmq://d/q?zz=1", 'Query parsing failed: unsupported query "zz"'),
    ("bmq://d/q?id=", 'Query parsing failed: missing value after "="')])
def test_an_invalid_uri_is_refused_with_the_reason(client: Client, uri: str, message: str) -> None:
    """The original's words; category REFUSED, code 0."""
    refused = refusal(client.open, uri, write=1)
    assert (refused.category, refused.code, refused.message) == ("E_REFUSED", 0, message)
