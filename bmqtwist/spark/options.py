"""Options of the queue source, the queue sink and the storage reader: values, checked when a query is planned.

Names are those of Spark's Kafka source where the meaning is the same. Spark hands keys over in lower case, so names are
looked up without regard to case. `bmq.` begins what concerns the session with the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk.options import Address, parse_brokers

_T = TypeVar("_T")
# What Spark itself puts beside the options of a source or sink.
_OF_SPARK = {"path", "checkpointlocation", "queryname", "__streaming_source_identifier__"}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(LocalError):
    """An option of a source or sink is wrong: a sentence that names it."""


class Given:
    """The options of one source or sink, taken out one by one; `finish` refuses those that nobody has asked for."""

    def __init__(self, what: str, given: Mapping[str, str]) -> None:
        self._what, self._left = what, {key.lower(): value for key, value in given.items()}
        self._known: list[str] = []

    def take(self, name: str, default: _T, read: Callable[[str], _T], *aliases: str) -> _T:
        """The value of an option, by its name or another one; OptionError if it cannot be read."""
        found, used = None, name
        for each in (name, *aliases):
            self._known.append(each)
            value = self._left.pop(each.lower(), None)
            if value is not None:
                if found is not None:
                    raise OptionError(f"{self._what}: {used} and {each} mean the same: leave one of them out")
                found, used = value, each
        if found is None:
            return default
        try:
            return read(str(found).strip())
        except ValueError as error:
            raise OptionError(f"{self._what}: option {used}: {error}") from None

    def finish(self) -> None:
        """No other options may be left."""
        for name in sorted(set(self._left) - _OF_SPARK):
            lower = {each.lower(): each for each in self._known}
            close = get_close_matches(name, lower, 1)
            hint = f", did you mean {lower[close[0]]!r}?" if close else ""
            raise OptionError(f"{self._what} has no option {name!r}{hint}")


def whole(least: int = 0) -> Callable[[str], int]:
    """Reads a number that is not smaller than `least`."""
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"{text!r} should be a whole number, at least {least}")
        return int(text)
    return read


def flag(text: str) -> bool:
    """true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} should be true or false")
    return text.lower() == "true"


def seconds(text: str) -> float:
    """A time such as 500ms, 10s, 15m; a bare number counts milliseconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number):].strip() or "ms"
    if unit not in _UNITS_S:
        raise ValueError(f"{text!r} should be a time such as 500ms, 10s or 15m")
    try:
        value = float(number) * _UNITS_S[unit]
    except ValueError:
        raise ValueError(f"{text!r} should be a time such as 500ms, 10s or 15m") from None
    if not 0 <= value < 1e9:
        raise ValueError(f"{text!r} is no time that can be waited for")
    return value


def size(text: str) -> int:
    """A number of bytes such as 65536, 64k, 64m."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit and unit not in _BYTES or int(number) < 1:
        raise ValueError(f"{text!r} should be a number of bytes such as 65536, 64k or 64m")
    return int(number) * _BYTES.get(unit, 1)


