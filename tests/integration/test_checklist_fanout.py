"""Fanout: broker.md 21.6."""

from __future__ import annotations

import pytest
from kit.client import Queue, payloads
from kit.world import World

spec = pytest.mark.spec
URI = "bmq://f/q"


@pytest.fixture
def fan(world: World) -> World:
    """Return a world with the fanout domain `f` of the apps foo, bar, baz."""
    world.domain("f", "fanout")
    return world


def read_all(world: World, consumer: Queue) -> list[bytes]:
    """Receive and confirm all available messages."""
    pushes = world.pushes(consumer)
    if pushes:
        consumer.confirm(*pushes)
    return payloads(pushes)


@pytest.mark.real
@spec("broker", 89, 92)
def test_each_app_gets_every_message_once_and_all_confirms_empty_the_storage(fan: World) -> None:
    producer = fan.producer(URI)
    consumers = [fan.consumer(URI, app) for app in ("foo", "bar", "baz")]
    producer.post_all(b"1", b"2")
    assert [read_all(fan, c) for c in consumers] == [[b"1", b"2"]] * 3
    assert fan.stored(URI) == 0


@spec("broker", 90)
def test_two_consumers_of_an_app_share_its_messages(fan: World) -> None:
    producer = fan.producer(URI)
    pairs = [(fan.consumer(URI, app), fan.consumer(URI, app)) for app in ("foo", "bar", "baz")]
    producer.post_all(b"1", b"2", b"3", b"4")
    for one, two in pairs:
        first, second = fan.new_payloads(one), fan.new_payloads(two)
        assert len(first) == len(second) == 2
        assert sorted(first + second) == [b"1", b"2", b"3", b"4"]


@spec("broker", 93)
def test_a_message_is_stored_until_the_last_app_confirms_it(fan: World) -> None:
    """Confirms of two of three apps are not sufficient."""
    producer = fan.producer(URI)
    consumers = [fan.consumer(URI, app) for app in ("foo", "bar", "baz")]
    producer.post(b"1")
    for consumer, left in zip(consumers, (1, 1, 0), strict=True):
        assert read_all(fan, consumer) == [b"1"]
        assert fan.stored(URI) == left


@spec("broker", 94)
def test_an_app_without_consumer_keeps_its_messages_for_a_later_one(fan: World) -> None:
    """Its registration is sufficient."""
    producer = fan.producer(URI)
    foo = fan.consumer(URI, "foo")
    producer.post_all(b"1", b"2")
    assert read_all(fan, foo) == [b"1", b"2"]
    assert fan.new_payloads(fan.consumer(URI, "bar")) == [b"1", b"2"]


@pytest.mark.real
@spec("broker", 95)
def test_an_unregistered_app_opens_with_an_alarm_and_gets_nothing(fan: World) -> None:
    """A consumer may be deployed before the configuration of its app."""
    producer = fan.producer(URI)
    quux = fan.consumer(URI, "quux")
    producer.post(b"1")
    assert fan.new_payloads(quux) == []
    alarms = fan.alarms("FANOUT_UNREGISTERED_APPID")
    assert len(alarms) == 1
    assert f"AppId 'quux' is not authorized for queue '{URI}'" in alarms[0]
    assert "quux: status=unauthorized" in fan.admin("DOMAINS DOMAIN f QUEUE q INTERNALS")


@pytest.mark.parametrize("features, app, is_flagged", [
    ("PROTOCOL_ENCODING:BER,JSON", "quux", False), ("ROUTING:UNREGISTERED_APP", "foo", False),
    ("ROUTING:UNREGISTERED_APP", "quux", True)])
def test_a_client_that_supports_it_is_notified_that_its_app_is_not_registered(
        fan: World, features: str, app: str, is_flagged: bool) -> None:
    """By a flag in the answer to its open; other clients get the bits of the original."""
    client = fan.client(features=features)
    client.open(URI, read=1, app_id=app, sub_id=1)
    [answer] = [event.control["openQueueResponse"] for event in client.events
                if event.kind == "control" and "openQueueResponse" in event.control]
    assert int(answer["routingConfiguration"]["flags"]) == 2 | 8 | is_flagged << 32


