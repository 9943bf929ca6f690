"""Settings of the shell from command line and profile, their validation, and the session options derived from them. A
profile is a JSON object; `MEMBERS` contains the names of its members.

Members without effect in this shell (`memoryDebug`, `threads`, ...) are accepted, for compatibility with bmqtool profiles.
`command.py` reads the settings; `commands.py` parses the commands of the session.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import click

from bmqtwist import __version__
from bmqtwist.cli.connection import make_tls_context
from bmqtwist.cli.main import TOOL, called_as_tool
from bmqtwist.cli.shell.commands import (
    MAX_UNCONFIRMED_BYTES,
    MAX_UNCONFIRMED_MESSAGES,
    Flags,
    Property,
    ShellCommandError,
    parse_flags,
    read_property,
    read_subscription,
)
from bmqtwist.cli.shell.printing import STAMP_BYTES
from bmqtwist.config.declare import camel_case
from bmqtwist.errors import BmqError, LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.limits import APPLICATION_DATA_BYTES_MAX
from bmqtwist.sdk.options import DEFAULT_USER_AGENT, Credential, QueueOptions, SessionOptions, Subscription, parse_brokers

MODES = ("cli", "auto", "storage", "syschk")
LATENCIES = ("none", "hires", "epoch")
VERBOSITIES = ("silent", "trace", "debug", "info", "warning", "error", "fatal")
LOG_FORMAT, TERMINAL_FORMAT = "%d (%t) %s %F:%l %m\\n", "%s %m\\n"
PUBSUB_PROPERTY = "AUTO_PUBSUB_PROPERTY"
_INT_MAX = (1 << 31) - 1
_MOST = {"msg_size": APPLICATION_DATA_BYTES_MAX, "auto_pub_sub_modulo": 1000, "timeout_sec": 1_000_000}


def _option(default: Any, text: str = "", *names: str, **more: Any) -> Any:
    """Declare a member of a profile and the command line option with these names."""
    kind = {"is_flag": True, "default": None} if isinstance(default, bool) else {
        "type": int} if isinstance(default, int) else {}
    return field(default=default, metadata={"option": (names, {**kind, "help": text, **more})})


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """Members of bmqtool's profile. `post_interval` in milliseconds, `timeout_sec` in seconds."""

    mode: str = _option("cli", "cli: commands. auto: produce or consume, print statistics. syschk: test a broker.", "--mode",
                        type=click.Choice(MODES, case_sensitive=False))
    broker: str = _option("tcp://localhost:30114", "tcp://host:port or tls://host:port.  [env: BMQ_BROKER_URI, BMQ_PORT; "
                          "default: tcp://localhost:30114]", "-b", "--broker", metavar="ADDRESS",
                          envvar=["BMQ_BROKER_URI", "BMQ_BROKER"])
    tls_authority: str = _option("", "Certificate authorities that verify the broker (tls://).", "--tls-authority",
                                 metavar="FILE")
    tls_versions: str = _option("TLSv1.3", "[default: TLSv1.3]", "--tls-versions", metavar="NAMES")
    queue_uri: str = _option("", "The queue (auto, syschk).", "-q", "--queueuri", "--queue-uri", metavar="URI")
    queue_flags: str = _option("", "read,write,ack (auto).", "-f", "--queueflags", "--queue-flags", metavar="FLAGS")
    latency: str = _option("none", "Clock for latencies: hires on one machine, epoch between machines.", "-l",
                           "--latency", type=click.Choice(LATENCIES, case_sensitive=False))
    latency_report: str = _option("", "File for latencies as JSON.", "--latency-report", metavar="FILE")
    dump_msg: bool = _option(False, "Show messages and acknowledgements.", "-d", "--dumpmsg", "--dump-msg")
    confirm_msg: bool = _option(False, "Confirm messages on arrival.", "-c", "--confirmmsg", "--confirm-msg")
    event_size: int = _option(1, "Messages per event.  [default: 1]", "-e", "--eventsize", "--event-size", metavar="N")
    msg_size: int = _option(1024, "Size of payloads.  [default: 1024]", "-m", "--msgsize", "--msg-size", metavar="BYTES")
    post_rate: int = _option(1, "Events per interval.  [default: 1]", "-r", "--postrate", "--post-rate",
                             metavar="N")
    events_count: str = _option("0", "Number of events, or duration in seconds.  [default: 0, until a signal]",
                                "--eventscount", "--events-count", metavar="N|Ns")
    max_unconfirmed: str = _option(f"{MAX_UNCONFIRMED_MESSAGES}:{MAX_UNCONFIRMED_BYTES}",
                                   "Limits of unconfirmed messages.  [default: 1024:33554432]", "-u", "--maxunconfirmed",
                                   "--max-unconfirmed", metavar="MESSAGES:BYTES")
    post_interval: int = _option(1000, "Interval of --postrate.  [default: 1000]", "-i", "--postinterval", "--post-interval",
                                 metavar="MS")
    verbosity: str = _option("info", "[default: info]", "-v", "--verbosity",
                             type=click.Choice(VERBOSITIES, case_sensitive=False))
    log_format: str = _option("", f"Format of log records.  [default: {LOG_FORMAT!r}, in a terminal {TERMINAL_FORMAT!r}]",
                              "--logFormat", "--log-format", metavar="FORMAT")
    memory_debug: bool = _option(False, "", "-D", "--memorydebug", "--memory-debug", hidden=True)
    threads: int = _option(1, "", "-t", "--threads", hidden=True)
    shutdown_grace: int = _option(0, "Idle time that ends a consumer; delay before a queue is closed (auto).",
                                  "--shutdownGrace", "--shutdown-grace", metavar="SECONDS")
    no_session_event_handler: bool = _option(False, "", "--nosessioneventhandler", "--no-session-event-handler", hidden=True)
    storage: str = _option("", "", "-s", "--storage", metavar="PATH", hidden=True)
    log: str = _option("", "File with a line per message and event.", "--log", type=click.Path(dir_okay=False))
    sequential_message_pattern: str = _option("", "Prefix of payloads, followed by a number of nine digits (auto).",
                                              "--messagepattern", "--message-pattern", metavar="TEXT")
    message_properties: tuple[Property, ...] = _option(
        (), 'Properties to post: [{"name": "x", "value": "1", "type": "E_INT"}] (auto).', "--messageProperties",
        "--message-properties", metavar="JSON")
    subscriptions: tuple[dict[str, Any], ...] = _option((), 'Subscriptions: [{"expression": "x > 0"}] (auto).',
                                                        "--subscriptions", metavar="JSON")
    auto_pub_sub_modulo: int = _option(0, "Number messages modulo N in a property, and subscribe to each number (auto).",
                                       "--autoPubSubModulo", "--auto-pub-sub-modulo", metavar="N")
    timeout_sec: int = _option(300, "Timeout of requests.  [default: 300]", "--timeout", metavar="SECONDS")
    authn_mechanism: str = _option("", "Authentication mechanism, for instance BASIC.", "--authnMechanism",
                                   "--authn-mechanism", metavar="NAME")
    authn_data: str = _option("", "Credential, for instance user:password.", "--authnData", "--authn-data", metavar="TEXT")

    # -- derived values and validation --------------------------------------------------------------------------------

    @property
    def flags(self) -> Flags:
        return parse_flags(self.queue_flags)

    @property
    def unconfirmed(self) -> tuple[int, int]:
        """Limits of unconfirmed messages and bytes."""
        found = re.fullmatch(r"\s*([0-9]{1,10})\s*:\s*([0-9]{1,10})\s*", self.max_unconfirmed)
        if not found or max(map(int, found.groups())) > _INT_MAX:
            raise LocalError(f"maxunconfirmed {self.max_unconfirmed!r}: write messages:bytes, for instance 1024:33554432")
        return int(found[1]), int(found[2])

    @property
    def count(self) -> tuple[int, float]:
        """Number of events and duration in seconds; 0 = no limit."""
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
        for value, known, name in ((self.mode, MODES, "mode"), (self.latency, LATENCIES, "latency"),
                                   (self.verbosity, VERBOSITIES, "verbosity")):
            if value.lower() not in known:
                raise LocalError(f"{name} {value!r}: use one of {', '.join(known)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and not 0 <= value <= _MOST.get(each.name, _INT_MAX):
                raise LocalError(f"{camel_case(each.name)} {value}: use 0 to {_MOST.get(each.name, _INT_MAX)}")
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
        self.count  # noqa: B018 - raises if it is invalid
        if self.latency != "none" and self.sequential_message_pattern:
            raise LocalError("--messagepattern leaves no room for the timestamp of --latency")
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
        """Return the queue options of the automatic mode."""
        messages, size = self.unconfirmed
        automatic = tuple({"expression": f"{PUBSUB_PROPERTY} == {number}"} for number in range(self.auto_pub_sub_modulo))
        return queue_options({"maxUnconfirmedMessages": messages, "maxUnconfirmedBytes": size, "consumerPriority": 0,
                              "subscriptions": self.subscriptions + automatic})

    def profile(self) -> dict[str, Any]:
        """Return these settings as a profile."""
        tree: dict[str, Any] = {camel_case(each.name): getattr(self, each.name) for each in fields(self)}
        tree["messageProperties"] = [{"name": each.name, "value": str(each.value), "type": each.type_name}
                                     for each in self.message_properties]
        tree["subscriptions"] = [{name: value for name, value in each.items() if value is not None}
                                 for each in self.subscriptions]
        return tree


MEMBERS = {camel_case(each.name): each.name for each in fields(ShellSettings)}
OPTIONS = tuple(click.option(*names, each.name, **more) for each in fields(ShellSettings)
                for names, more in [each.metadata["option"]])


def queue_options(reading: Mapping[str, Any]) -> QueueOptions:
    """Return the queue options of an `open` or `configure` command. Raises ShellCommandError for an invalid expression,
    limit or priority."""
    try:
        return QueueOptions(*_read_limits(reading), subscriptions=tuple(
            _make_subscription({**reading, **{name: value for name, value in each.items() if value is not None}})
            for each in reading["subscriptions"]))
    except BmqError as error:
        raise ShellCommandError(str(error)) from None


def _read_limits(reading: Mapping[str, Any]) -> tuple[int, int, int]:
    return reading["maxUnconfirmedMessages"], reading["maxUnconfirmedBytes"], reading["consumerPriority"]


def _make_subscription(each: Mapping[str, Any]) -> Subscription:
    expression = each.get("expression")
    if expression == "":
        raise ShellCommandError("Invalid subscription '': its expression is empty; omit it to receive all messages")
    try:
        return Subscription(expression or "", *_read_limits(each), each.get("correlationId"))
    except BmqError as error:
        raise ShellCommandError(f"Invalid subscription '{expression or ''}': {error}") from None


def read_profile(text: str, settings: ShellSettings) -> ShellSettings:
    """Apply a profile to settings. Raises LocalError if it is invalid; unknown members are ignored, as in bmqtool."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LocalError(f"the profile is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise LocalError("a profile is a JSON object")
    changes: dict[str, Any] = {}
    for name, value in tree.items():
        if name in MEMBERS and value is not None:
            changes[MEMBERS[name]] = _convert_member(name, value, getattr(settings, MEMBERS[name]))
    return replace(settings, **changes)


def read_list(name: str, text: str) -> tuple[Any, ...]:
    """Parse the JSON text of `messageProperties` or `subscriptions`."""
    try:
        return _convert_list(name, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise LocalError(f"{name}: not JSON: {error}") from None


def _convert_list(name: str, tree: Any) -> tuple[Any, ...]:
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise LocalError(f"{name}: a list of objects is expected")
    read = read_property if name == "messageProperties" else read_subscription
    try:
        return tuple(read(each) for each in tree)
    except ShellCommandError as error:
        raise LocalError(f"{name}: {error}") from None


def _convert_member(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        return _convert_list(name, value)
    if isinstance(default, str) and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # eventsCount may be written as a number
    if type(value) is not type(default):
        raise LocalError(f"profile: {name} should be {_KINDS[type(default)]}")
    return value


_KINDS = {str: "text", int: "a whole number", bool: "true or false"}


_ATTEMPT_S = 15.0
_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def session_options(settings: ShellSettings, connect_timeout_s: float | None = None) -> SessionOptions:
    """Return the session options. Raises LocalError for an invalid broker address."""
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


def tls_context(settings: ShellSettings) -> ssl.SSLContext | None:
    """Return the TLS context with the allowed versions; None without tls:// addresses."""
    if not any(broker.tls for broker in parse_brokers(settings.broker)):
        return None
    context = make_tls_context(settings.tls_authority or None, False)
    names = [name.strip().lower() for name in settings.tls_versions.split(",") if name.strip()]
    if not names or not all(name in _VERSIONS for name in names):
        raise LocalError(f"tlsVersions {settings.tls_versions!r}: TLSv1.3, TLSv1.2, or both with a comma")
    context.minimum_version = min(_VERSIONS[name] for name in names)
    context.maximum_version = max(_VERSIONS[name] for name in names)
    return context
