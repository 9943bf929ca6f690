"""The official SDK and every front of this SDK on one queue of a broker process, in both directions.

Covered: properties of all types in both styles, compression, small and large payloads, subscriptions on properties that the
other SDK has posted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import blazingmq
import pytest
from blazingmq import AckStatus
from kit.config import app_subscription
from kit.process import ProcessWorld, running_world
from kit.sdk import application
from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor

from bmqtwist.sdk import PropertyType, QueueOptions, SdkError, Subscription, aio, simple, tx
from bmqtwist.sdk import blazingmq as facade

DEADLINE = 30.0
Posted = tuple[bytes, dict[str, Any], dict[str, str]]  # payload, values, names of types that are not the natural ones
Got = list[tuple[bytes, bytes, dict[str, Any], dict[str, str]]]  # GUID, payload, values, names of all types
Front = Callable[[str, str, list[Posted], int, bool], tuple[list[bytes], Got]]  # broker, URI, posts, takes, compress?

pytestmark = pytest.mark.process

NATURAL = {bool: "BOOL", int: "INT64", str: "STRING", bytes: "BINARY"}
EVERYTHING: dict[str, Any] = {
    "bool": True, "false": False, "char": 65, "short": -32768, "int": 2**31 - 1, "long": -(2**63),
    "text": "grüße \U0001f600", "empty": "", "bytes": b"\0\xff\x80", "a" * 200: "a long name", "number": 7}
TYPES = {"char": "CHAR", "short": "SHORT", "int": "INT32"}
MESSAGES: list[Posted] = [
    (b"plain", {}, {}),
    (b"every type", EVERYTHING, TYPES),
    (b"again, with the same names", {**EVERYTHING, "number": 8}, TYPES),
    (b"other types under old names", {"number": "a text", "text": 5}, {"text": "SHORT"}),
    (b"\0", {"one": 1}, {}),
    (b"x" * 1023, {}, {}),
    (b"x" * 1024, {"n": 1}, {}),
    (bytes(range(256)) * 64, {"text": "t" * 3000}, {}),
    (b"large" * 400_000, {"size": 2_000_000}, {"size": "INT32"}),
]


@pytest.fixture(scope="module", params=[True, False], ids=["new-style", "old-style"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield a broker process, with or without new-style properties in its negotiation."""
    style = {"advertiseV2Support": request.param, "minCppSdkVersion": 11207, "minJavaSdkVersion": 10}
    with running_world(tmp_path_factory.mktemp("node"), app={"messagePropertiesV2": style}) as world:
        yield world


def all_types(values: dict[str, Any], types: dict[str, str]) -> dict[str, str]:
    """Return the names of all property types."""
    return {name: types.get(name, NATURAL[type(value)]) for name, value in values.items()}


# -- fronts of this SDK: post all of MESSAGES, and receive a number of messages -------------------------------------


def read(message: Any) -> tuple[bytes, bytes, dict[str, Any], dict[str, str]]:
    """Return the compared values of a message of either SDK.

    A CHAR is one byte in the official SDK, a number in this one.
    """
    types = {name: kind.name for name, kind in message.property_types.items()}
    values = {name: value[0] if types[name] == "CHAR" and isinstance(value, bytes) else value
              for name, value in message.properties.items()}
    return message.guid, message.data, values, types


def property_types(types: dict[str, str]) -> dict[str, PropertyType]:
    return {name: PropertyType[kind] for name, kind in types.items()}


def with_asyncio(broker: str, uri: str, posts: list[Posted], takes: int, compress: bool) -> tuple[list[bytes], Got]:
    async def scenario() -> tuple[list[bytes], Got]:
        async with aio.Session(broker, compression=compress) as session:
            queue = await session.open(uri, read=takes > 0, write=True)
            guids = []
            for payload, values, types in posts:
                ack = await queue.post(payload, values, property_types(types))
                assert ack.ok
                guids.append(ack.guid)
            got = []
            for _ in range(takes):
                async with await queue.get() as message:
                    got.append(read(message))
            await queue.close()
            return guids, got
    return asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def with_twisted(broker: str, uri: str, posts: list[Posted], takes: int, compress: bool) -> tuple[list[bytes], Got]:
    reactor: Any = EPollReactor()
    outcome: list[Any] = []

    async def scenario() -> tuple[list[bytes], Got]:
        session = tx.Session(reactor, broker, compression=compress)
        await session.start()
        queue = await session.open(uri, read=takes > 0, write=True)
        guids = [(await queue.post(payload, values, property_types(types))).guid for payload, values, types in posts]
        got = []
        for _ in range(takes):
            with await queue.get() as message:
                got.append(read(message))
        await session.stop()
        return guids, got

    def ended(result: Any) -> None:
        outcome.append(result)
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(scenario()).addTimeout(DEADLINE, reactor).addBoth(ended))
    reactor.run(installSignalHandlers=False)
    if not isinstance(outcome[0], tuple):
        outcome[0].raiseException()
    return outcome[0]  # type: ignore[no-any-return]


