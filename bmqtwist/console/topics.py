"""Topics: names of the documents that a client requests once or subscribes to, with their parsed arguments. Pure.

`hub.py` parses subscriptions with it, `documents_api.py` requests; `collector.py` makes the document of a topic. Sort
keys and the size of a page are in `queues.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from bmqtwist.console.access import Refusal
from bmqtwist.console.queues import FILTER_CHARS_MAX, PAGE_ROWS_MAX, SORTS
from bmqtwist.ids import InvalidUri, parse_uri

OFFSET_MAX = 10_000_000
URI_CHARS_MAX = 512
PARTITIONS_MAX = 1000  # in one request


class ClusterTopic(Struct, frozen=True):
    """Document of the whole cluster."""


class ElectionsTopic(Struct, frozen=True):
    """Document of terms and election events."""


class QueuesTopic(Struct, frozen=True):
    """Page of the queues of the cluster. `partitions`: partitions whose queues a node reports to another node's
    console; None = the partitions of which it is the primary."""

    text: str = ""
    sort: str = "messages"
    descending: bool = True
    offset: int = 0
    limit: int = 100
    partitions: tuple[int, ...] | None = None

    @property
    def upto(self) -> int:
        """Number of leading entries that the page requires."""
        return self.offset + self.limit

    def query(self) -> dict[str, str]:
        """Return the query for the entries up to the end of this page."""
        return {"filter": self.text, "sort": self.sort, "order": "desc" if self.descending else "asc",
                "upto": str(self.upto)}


class QueueTopic(Struct, frozen=True):
    """Document of one queue."""

    uri: str


Topic = ClusterTopic | ElectionsTopic | QueuesTopic | QueueTopic


def topic_of(name: object, arguments: Mapping[str, Any]) -> Topic:
    """Return the topic of a name. Raises Refusal 400."""
    if name == "cluster":
        return ClusterTopic()
    if name == "elections":
        return ElectionsTopic()
    if name == "queues":
        return queues_topic(arguments)
    if name == "queue":
        return QueueTopic(queue_uri(arguments))
    raise Refusal(400, "The topics are cluster, queues, queue and elections.", "subscribe")


def queues_topic(arguments: Mapping[str, Any]) -> QueuesTopic:
    """Return a page from its arguments, with defaults. Raises Refusal 400."""
    text, sort, order = arguments.get("filter") or "", arguments.get("sort") or "messages", arguments.get("order") or "desc"
    if not isinstance(text, str) or len(text) > FILTER_CHARS_MAX:
        raise Refusal(400, f"A filter has at most {FILTER_CHARS_MAX} characters.", "filter")
    if not isinstance(sort, str) or sort not in SORTS:
        raise Refusal(400, f"Queues are sorted by one of {', '.join(SORTS)}.", "sort")
    if order not in ("asc", "desc"):
        raise Refusal(400, "The order is asc or desc.", "order")
    return QueuesTopic(text, sort, order == "desc", read_number(arguments, "offset", 0, 0, OFFSET_MAX),
                       read_number(arguments, "limit", 100, 1, PAGE_ROWS_MAX), read_partitions(arguments))


def read_partitions(arguments: Mapping[str, Any], name: str = "partitions") -> tuple[int, ...] | None:
    """Return numbers of partitions from a text as 0,2,3; None = the argument is absent. Raises Refusal 400."""
    value = arguments.get(name)
    if value is None:
        return None
    parts = str(value).split(",") if value != "" else []
    if len(parts) > PARTITIONS_MAX or not all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts):
        raise Refusal(400, f"{name} must be numbers of partitions, as 0,2,3.", name)
    return tuple(map(int, parts))


def queue_uri(arguments: Mapping[str, Any], name: str = "uri") -> str:
    """Return the URI of a queue. Raises Refusal 400."""
    uri = arguments.get(name)
    try:
        if not isinstance(uri, str) or len(uri) > URI_CHARS_MAX:
            raise InvalidUri("")
        parse_uri(uri)
    except InvalidUri:
        raise Refusal(400, "The URI of a queue has the form bmq://domain/queue.", name) from None
    return uri


def read_number(arguments: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """Return a whole number from a query or from JSON. Raises Refusal 400 if it is invalid or out of range."""
    value = arguments.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refusal(400, f"{name} must be a whole number from {low:,} to {high:,}.", name)
    return value


def read_text(arguments: Mapping[str, Any], name: str, most: int, least: int = 0) -> str:
    """Return a text of `least` to `most` characters. Raises Refusal 400."""
    value = arguments.get(name)
    if value is None:
        value = ""
    if not isinstance(value, str) or not least <= len(value) <= most:
        wanted = f"at most {most:,}" if not least else f"{least:,} to {most:,}"
        raise Refusal(400, f"{name} must be a text of {wanted} characters.", name)
    return value
