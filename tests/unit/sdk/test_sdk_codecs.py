"""Codecs: supported values, and queues opened with a codec on each front."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from kit.sdk_fronts_kit import URI, Front, w

from bmqtwist.errors import LocalError
from bmqtwist.sdk import BytesCodec, JsonCodec, Message, MsgspecCodec, PydanticCodec


class Struct(msgspec.Struct):
    """A msgspec type."""

    name: str
    numbers: list[int]


class Model(pydantic.BaseModel):
    """A pydantic type."""

    name: str
    numbers: list[int]


@dataclass
class Plain:
    """A type for both libraries."""

    name: str
    numbers: list[int]


class ZipCodec:
    """A codec of an application."""

    def encode(self, value: str, /) -> bytes:
        """Return a payload."""
        return zlib.compress(value.encode())

    def decode(self, payload: bytes, /) -> str:
        """Return a value."""
        return zlib.decompress(payload).decode()


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "bytes": (BytesCodec, b"\x00\xff"),
    "json": (JsonCodec, {"ä": [1, 2.5, None, True, "x"]}),
    "msgspec json": (lambda: MsgspecCodec(Struct), Struct("n", [1, 2])),
    "msgspec msgpack": (lambda: MsgspecCodec(Struct, "msgpack"), Struct("n", [1, 2])),
    "msgspec dataclass": (lambda: MsgspecCodec(Plain), Plain("n", [])),
    "pydantic model": (lambda: PydanticCodec(Model), Model(name="n", numbers=[1])),
    "pydantic dataclass": (lambda: PydanticCodec(Plain), Plain("n", [3])),
    "own": (ZipCodec, "text"),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_encoded_and_decoded_on_every_front(front: Front, name: str) -> None:
    make, value = CASES[name]

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True, codec=make()))
        await w(queue.post(value, {"k": 1}))
        queue.post_nowait(value)
        await w(queue.flush())
        await w(queue.post_many([value, (value, {"k": 2})]))
        got = [await w(queue.get()) for _ in range(4)]
        assert [message.value for message in got] == [value] * 4
        assert [message.properties for message in got] == [{"k": 1}, {}, {}, {"k": 2}]
        assert {message.payload for message in got} == {make().encode(value)}
        for message in got:
            message.confirm()
        await w(queue.close())
        values: list[Any] = []

        def on_message(message: Message[Any]) -> None:
            values.append(message.value)
            message.confirm()
        queue = await w(session.open(URI, read=True, write=True, codec=make(), on_message=on_message))
        await w(queue.post(value))
        await front.until(lambda: values == [value])
        await w(session.stop())
    front.run(scenario)


@pytest.mark.parametrize(("name", "value", "error"), [
    ("json", {1, 2}, TypeError), ("msgspec json", object(), TypeError), ("own", 7, AttributeError),
])
def test_posting_a_value_that_cannot_be_encoded_raises(front: Front, name: str, value: Any, error: type) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True, codec=CASES[name][0]()))
        with pytest.raises(error):
            await w(queue.post(value))
        with pytest.raises(error):
            queue.post_nowait(value)
        with pytest.raises(error):
            await w(queue.post_many([value]))
        await w(session.stop())
        assert session.counters().posts == 0
    front.run(scenario)


@pytest.mark.parametrize(("name", "payload", "error"), [
    ("json", b"{", ValueError), ("msgspec json", b"{", msgspec.DecodeError),
    ("msgspec json", b'{"name": 1, "numbers": []}', msgspec.ValidationError),
    ("msgspec msgpack", b"\xc1", msgspec.DecodeError), ("pydantic model", b'{"name": "x"}', pydantic.ValidationError),
    ("own", b"no zlib", zlib.error),
])
def test_reading_the_value_of_a_malformed_payload_raises(front: Front, name: str, payload: bytes,
                                                         error: type[Exception]) -> None:
    async def scenario() -> None:
        session = await front.start()
        front.broker.put(URI, payload)
        queue = await w(session.open(URI, read=True, codec=CASES[name][0]()))
        message = await w(queue.get())
        assert message.payload == payload
        with pytest.raises(error):
            assert message.value
        message.confirm()
        await w(session.stop())
    front.run(scenario)


def test_a_codec_that_does_not_return_bytes_is_named_in_the_error(front: Front) -> None:
    class StrCodec(JsonCodec):
        def encode(self, value: Any, /) -> Any:
            return str(value)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True, codec=StrCodec()))
        with pytest.raises(TypeError, match="StrCodec.encode must return bytes, not str"):
            await w(queue.post(1))
        await w(session.stop())
    front.run(scenario)


def test_json_is_compact_utf8() -> None:
    assert JsonCodec().encode({"a": [1, "ä"]}) == '{"a":[1,"ä"]}'.encode()


@pytest.mark.parametrize(("codec", "package"), [(MsgspecCodec, "msgspec"), (PydanticCodec, "pydantic")])
def test_a_missing_package_is_named_with_the_extra_that_installs_it(codec: Any, package: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LocalError, match=rf"{codec.__name__} needs the package {package}: pip install "
                                         rf"'bmqtwist\[{package}\]'"):
        codec(int)


def test_an_unknown_msgspec_format_is_refused() -> None:
    with pytest.raises(LocalError, match="use 'json' or 'msgpack'"):
        MsgspecCodec(int, "yaml")  # type: ignore[arg-type]
