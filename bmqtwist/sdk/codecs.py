"""Codecs between payloads and values. `Session.open` takes one of these, or any object with `encode` and `decode`.

`_adapters/base.py` encodes posts, `message.py` decodes `Message.value`; properties are encoded in `wire/properties.py`.
"""

from __future__ import annotations

import json
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Literal, Protocol, cast

from typing_extensions import TypeVar

from bmqtwist.errors import LocalError

ValueT = TypeVar("ValueT", default=bytes)


class Codec(Protocol[ValueT]):
    """Converts between payloads and values of the application."""

    def encode(self, value: ValueT, /) -> bytes:
        """Return a payload of at least one byte."""
        ...

    def decode(self, payload: bytes, /) -> ValueT:
        """Return the value of a payload; `message.value` passes on its exceptions."""
        ...


class BytesCodec:
    """Passes payloads through without conversion."""

    def encode(self, value: bytes, /) -> bytes:
        """Return the value unchanged."""
        return bytes(value)

    def decode(self, payload: bytes, /) -> bytes:
        """Return the payload unchanged."""
        return payload


class JsonCodec:
    """Converts between JSON and the values of the module `json`."""

    def encode(self, value: Any, /) -> bytes:
        """Return compact JSON. TypeError or ValueError if the value has no JSON form."""
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, payload: bytes, /) -> Any:
        """Return the value of JSON. ValueError if the payload is not JSON."""
        return json.loads(payload)


class MsgspecCodec(Generic[ValueT]):
    """JSON or MessagePack of a type supported by msgspec, such as a Struct or a dataclass.

    Both directions raise msgspec's errors.
    """

    def __init__(self, kind: type[ValueT], form: Literal["json", "msgpack"] = "json") -> None:
        if form not in ("json", "msgpack"):
            raise LocalError(f"form {form!r}: use 'json' or 'msgpack'")
        module = getattr(_import_optional("msgspec", type(self)), form)
        self._encode, self._decode = module.Encoder().encode, module.Decoder(kind).decode

    def encode(self, value: ValueT, /) -> bytes:
        """Return JSON or MessagePack. TypeError if msgspec does not support the value."""
        return cast(bytes, self._encode(value))

    def decode(self, payload: bytes, /) -> ValueT:
        """Return a value of the type. msgspec.DecodeError for a malformed payload, msgspec.ValidationError for another
        type."""
        return cast(ValueT, self._decode(payload))


class PydanticCodec(Generic[ValueT]):
    """JSON of a pydantic model or another type that pydantic validates. Needs the extra `pydantic` (version 2)."""

    def __init__(self, kind: type[ValueT]) -> None:
        self._adapter = _import_optional("pydantic", type(self)).TypeAdapter(kind)

    def encode(self, value: ValueT, /) -> bytes:
        """Return JSON. pydantic warns if the value is not of the type."""
        return bytes(self._adapter.dump_json(value))

    def decode(self, payload: bytes, /) -> ValueT:
        """Return a value of the type. pydantic.ValidationError if the payload is not of the type."""
        return cast(ValueT, self._adapter.validate_json(payload))


def _import_optional(name: str, wanted_by: type) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise LocalError(f"{wanted_by.__name__} needs the package {name}: pip install 'bmqtwist[{name}]'") from error
