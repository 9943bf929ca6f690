"""A type of an application's own, for the programs here. They are never run, only checked: mypy and pyright, strict."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.sdk import Codec, JsonCodec, MsgspecCodec, PydanticCodec


@dataclass
class Order:
    """What is posted."""

    number: int
    items: list[str]


class OrderCodec:
    """A codec of one's own needs no base class."""

    def encode(self, value: Order, /) -> bytes:
        """A payload."""
        return f"{value.number} {' '.join(value.items)}".encode()

    def decode(self, payload: bytes, /) -> Order:
        """Back."""
        number, *items = payload.decode().split()
        return Order(int(number), items)


OWN: Codec[Order] = OrderCodec()
STRUCT: Codec[Order] = MsgspecCodec(Order, "msgpack")
MODEL: Codec[Order] = PydanticCodec(Order)
ANY = JsonCodec()