def words(text: str) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Which brokers, as whom, how. Passwords come from files: options stand in plans and logs."""

    brokers: tuple[Address, ...]
    user: str = ""
    password_file: str = ""
    tls_ca: str = ""  # file of certificates to check the broker's against; "" = the system's
    tls_insecure: bool = False
    timeout_s: float = 60.0  # for a connection and for each answer


def _broker(given: Given) -> BrokerOptions:
    none: tuple[Address, ...] = ()
    brokers = given.take("bmq.bootstrap.servers", none, parse_brokers, "bmq.brokers")
    if not brokers:
        raise OptionError("option bmq.bootstrap.servers is missing: write tcp://host:port, or several with commas")
    found = BrokerOptions(
        brokers, given.take("bmq.user", "", str), given.take("bmq.password.file", "", str),
        given.take("bmq.tls.ca", "", str), given.take("bmq.tls.insecure", False, flag),
        given.take("bmq.timeout", 60.0, seconds, "bmq.timeout.ms"))
    if found.user and not found.password_file:
        raise OptionError("option bmq.user needs bmq.password.file: the file whose first line is the password")
    if not found.timeout_s:
        raise OptionError("option bmq.timeout: it must be longer than 0")
    return found


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Of a queue as a source. `queues`: URIs, with ?id= for an application of a fanout queue."""

    broker: BrokerOptions
    queues: tuple[str, ...]
    expression: str = ""  # of the subscription; "" = every message
    consumer_priority: int = 0
    batch_messages_max: int = 10_000
    batch_messages_min: int = 0
    delay_max_s: float = 900.0  # a batch waits no longer than that for its smallest size
    unconfirmed_messages_max: int = 20_000
    unconfirmed_bytes_max: int = 64 << 20
    partitions_min: int = 1
    partition_messages_max: int = 0  # 0 = no limit
    partition_bytes_max: int = 4 << 20
    spool_dir: str = ""
    guid_retention: int = 1_000_000
    fail_on_data_loss: bool = True
    include_properties: bool = True
    drain_idle_s: float = 1.0  # availableNow ends when nothing came for that long
    drain_max_s: float = 0.0  # ... or after that; 0 = no limit
    drain_messages_max: int = 0  # ... or after so many messages; 0 = no limit
    browse_messages_max: int = 1000  # of a batch read
    browse_max_s: float = 5.0  # a batch read waits no longer than that
    receivers: int = 1  # sessions that take messages; several are processes of their own

    @property
    def wanted(self) -> tuple[tuple[str, str], ...]:
        """(canonical URI, appId or "") of each queue."""
        parsed = [parse_uri(each) for each in self.queues]
        return tuple((each.canonical, each.app_id) for each in parsed)


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Read them; OptionError."""
    given = Given("the queue source", options)
    broker = _broker(given)
    none: tuple[str, ...] = ()
    uris = given.take("subscribe", none, words, "queue")
    if not uris:
        raise OptionError("the queue source: option subscribe is missing: the URI of a queue, or several with commas")
    app_id = given.take("appId", "", str)
    queues = []
    for each in uris:
        uri = parse_uri(each)
        if app_id and uri.app_id and uri.app_id != app_id:
            raise OptionError(f"the queue source: {each} names an app, and so does option appId: leave one of them out")
        app = uri.app_id or app_id
        queues.append(uri.canonical + (f"?id={app}" if app else ""))
    if len(set(queues)) < len(queues) or len(queues) > 256:
        raise OptionError("the queue source: option subscribe: each queue and app once, not more than 256 of them")
    for refused in ("startingOffsets", "endingOffsets", "startingTimestamp"):
        if given.take(refused, "", str):
            raise OptionError(f"the queue source: option {refused} means nothing to a queue: it keeps what nobody has "
                              "confirmed, and that is what is read. Storage files (bmq-storage) can be read from any place.")
    most = given.take("maxOffsetsPerTrigger", 10_000, whole(1), "maxMessagesPerTrigger")
    found = SourceOptions(
        broker, tuple(queues), given.take("subscriptionExpression", "", str),
        given.take("consumerPriority", 0, int), most,
        given.take("minOffsetsPerTrigger", 0, whole(), "minMessagesPerTrigger"),
        given.take("maxTriggerDelay", 900.0, seconds),
        given.take("maxUnconfirmedMessages", 2 * most, whole(1)),
        given.take("maxUnconfirmedBytes", 64 << 20, size),
        given.take("minPartitions", 1, whole(1)),
        given.take("maxRecordsPerPartition", 0, whole()),
        given.take("maxBytesPerPartition", 4 << 20, size),
        given.take("spoolDir", "", str), given.take("guidRetention", 1_000_000, whole(1)),
        given.take("failOnDataLoss", True, flag), given.take("includeProperties", True, flag),
        given.take("availableNow.idle", 1.0, seconds, "availableNow.idleMs"),
        given.take("availableNow.max", 0.0, seconds, "availableNow.maxMs"),
        given.take("availableNow.maxMessages", 0, whole()),
        given.take("maxMessages", 1000, whole(1)), given.take("maxWait", 5.0, seconds, "maxMs"),
        given.take("receivers", 1, whole(1)))
    given.finish()
    if found.batch_messages_min > found.unconfirmed_messages_max:
        raise OptionError("the queue source: minOffsetsPerTrigger is more than maxUnconfirmedMessages: it is never reached")
    return found


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Of a queue as a sink. `queue` "" = the column of that name says it."""

    broker: BrokerOptions
    queue: str = ""
    delivery_timeout_s: float = 120.0
    unacked_messages_max: int = 10_000
    unacked_bytes_max: int = 64 << 20
    compression: bool = False
    write_id: str = ""  # of a batch write: what its GUIDs are made of beside the content; "" = a random one


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read them; OptionError."""
    given = Given("the queue sink", options)
    found = SinkOptions(
        _broker(given), given.take("queue", "", lambda text: parse_uri(text).canonical),
        given.take("delivery.timeout", 120.0, seconds, "delivery.timeout.ms"),
        given.take("maxUnackedMessages", 10_000, whole(1)), given.take("maxUnackedBytes", 64 << 20, size),
        given.take("compression", False, flag), given.take("writeId", "", str))
    given.finish()
    return found


MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Of storage files as a table. Filters are all to be met; empty = no filter. Times in epoch seconds."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] = ()  # () = all but the costly ones
    record_types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    partition_ids: tuple[int, ...] = ()
    guids: tuple[bytes, ...] = ()
    since: int | None = None
    until: int | None = None  # exclusive
    payload: bool = False
    verify_crc: bool = False
    include_archive: bool = False
    mode: str = MODES[0]
    partition_records_max: int = 2 << 20
    batch_records: int = 64 << 10
    trigger_records_max: int = 10_000_000
    fail_on_data_loss: bool = True
    push_filters: bool = False
    finished_only: bool = False  # of a stream: only journals that a rollover has ended
    lifelines: bool = False  # a row for each message instead of each record
    share_records_max: int = 4 << 20  # of life lines: records that a task holds in memory, of about 200 bytes each


def _guid(text: str) -> tuple[bytes, ...]:
    found = tuple(bytes.fromhex(each) for each in words(text))
    if any(len(each) != 16 for each in found):
        raise ValueError("a GUID has 32 hexadecimal digits")
    return found


def _mode(text: str) -> str:
    if text.upper() not in MODES:
        raise ValueError(f"{text!r} should be one of {', '.join(MODES)}")
    return text.upper()


def _when(text: str) -> int:
    """Epoch seconds, or an ISO time (UTC unless it says otherwise)."""
    from datetime import UTC, datetime

    if text.isdecimal():
        return int(text)
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def storage_options(options: Mapping[str, str], types: Mapping[str, Any]) -> StorageOptions:
    """Read them; `types` are the names that recordTypes knows. OptionError."""
    def record_types(text: str) -> tuple[str, ...]:
        found = tuple(each.upper() for each in words(text))
        for each in found:
            if each not in types:
                raise ValueError(f"{each!r} should be one of {', '.join(types)}")
        return found

    paths = words(options.get("path", "") or options.get("paths", ""))
    given = Given("the storage reader", {key: value for key, value in options.items()
                                         if key.lower() not in ("path", "paths")})
    if not paths:
        raise OptionError("the storage reader: say which files: load('directory'), or option path, several with commas")
    found = StorageOptions(
        paths, given.take("columns", (), words), given.take("recordTypes", (), record_types),
        given.take("queues", (), words), given.take("partitionIds", (), lambda text: tuple(map(int, words(text)))),
        given.take("guid", (), _guid), given.take("since", None, _when), given.take("until", None, _when),
        given.take("payload", False, flag), given.take("verifyCrc", False, flag),
        given.take("includeArchive", False, flag), given.take("mode", MODES[0], _mode),
        given.take("maxPartitionRecords", 2 << 20, whole(1)), given.take("batchRecords", 64 << 10, whole(1)),
        given.take("maxRecordsPerTrigger", 10_000_000, whole(1)), given.take("failOnDataLoss", True, flag),
        given.take("pushFilters", False, flag), given.take("finishedOnly", False, flag),
        given.take("lifelines", False, flag), given.take("maxShareRecords", 4 << 20, whole(1)))
    given.finish()
    return found