@spec("broker", 96)
def test_the_alarm_of_an_unregistered_app_is_raised_once_until_all_have_closed(fan: World) -> None:
    """A second consumer raises no alarm; the next first consumer does."""
    first, second = fan.consumer(URI, "quux"), fan.consumer(URI, "quux")
    assert len(fan.alarms("FANOUT_UNREGISTERED_APPID")) == 1
    first.close()
    second.close()
    fan.consumer(URI, "quux")
    assert len(fan.alarms("FANOUT_UNREGISTERED_APPID")) == 2


@spec("broker", 97)
def test_an_unregistered_app_keeps_no_messages(fan: World) -> None:
    """A message is removed once the registered apps have confirmed it."""
    producer = fan.producer(URI)
    fan.consumer(URI, "quux")
    consumers = [fan.consumer(URI, app) for app in ("foo", "bar", "baz")]
    producer.post(b"1")
    for consumer in consumers:
        read_all(fan, consumer)
    assert fan.stored(URI) == 0


@pytest.mark.real
@spec("broker", 98)
def test_an_app_registered_while_connected_gets_later_messages(fan: World) -> None:
    """Without a new open; other apps are not affected."""
    producer = fan.producer(URI)
    quux, foo = fan.consumer(URI, "quux"), fan.consumer(URI, "foo")
    producer.post(b"before")
    fan.reconfigure("f", "fanout", apps=["foo", "bar", "baz", "quux"])
    producer.post(b"after")
    assert fan.new_payloads(quux) == [b"after"]
    assert fan.new_payloads(foo) == [b"before", b"after"]
    assert fan.logged("Registered appId 'quux'")


@spec("broker", 99)
def test_an_app_added_before_the_first_open_raises_no_alarm(fan: World) -> None:
    """The domain file is read at the first open, or by RECONFIGURE."""
    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    fan.consumer(URI, "quux")
    assert fan.alarms("FANOUT_UNREGISTERED_APPID") == []


@spec("broker", 100)
def test_an_app_opened_after_its_registration_raises_no_alarm(fan: World) -> None:
    producer = fan.producer(URI)
    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    quux = fan.consumer(URI, "quux")
    producer.post(b"1")
    assert fan.new_payloads(quux) == [b"1"]
    assert fan.alarms("FANOUT_UNREGISTERED_APPID") == []


@spec("broker", 101, 102)
def test_removing_an_app_removes_its_pending_messages(fan: World) -> None:
    """Messages that the other apps have confirmed are removed.

    A late confirm and close of the removed app succeed. If it is added again, it gets later messages only.
    """
    producer = fan.producer(URI)
    foo, bar, baz = (fan.consumer(URI, app) for app in ("foo", "bar", "baz"))
    producer.post(b"1")
    held = fan.pushes(foo)
    assert read_all(fan, bar) == read_all(fan, baz) == [b"1"]
    assert fan.stored(URI) == 1
    fan.reconfigure("f", "fanout", apps=["bar", "baz"])
    assert fan.stored(URI) == 0
    assert fan.logged("Unregistered appId 'foo'")
    foo.confirm(*held)
    foo.close()
    producer.post(b"2")
    fan.reconfigure("f", "fanout", apps=["bar", "baz", "foo"])
    producer.post(b"3")
    assert fan.new_payloads(fan.consumer(URI, "foo")) == [b"3"]


@spec("broker", 103)
def test_apps_get_exactly_the_messages_posted_while_they_are_registered(fan: World) -> None:
    """m1, +a1, m2, +a2, m3, +a3, m4, -a2, m5; the same after a restart; after all confirms the storage is empty."""
    apps = ["foo", "bar", "baz"]
    producer = fan.producer(URI)
    producer.post(b"m1")
    for step, message in ((["a1"], b"m2"), (["a2"], b"m3"), (["a3"], b"m4"), (None, b"m5")):
        apps = [a for a in apps if a != "a2"] if step is None else apps + step
        fan.reconfigure("f", "fanout", apps=apps)
        producer.post(message)
    expected = {app: [b"m1", b"m2", b"m3", b"m4", b"m5"] for app in ("foo", "bar", "baz")}
    expected |= {"a1": [b"m2", b"m3", b"m4", b"m5"], "a3": [b"m4", b"m5"], "a2": []}
    readers = {app: fan.consumer(URI, app) for app in expected}
    assert {app: fan.new_payloads(reader) for app, reader in readers.items()} == expected
    fan.restart()
    readers = {app: fan.consumer(URI, app) for app in expected}
    assert {app: read_all(fan, reader) for app, reader in readers.items()} == expected
    assert fan.stored(URI) == 0