def without_a_loop(broker: str, uri: str, posts: list[Posted], takes: int, compress: bool) -> tuple[list[bytes], Got]:
    with simple.Session(broker, compression=compress) as session, session.open(uri, read=takes > 0, write=True) as queue:
        guids = [queue.post(payload, values, property_types(types)).guid for payload, values, types in posts]
        got: Got = []
        while len(got) < takes:
            found = queue.poll(takes - len(got), DEADLINE)
            assert found
            for message in found:
                got.append(read(message))
                message.confirm()
        return guids, got


def front_of(library: Any) -> Front:
    """Run a program for the official SDK, with that SDK or with this one."""
    def run(broker: str, uri: str, posts: list[Posted], takes: int, compress: bool) -> tuple[list[bytes], Got]:
        messages: Queue[Any] = Queue()
        acks: Queue[Any] = Queue()
        algorithm = library.CompressionAlgorithmType
        session = library.Session(lambda event: None, lambda message, handle: messages.put((message, handle)), broker,
                                  algorithm.ZLIB if compress else algorithm.NONE)
        try:
            session.open_queue(uri, read=takes > 0, write=True)
            guids = []
            for payload, values, types in posts:
                given = {name: bytes([value]) if types.get(name) == "CHAR" else value for name, value in values.items()}
                session.post(uri, payload, given, {name: library.PropertyType[kind] for name, kind in types.items()},
                             acks.put)
                ack = acks.get(timeout=DEADLINE)
                assert ack.status.name == "SUCCESS"
                guids.append(ack.guid)
            got = []
            for _ in range(takes):
                message, handle = messages.get(timeout=DEADLINE)
                got.append(read(message))
                handle.confirm()
            session.close_queue(uri)
            return guids, got
        finally:
            session.stop()
    return run


FRONTS: dict[str, Front] = {"asyncio": with_asyncio, "twisted": with_twisted, "simple": without_a_loop,
                          "facade": front_of(facade)}
OFFICIAL = front_of(blazingmq)


def expected(guids: list[bytes], posts: list[Posted]) -> Got:
    """Return the expected messages of posts."""
    return [(guid, payload, values, all_types(values, types))
            for guid, (payload, values, types) in zip(guids, posts, strict=True)]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zlib"])
@pytest.mark.parametrize("front", FRONTS)
def test_each_library_consumes_messages_of_the_other_one(node: ProcessWorld, front: str, compress: bool) -> None:
    """GUIDs, payloads, properties and types are compared."""
    uri, broker = f"bmq://d/{front}-{compress}", node.broker.uri
    guids, _ = FRONTS[front](broker, uri, MESSAGES, 0, compress)
    theirs, got = OFFICIAL(broker, uri, MESSAGES, len(MESSAGES), compress)
    assert got == expected(guids, MESSAGES)
    _, got = FRONTS[front](broker, uri, MESSAGES[:1], len(MESSAGES), compress)
    assert got == expected(theirs, MESSAGES)
    assert node.stored(uri) == 1


def test_the_interoperability_tests_use_both_property_styles_and_compression(node: ProcessWorld) -> None:
    """The broker stores old-style compressed messages decompressed."""
    uri, broker = "bmq://d/styles", node.broker.uri
    new_style = node.config.broker["appConfig"]["messagePropertiesV2"]["advertiseV2Support"]
    for post in (FRONTS["simple"], OFFICIAL):
        for compress in (False, True):
            post(broker, uri, MESSAGES[-2:], 0, compress)
    with simple.Session(broker) as session, session.open(uri, read=True) as queue:
        found = []
        while len(found) < 8:
            more = queue.poll(8, DEADLINE)
            assert more
            found += more
        forms = [(message._form & 7 != 0, message._form >> 3 != 0, bool(message._flags & 2)) for message in found]
    assert forms == [(compress and new_style, new_style, True) for compress in (False, False, True, True)] * 2
    with simple.Session(broker, compression=True) as session, session.open(uri, write=True) as queue:
        queue.post_many([payload for payload, _, _ in MESSAGES[-2:]])
        assert session.counters().bytes_out < sum(len(payload) for payload, _, _ in MESSAGES[-2:]) // 20


