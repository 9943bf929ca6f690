"""Between payloads and values: a queue is opened with one of these, or with anything that has `encode` and `decode`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any


class BytesCodec:
    """Payloads as they are."""

    def encode(self, value: bytes) -> bytes:
        """The same bytes."""
        return bytes(value)

    def decode(self, payload: bytes) -> bytes:
        """The same bytes."""
        return payload


class JsonCodec:
    """Plain JSON, compact."""

    def encode(self, value: Any) -> bytes:
        """TypeError or ValueError if JSON cannot say it."""
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, payload: bytes) -> Any:
        """ValueError if it is not JSON."""
        return json.loads(payload)


class MsgspecCodec:
    """JSON, or MessagePack, of a msgspec type. Needs the package msgspec."""

    def __init__(self, kind: Any, form: str = "json") -> None:
        msgspec = import_module("msgspec")
        module = {"json": msgspec.json, "msgpack": msgspec.msgpack}[form]
        self.encode = module.Encoder().encode
        self.decode = module.Decoder(kind).decode


class PydanticCodec:
    """JSON of a pydantic model or of any type that pydantic can validate. Needs the package pydantic, version 2."""

    def __init__(self, kind: Any) -> None:
        self._adapter = import_module("pydantic").TypeAdapter(kind)

    def encode(self, value: Any) -> bytes:
        """JSON."""
        return bytes(self._adapter.dump_json(value))

    def decode(self, payload: bytes) -> Any:
        """pydantic.ValidationError if it does not fit."""
        return self._adapter.validate_json(payload)
