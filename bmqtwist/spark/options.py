"""Options of the queue source, the queue sink and the storage reader, validated when a query is planned.

Names are those of Spark's Kafka source where the meaning is the same. They are case-insensitive, since Spark passes keys in
lower case. Options of the session with the broker begin with `bmq.`. `source.py` and `storage.py` parse their options with
this module; options of the commands are in `cli/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk.options import Address, parse_brokers

_T = TypeVar("_T")
_Options = TypeVar("_Options", "BrokerOptions", "SourceOptions", "SinkOptions", "StorageOptions")
# Options that Spark adds to those of a source or sink.
_OF_SPARK = {"path", "checkpointlocation", "queryname", "__streaming_source_identifier__"}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(LocalError):
    """An invalid option of a source or sink; the text names it."""


class OptionReader:
    """Options of one source or sink: `pop` reads and removes an option; `check_unknown` refuses the remaining ones."""

    def __init__(self, subject: str, given: Mapping[str, str]) -> None:
        self._subject, self._left = subject, {key.lower(): value for key, value in given.items()}
        self._known: list[str] = []

    def pop(self, name: str, default: _T, read: Callable[[str], _T], *aliases: str) -> _T:
        found, used = None, name
        for each in (name, *aliases):
            self._known.append(each)
            value = self._left.pop(each.lower(), None)
            if value is not None:
                if found is not None:
                    raise OptionError(f"{self._subject}: {used} and {each} are the same option: remove one of them")
                found, used = value, each
        if found is None:
            return default
        try:
            return read(str(found).strip())
        except ValueError as error:
            raise OptionError(f"{self._subject}: option {used}: {error}") from None

    def check_unknown(self) -> None:
        for name in sorted(set(self._left) - _OF_SPARK):
            lower = {each.lower(): each for each in self._known}
            close = get_close_matches(name, lower, 1)
            hint = f", did you mean {lower[close[0]]!r}?" if close else ""
            raise OptionError(f"{self._subject} has no option {name!r}{hint}")


def integer(minimum: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise ValueError(f"{text!r} should be a whole number, at least {minimum}")
        return int(text)
    return read


def parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} should be true or false")
    return text.lower() == "true"


def parse_seconds(text: str) -> float:
    """Parse a time such as 500ms, 10s, 15m; a number without a unit is in milliseconds. Return seconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number):].strip() or "ms"
    if unit not in _UNITS_S:
        raise ValueError(f"{text!r} should be a time such as 500ms, 10s or 15m")
    try:
        value = float(number) * _UNITS_S[unit]
    except ValueError:
        raise ValueError(f"{text!r} should be a time such as 500ms, 10s or 15m") from None
    if not 0 <= value < 1e9:
        raise ValueError(f"{text!r} should be a time from 0 to 1e9 s")
    return value


def parse_size(text: str) -> int:
    """Parse a number of bytes such as 65536, 64k, 64m."""
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit and unit not in _BYTES or int(number) < 1:
        raise ValueError(f"{text!r} should be a number of bytes such as 65536, 64k or 64m")
    return int(number) * _BYTES.get(unit, 1)


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _option(default: _T, read: Callable[[str], _T], *names: str) -> _T:
    made: _T = field(default=default, metadata={"read": read, "names": names})
    return made


