"""What the command line and a profile choose, checked together, and the options of a session that follow. A profile is a
JSON object; `MEMBERS` names its members.

Members that nothing depends on here (`memoryDebug`, `threads`, ...) are understood, so that profiles keep working.
"""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import dataclass, fields, replace
from typing import Any

from bmqtwist import __version__
from bmqtwist.cli.connection import client_context
from bmqtwist.cli.lazygroup import TOOL, called_as_tool
from bmqtwist.cli.shell.commands import (
    MAX_UNCONFIRMED_BYTES,
    MAX_UNCONFIRMED_MESSAGES,
    CommandError,
    Flags,
    Property,
    SubscriptionArg,
    member_name,
    parse_flags,
    read_property,
    read_subscription,
)
from bmqtwist.cli.shell.printing import STAMP_BYTES
from bmqtwist.errors import BmqError, LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk.options import DEFAULT_USER_AGENT, Credential, QueueOptions, SessionOptions, Subscription, parse_brokers

MODES = ("cli", "auto", "storage", "syschk")
LATENCIES = ("none", "hires", "epoch")
VERBOSITIES = ("silent", "trace", "debug", "info", "warning", "error", "fatal")
LOG_FORMAT = "%d (%t) %s %F:%l %m\\n"
PUBSUB_PROPERTY = "AUTO_PUBSUB_PROPERTY"
_INT_MAX = (1 << 31) - 1
_MOST = {"msg_size": APPLICATION_DATA_BYTES_MAX, "auto_pub_sub_modulo": 1000, "timeout_sec": 1_000_000}


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it, as the original's profile has it. `post_interval` in milliseconds, `timeout_sec` in seconds."""

    mode: str = "cli"
    broker: str = "tcp://localhost:30114"
    tls_authority: str = ""
    tls_versions: str = "TLSv1.3"
    queue_uri: str = ""
    queue_flags: str = ""
    latency: str = "none"
    latency_report: str = ""
    dump_msg: bool = False
    confirm_msg: bool = False
    event_size: int = 1
    msg_size: int = 1024
    post_rate: int = 1
    events_count: str = "0"
    max_unconfirmed: str = f"{MAX_UNCONFIRMED_MESSAGES}:{MAX_UNCONFIRMED_BYTES}"
    post_interval: int = 1000
    verbosity: str = "info"
    log_format: str = ""
    memory_debug: bool = False
    threads: int = 1
    shutdown_grace: int = 0
    no_session_event_handler: bool = False
    storage: str = ""
    log: str = ""
    sequential_message_pattern: str = ""
    message_properties: tuple[Property, ...] = ()
    subscriptions: tuple[SubscriptionArg, ...] = ()
    auto_pub_sub_modulo: int = 0
    timeout_sec: int = 300
    authn_mechanism: str = ""
    authn_data: str = ""

    # -- what follows from it -----------------------------------------------------------------------------------------

    @property
    def flags(self) -> Flags:
        """How the queue is opened."""
        return parse_flags(self.queue_flags)

    @property
    def unconfirmed(self) -> tuple[int, int]:
        """Messages and bytes that may be unconfirmed."""
        found = re.fullmatch(r"\s*([0-9]{1,10})\s*:\s*([0-9]{1,10})\s*", self.max_unconfirmed)
        if not found or max(map(int, found.groups())) > _INT_MAX:
            raise LocalError(f"maxunconfirmed {self.max_unconfirmed!r}: write messages:bytes, for instance 1024:33554432")
        return int(found[1]), int(found[2])

    @property
    def count(self) -> tuple[int, float]:
        """Events to post, and seconds to post them in; 0 = no bound."""
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*([sS]?)\s*", self.events_count)
        if not found:
            raise LocalError(f"eventscount {self.events_count!r}: write a number of events, or seconds as in 30s")
        number = int(found[1])
        if not found[2]:
            return number, 0.0
        if self.post_interval and number:
            return max(self.post_rate * (number * 1000 // self.post_interval), 1), 0.0
        return 0, float(number)

    def check(self) -> None:
        """LocalError if this cannot be done."""
        for value, known, name in ((self.mode, MODES, "mode"), (self.latency, LATENCIES, "latency"),
                                   (self.verbosity, VERBOSITIES, "verbosity")):
            if value.lower() not in known:
                raise LocalError(f"{name} {value!r}: use one of {', '.join(known)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and not 0 <= value <= _MOST.get(each.name, _INT_MAX):
                raise LocalError(f"{member_name(each.name)} {value}: use 0 to {_MOST.get(each.name, _INT_MAX)}")
        if not self.timeout_sec:
            raise LocalError("timeout 0: wait at least one second")
        if self.mode == "storage" or self.storage:
            raise LocalError("the shell does not open storage files: `bmq storage` does")
        self.queue_options()
        if self.mode == "auto":
            self._check_auto()
        if self.queue_uri:
            self._check_uri()

    def _check_auto(self) -> None:
        if not self.queue_uri:
            raise LocalError("mode auto needs --queueuri")
        if not self.flags.any:
            raise LocalError("mode auto needs --queueflags with read, write, or both")
        if self.no_session_event_handler:
            raise LocalError("--nosessioneventhandler is for mode cli")
        if self.flags.write and not (self.post_rate and self.event_size):
            raise LocalError("nothing is posted with a postrate or an eventsize of 0")
        self.count  # noqa: B018 - it says so if it is none
        if self.latency != "none" and self.sequential_message_pattern:
            raise LocalError("--messagepattern leaves no room for the time that --latency puts into messages")
        if self.flags.write and not self.sequential_message_pattern:
            least = 1 if self.latency == "none" else STAMP_BYTES
            if self.msg_size < least:
                raise LocalError(f"msgsize {self.msg_size}: at least {least}" + (" with --latency" if least > 1 else ""))
        if self.latency_report and self.latency == "none":
            raise LocalError("--latency-report needs --latency epoch or hires")

    def _check_uri(self) -> None:
        try:
            parse_uri(self.queue_uri)
        except BmqError as error:
            raise LocalError(f"queueuri {self.queue_uri!r}: {error}") from None

    def queue_options(self) -> QueueOptions:
        """How the automatic mode reads its queue."""
        messages, size = self.unconfirmed
        automatic = tuple(SubscriptionArg(expression=f"{PUBSUB_PROPERTY} == {number}")
                          for number in range(self.auto_pub_sub_modulo))
        return queue_options(messages, size, 0, self.subscriptions + automatic)

    def profile(self) -> dict[str, Any]:
        """The same as a profile; what a file with it chooses is these settings."""
        tree: dict[str, Any] = {member_name(each.name): getattr(self, each.name) for each in fields(self)}
        tree["messageProperties"] = [{"name": each.name, "value": str(each.value), "type": each.type_name}
                                     for each in self.message_properties]
        tree["subscriptions"] = [
            {member_name(part.name): value for part in fields(each) if (value := getattr(each, part.name)) is not None}
            for each in self.subscriptions]
        return tree


MEMBERS = {member_name(each.name): each.name for each in fields(Settings)}


def queue_options(messages: int, size: int, priority: int, subscriptions: tuple[SubscriptionArg, ...]) -> QueueOptions:
    """Options for a queue; CommandError if an expression is none, or a priority too large."""
    try:
        return QueueOptions(messages, size, priority, subscriptions=tuple(
            _subscription(each, messages, size, priority) for each in subscriptions))
    except BmqError as error:
        raise CommandError(str(error)) from None


def _subscription(each: SubscriptionArg, messages: int, size: int, priority: int) -> Subscription:
    if each.expression == "":
        raise CommandError("Invalid subscription '': its expression is empty; leave it out to get all messages")
    try:
        return Subscription(each.expression or "", _given(each.max_unconfirmed_messages, messages),
                            _given(each.max_unconfirmed_bytes, size), _given(each.consumer_priority, priority),
                            each.correlation_id)
    except BmqError as error:
        raise CommandError(f"Invalid subscription '{each.expression or ''}': {error}") from None


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def read_profile(text: str, settings: Settings) -> Settings:
    """Settings changed by a profile; LocalError if it is none. Unknown members are ignored, as the original does."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalError(f"the profile is no JSON: {error}") from None
    if not isinstance(tree, dict):
        raise LocalError("a profile is a JSON object")
    changes: dict[str, Any] = {}
    for name, value in tree.items():
        if name in MEMBERS and value is not None:
            changes[MEMBERS[name]] = _member(name, value, getattr(settings, MEMBERS[name]))
    return replace(settings, **changes)


def read_list(name: str, text: str) -> tuple[Any, ...]:
    """`messageProperties` or `subscriptions` from JSON text."""
    try:
        return _list(name, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise LocalError(f"{name}: no JSON: {error}") from None


def _list(name: str, tree: Any) -> tuple[Any, ...]:
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise LocalError(f"{name}: a list of objects is expected")
    read = read_property if name == "messageProperties" else read_subscription
    try:
        return tuple(read(each) for each in tree)
    except CommandError as error:
        raise LocalError(f"{name}: {error}") from None


def _member(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        return _list(name, value)
    if isinstance(default, str) and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # eventsCount may be written as a number
    if type(value) is not type(default):
        raise LocalError(f"profile: {name} should be {_KINDS[type(default)]}")
    return value


_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


_ATTEMPT_S = 15.0
_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def session_options(settings: Settings, connect_timeout_s: float | None = None) -> SessionOptions:
    """Options of a session; LocalError for a broker address that is none."""
    timeout = float(settings.timeout_sec)
    connect = connect_timeout_s or timeout
    credential = None
    if settings.authn_mechanism:
        credential = Credential(settings.authn_mechanism, settings.authn_data.encode() or None)
    return SessionOptions(
        brokers=parse_brokers(settings.broker), credential=credential, connect_timeout_s=connect,
        attempt_timeout_s=min(connect, _ATTEMPT_S), open_timeout_s=timeout, configure_timeout_s=timeout,
        close_timeout_s=timeout, disconnect_timeout_s=timeout,
        user_agent=f"{TOOL} libbmq:{__version__}" if called_as_tool() else DEFAULT_USER_AGENT)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS for tls:// addresses, of the versions allowed."""
    if not any(broker.tls for broker in parse_brokers(settings.broker)):
        return None
    context = client_context(settings.tls_authority or None, False)
    names = [name.strip().lower() for name in settings.tls_versions.split(",") if name.strip()]
    if not names or not all(name in _VERSIONS for name in names):
        raise LocalError(f"tlsVersions {settings.tls_versions!r}: TLSv1.3, TLSv1.2, or both with a comma")
    context.minimum_version = min(_VERSIONS[name] for name in names)
    context.maximum_version = max(_VERSIONS[name] for name in names)
    return context
