"""A value type and codecs of an application, for the programs of this directory. They are checked by mypy and pyright
(strict), and never run."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.sdk import Codec, JsonCodec, MsgspecCodec, PydanticCodec


@dataclass
class Order:
    """Value of a queue."""

    number: int
    items: list[str]


class OrderCodec:
    """Codec of an application; it needs no base class."""

    def encode(self, value: Order, /) -> bytes:
        """Return the payload of an order."""
        return f"{value.number} {' '.join(value.items)}".encode()

    def decode(self, payload: bytes, /) -> Order:
        """Return the order of a payload."""
        number, *items = payload.decode().split()
        return Order(int(number), items)


OWN: Codec[Order] = OrderCodec()
STRUCT: Codec[Order] = MsgspecCodec(Order, "msgpack")
MODEL: Codec[Order] = PydanticCodec(Order)
ANY = JsonCodec()