def _read_options(given: OptionReader, kind: type[_Options], **known: Any) -> _Options:
    for each in fields(kind):
        if each.name not in known and each.metadata:
            name, *aliases = each.metadata["names"]
            known[each.name] = given.pop(name, each.default, each.metadata["read"], *aliases)
    return kind(**known)


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Brokers, user, TLS. Passwords are read from files, since options appear in plans and logs."""

    brokers: tuple[Address, ...] = _option((), parse_brokers, "bmq.bootstrap.servers", "bmq.brokers")
    user: str = _option("", str, "bmq.user")
    password_file: str = _option("", str, "bmq.password.file")
    tls_ca: str = _option("", str, "bmq.tls.ca")  # file of trusted certificates; "" = those of the system
    tls_insecure: bool = _option(False, parse_flag, "bmq.tls.insecure")
    timeout_s: float = _option(60.0, parse_seconds, "bmq.timeout", "bmq.timeout.ms")  # of connecting and of each request


def _read_broker_options(given: OptionReader) -> BrokerOptions:
    found = _read_options(given, BrokerOptions)
    if not found.brokers:
        raise OptionError("option bmq.bootstrap.servers is missing: write tcp://host:port, several separated by commas")
    if found.user and not found.password_file:
        raise OptionError("option bmq.user needs bmq.password.file: the file whose first line is the password")
    if not found.timeout_s:
        raise OptionError("option bmq.timeout must be greater than 0")
    return found


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a queue as a source. `queues`: URIs, with ?id= for an application of a fanout queue."""

    broker: BrokerOptions
    queues: tuple[str, ...]
    expression: str = _option("", str, "subscriptionExpression")  # of the subscription; "" = every message
    consumer_priority: int = _option(0, int, "consumerPriority")
    batch_messages_max: int = _option(10_000, integer(1), "maxOffsetsPerTrigger", "maxMessagesPerTrigger")
    batch_messages_min: int = _option(0, integer(), "minOffsetsPerTrigger", "minMessagesPerTrigger")
    delay_max_s: float = _option(900.0, parse_seconds, "maxTriggerDelay")  # maximum wait for the minimum size of a batch
    unconfirmed_messages_max: int = 20_000
    unconfirmed_bytes_max: int = _option(64 << 20, parse_size, "maxUnconfirmedBytes")
    partitions_min: int = _option(1, integer(1), "minPartitions")
    partition_messages_max: int = _option(0, integer(), "maxRecordsPerPartition")  # 0 = no limit
    partition_bytes_max: int = _option(4 << 20, parse_size, "maxBytesPerPartition")
    spool_dir: str = _option("", str, "spoolDir")
    guid_retention: int = _option(1_000_000, integer(1), "guidRetention")
    fail_on_data_loss: bool = _option(True, parse_flag, "failOnDataLoss")
    include_properties: bool = _option(True, parse_flag, "includeProperties")
    # Limits of the trigger availableNow; 0 = no limit.
    drain_idle_s: float = _option(1.0, parse_seconds, "availableNow.idle", "availableNow.idleMs")  # time without a message
    drain_max_s: float = _option(0.0, parse_seconds, "availableNow.max", "availableNow.maxMs")  # duration
    drain_messages_max: int = _option(0, integer(), "availableNow.maxMessages")  # number of messages
    browse_messages_max: int = _option(1000, integer(1), "maxMessages")  # of a batch read
    browse_max_s: float = _option(5.0, parse_seconds, "maxWait", "maxMs")  # maximum duration of a batch read
    receivers: int = _option(1, integer(1), "receivers")  # sessions; above 1: child processes

    @property
    def canonical_queues(self) -> tuple[tuple[str, str], ...]:
        parsed = [parse_uri(each) for each in self.queues]
        return tuple((each.canonical, each.app_id) for each in parsed)