@pytest.mark.parametrize("poster", [OFFICIAL, FRONTS["simple"]], ids=["official", "own"])
def test_subscriptions_match_properties_posted_by_either_library(node: ProcessWorld, poster: Front) -> None:
    """With all types that expressions support; another consumer gets the other messages."""
    uri, broker = f"bmq://d/subscriptions-{poster is OFFICIAL}", node.broker.uri
    posts: list[Posted] = [(b"%d" % n, {"n": n, "s": f"s{n}", "b": n % 2 == 0}, {"n": kind})
                           for n, kind in enumerate(["SHORT", "INT32", "INT64", "INT64"])]
    small, text = Subscription("n < 2 && b", context="small"), Subscription('n >= 2 && s == "s3"', context="text")
    with simple.Session(broker) as session, session.open(
            uri, read=True, options=QueueOptions(subscriptions=(small, text))) as queue:
        poster(broker, uri, posts, 0, False)
        got = []
        while len(got) < 2:
            found = queue.poll(2, DEADLINE)
            assert found
            for message in found:
                assert message.subscription is not None
                got.append((message.payload, message.subscription.context))
                message.confirm()
        assert got == [(b"0", "small"), (b"3", "text")] and queue.get(0.1) is None
    assert node.stored(uri) == 2


def test_an_application_subscription_filters_messages_of_bmqtwist_for_the_official_library(node: ProcessWorld) -> None:
    node.domain("f", "fanout", apps=("all", "some"), subscriptions=[app_subscription("some", "n > 1")])
    uri, broker = "bmq://f/filtered", node.broker.uri
    guids, _ = FRONTS["simple"](broker, uri, [(b"%d" % n, {"n": n}, {}) for n in range(4)], 0, False)
    with application(broker) as app:
        for name, count in (("all", 4), ("some", 2)):
            app.session.open_queue(f"{uri}?id={name}", read=True)
            assert [message.guid for message in app.take(count)] == guids[4 - count:]
    assert node.stored(uri) == 0


def test_both_libraries_share_the_messages_of_one_queue(node: ProcessWorld) -> None:
    """With producers and consumers of both: every message is delivered to one consumer."""
    uri, count = "bmq://d/shared", 200
    with application(node.broker.uri) as app, simple.Session(node.broker.uri) as session:
        app.session.open_queue(uri, read=True, write=True)
        queue = session.open(uri, read=True, write=True)
        for number in range(count):
            app.session.post(uri, b"official %d" % number, on_ack=app.acks.put)
            queue.post_nowait(b"own %d" % number)
        queue.flush()
        mine: list[bytes] = []
        theirs: list[bytes] = []
        end = time.monotonic() + 4 * DEADLINE
        while len(mine) + len(theirs) < 2 * count:
            assert time.monotonic() < end, f"{len(mine)} + {len(theirs)} of {2 * count} messages have come"
            for message in queue.poll(100, 0.05):
                mine.append(message.payload)
                message.confirm()
            theirs += [message.data for message in app.take(app.messages.qsize())]
        assert {app.next_ack().status for _ in range(count)} == {AckStatus.SUCCESS}
    assert sorted(mine + theirs) == sorted(who % n for who in (b"official %d", b"own %d") for n in range(count))
    assert len(mine) > count // 2 and len(theirs) > count // 2
    assert node.stored(uri) == 0


def test_neither_library_posts_an_empty_payload(node: ProcessWorld) -> None:
    with application(node.broker.uri) as app, simple.Session(node.broker.uri) as session:
        uri = "bmq://d/empty"
        app.session.open_queue(uri, write=True)
        with pytest.raises(blazingmq.Error):
            app.session.post(uri, b"")
        with pytest.raises(SdkError):
            session.open(uri, write=True).post(b"")
    assert node.stored(uri) == 0