@spec("broker", 104)
def test_an_app_added_removed_and_added_again_has_a_new_key_and_no_old_messages(fan: World) -> None:
    """Records of the removed app must not apply to the new one."""
    producer = fan.producer(URI)

    def key() -> str:
        internals = fan.admin("DOMAINS DOMAIN f QUEUE q INTERNALS")
        return internals.partition("quux : [appKey: ")[2].partition(",")[0]

    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    first = key()
    producer.post(b"old")
    fan.reconfigure("f", "fanout", apps=["foo"])
    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    assert first
    assert key() not in ("", first)
    producer.post(b"new")
    assert fan.new_payloads(fan.consumer(URI, "quux")) == [b"new"]
    fan.restart()
    assert fan.new_payloads(fan.consumer(URI, "quux")) == [b"new"]


@spec("broker", 105)
def test_without_any_app_a_put_is_acked_and_nothing_is_stored(fan: World) -> None:
    producer = fan.producer(URI)
    fan.reconfigure("f", "fanout", apps=[])
    producer.post(b"1")
    assert fan.stored(URI) == 0


@spec("broker", 106)
def test_an_added_app_is_still_registered_after_a_restart(fan: World) -> None:
    """The registration is in the metadata, not only in the domain file."""
    producer = fan.producer(URI)
    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    producer.post(b"1")
    fan.restart()
    quux = fan.consumer(URI, "quux")
    assert fan.new_payloads(quux) == [b"1"]
    fan.producer(URI).post(b"2")
    assert fan.new_payloads(quux) == [b"2"]
    assert fan.alarms("FANOUT_UNREGISTERED_APPID") == []


@spec("broker", 107)
def test_an_app_added_while_the_queue_is_inactive_is_registered_at_the_next_open(fan: World) -> None:
    """RECONFIGURE covers queues without handles, too."""
    producer = fan.producer(URI)
    producer.post(b"before")
    producer.client.disconnect()
    fan.reconfigure("f", "fanout", apps=["foo", "quux"])
    fan.producer(URI).post(b"after")
    assert fan.new_payloads(fan.consumer(URI, "quux")) == [b"after"]
    assert fan.alarms("FANOUT_UNREGISTERED_APPID") == []


@spec("broker", 108)
def test_older_messages_may_expire_under_an_app_added_later(fan: World) -> None:
    """The new app never had these messages."""
    fan.domain("f", "fanout", messageTtl=2)
    producer = fan.producer(URI)
    producer.post(b"old")
    fan.reconfigure("f", "fanout", apps=["foo", "bar", "baz", "quux"], messageTtl=2)
    fan.advance(12)
    assert fan.stored(URI) == 0
    producer.post(b"new")
    assert fan.new_payloads(fan.consumer(URI, "quux")) == [b"new"]
    assert fan.logged("due to TTL expiration")


@spec("broker", 110)
def test_after_a_restart_an_app_gets_only_its_unconfirmed_messages(fan: World) -> None:
    """Confirms of each app are stored."""
    producer = fan.producer(URI)
    foo = fan.consumer(URI, "foo")
    producer.post_all(b"1", b"2")
    assert read_all(fan, foo) == [b"1", b"2"]
    fan.wait_idle()
    fan.restart()
    assert fan.new_payloads(fan.consumer(URI, "foo")) == []
    assert fan.new_payloads(fan.consumer(URI, "bar")) == [b"1", b"2"]


def test_one_push_may_name_several_substreams_of_one_handle(fan: World) -> None:
    """As the original does for several apps of one session."""
    producer = fan.producer(URI)
    client = fan.client()
    queues = [client.consume(URI, app) for app in ("foo", "bar", "baz")]
    producer.post(b"1")
    assert [payloads(queue.pushes()) for queue in queues] == [[b"1"]] * 3