def source_options(options: Mapping[str, str]) -> SourceOptions:
    given = OptionReader("the queue source", options)
    broker = _read_broker_options(given)
    none: tuple[str, ...] = ()
    uris = given.pop("subscribe", none, parse_list, "queue")
    if not uris:
        raise OptionError("the queue source: option subscribe is missing: URIs of queues, separated by commas")
    app_id = given.pop("appId", "", str)
    queues = []
    for each in uris:
        uri = parse_uri(each)
        if app_id and uri.app_id and uri.app_id != app_id:
            raise OptionError(f"the queue source: both {each} and option appId name an app: remove one of them")
        app = uri.app_id or app_id
        queues.append(uri.canonical + (f"?id={app}" if app else ""))
    if len(set(queues)) < len(queues) or len(queues) > 256:
        raise OptionError("the queue source: option subscribe: at most 256 queues, each queue and app once")
    for refused in ("startingOffsets", "endingOffsets", "startingTimestamp"):
        if given.pop(refused, "", str):
            raise OptionError(f"the queue source: option {refused} does not apply: a queue is read from its oldest "
                              "unconfirmed message. Storage files (bmq-storage) can be read from any position.")
    found = _read_options(given, SourceOptions, broker=broker, queues=tuple(queues))
    most = given.pop("maxUnconfirmedMessages", 2 * found.batch_messages_max, integer(1))
    found = replace(found, unconfirmed_messages_max=most)
    given.check_unknown()
    if found.batch_messages_min > found.unconfirmed_messages_max:
        raise OptionError("the queue source: minOffsetsPerTrigger exceeds maxUnconfirmedMessages and is never reached")
    return found


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a queue as a sink. `queue` "" = each row has a column `queue`."""

    broker: BrokerOptions
    queue: str = _option("", lambda text: parse_uri(text).canonical, "queue")
    delivery_timeout_s: float = _option(120.0, parse_seconds, "delivery.timeout", "delivery.timeout.ms")
    unacked_messages_max: int = _option(10_000, integer(1), "maxUnackedMessages")
    unacked_bytes_max: int = _option(64 << 20, parse_size, "maxUnackedBytes")
    compression: bool = _option(False, parse_flag, "compression")
    # Identifies a batch write in the digest of its GUIDs; "" = random.
    write_id: str = _option("", str, "writeId")


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = OptionReader("the queue sink", options)
    found = _read_options(given, SinkOptions, broker=_read_broker_options(given))
    given.check_unknown()
    return found


MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


def _parse_guids(text: str) -> tuple[bytes, ...]:
    found = tuple(bytes.fromhex(each) for each in parse_list(text))
    if any(len(each) != 16 for each in found):
        raise ValueError("a GUID has 32 hexadecimal digits")
    return found


def _parse_mode(text: str) -> str:
    if text.upper() not in MODES:
        raise ValueError(f"{text!r} should be one of {', '.join(MODES)}")
    return text.upper()


def _parse_time(text: str) -> int:
    """Parse epoch seconds or an ISO time, by default UTC. Return epoch seconds."""
    from datetime import UTC, datetime

    if text.isdecimal():
        return int(text)
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options of storage files as a table. All filters must match; empty = no filter. Times in epoch seconds."""

    paths: tuple[str, ...]
    record_types: tuple[str, ...] = ()
    columns: tuple[str, ...] = _option((), parse_list, "columns")  # () = all; those of payloads only with `payload`
    queues: tuple[str, ...] = _option((), parse_list, "queues")
    partition_ids: tuple[int, ...] = _option((), lambda text: tuple(map(int, parse_list(text))), "partitionIds")
    guids: tuple[bytes, ...] = _option((), _parse_guids, "guid")
    since: int | None = _option(None, _parse_time, "since")
    until: int | None = _option(None, _parse_time, "until")  # exclusive
    payload: bool = _option(False, parse_flag, "payload")
    verify_crc: bool = _option(False, parse_flag, "verifyCrc")
    include_archive: bool = _option(False, parse_flag, "includeArchive")
    mode: str = _option(MODES[0], _parse_mode, "mode")
    partition_records_max: int = _option(2 << 20, integer(1), "maxPartitionRecords")
    batch_records: int = _option(64 << 10, integer(1), "batchRecords")
    trigger_records_max: int = _option(10_000_000, integer(1), "maxRecordsPerTrigger")
    fail_on_data_loss: bool = _option(True, parse_flag, "failOnDataLoss")
    push_filters: bool = _option(False, parse_flag, "pushFilters")
    finished_only: bool = _option(False, parse_flag, "finishedOnly")  # of a stream: only journals that a rollover completed
    lifelines: bool = _option(False, parse_flag, "lifelines")  # one row per message instead of per record
    # Of lifelines: records in the memory of a task, about 200 bytes each.
    share_records_max: int = _option(4 << 20, integer(1), "maxShareRecords")


def storage_options(options: Mapping[str, str], types: Mapping[str, Any]) -> StorageOptions:
    """Parse the options of the storage reader. `types`: valid names of recordTypes. OptionError if an option is invalid."""
    def record_types(text: str) -> tuple[str, ...]:
        found = tuple(each.upper() for each in parse_list(text))
        for each in found:
            if each not in types:
                raise ValueError(f"{each!r} should be one of {', '.join(types)}")
        return found

    paths = parse_list(options.get("path", "") or options.get("paths", ""))
    given = OptionReader("the storage reader", {key: value for key, value in options.items()
                                                if key.lower() not in ("path", "paths")})
    if not paths:
        raise OptionError("the storage reader: no files: use load('directory') or option path, several separated by commas")
    none: tuple[str, ...] = ()
    found = _read_options(given, StorageOptions, paths=paths, record_types=given.pop("recordTypes", none, record_types))
    given.check_unknown()
    return found
