"""Construction of session cores, for the adapters: client identity of this process, clock, random numbers, GUIDs.

Also the combination of options (an options object and single members by keyword), and the TLS context of an address. Called
by `event_loop.py` and `pump.py` to make a core, and by the fronts to combine options, whose values `options.py` declares.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from difflib import get_close_matches

from bmqtwist.errors import LocalError
from bmqtwist.ids import GuidGenerator, make_client_id
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.options import Address, QueueMembers, QueueOptions, SessionMembers, SessionOptions, parse_brokers
from bmqtwist.wire.schema import ClientIdentity, ClientType, GuidInfo, SdkLanguage

FEATURES = "PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX;ROUTING:UNREGISTERED_APP"
_DEFAULT_SUBSCRIPTION_MEMBERS = {"consumer_priority", "max_unconfirmed_bytes", "max_unconfirmed_messages"}
_numbers = itertools.count(1)


def make_core(options: SessionOptions, now: float, on_output: Callable[[], None]) -> SessionCore:
    """Return a core with this process's identity; `now` is the time of the adapter's clock."""
    number, wall_ns = next(_numbers), time.time_ns()
    client_id = make_client_id(socket.gethostname() + os.urandom(8).hex(), wall_ns, os.getpid(), number)
    name = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    identity = ClientIdentity(
        protocol_version=1, client_type=ClientType.E_TCPCLIENT, process_name=name, pid=os.getpid(), session_id=number,
        features=FEATURES, sdk_language=SdkLanguage.E_CPP, guid_info=GuidInfo(client_id.hex().upper(), wall_ns),
        user_agent=options.user_agent)
    clock = time.monotonic_ns
    make = GuidGenerator(client_id, clock()).make
    return SessionCore(options, identity, lambda: make(clock()), now, on_output=on_output, random=random.random)


def session_options(broker: str | Iterable[str] | None, options: SessionOptions | None,
                    changes: SessionMembers) -> SessionOptions:
    """Combine complete options, a broker's address and single members. TypeError for unknown names."""
    _check_names("session", SessionOptions, changes.keys())
    if broker is not None:
        changes["brokers"] = parse_brokers(broker)
    return replace(options or SessionOptions(), **changes)


def queue_options(now: QueueOptions, options: QueueOptions | None, changes: QueueMembers) -> QueueOptions:
    """Combine `options`, by default those in force (`now`), with single members. TypeError for unknown names, LocalError for
    members that do not apply to a queue with subscriptions."""
    _check_names("queue", QueueOptions, changes.keys())
    found = options or now
    ignored = changes.keys() & _DEFAULT_SUBSCRIPTION_MEMBERS
    if ignored and changes.get("subscriptions", found.subscriptions):
        raise LocalError(f"{', '.join(sorted(ignored))}: the queue has subscriptions: set these members there")
    return replace(found, **changes)


def _check_names(owner: str, kind: type[SessionOptions] | type[QueueOptions], names: Iterable[str]) -> None:
    known = [each.name for each in fields(kind)]
    for name in sorted(set(names) - set(known)):
        close = get_close_matches(name, known, 1)
        raise TypeError(f"a {owner} has no option {name!r}" + (f", did you mean {close[0]!r}?" if close else
                                                               f": see {kind.__name__}"))


def tls_context(address: Address, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return the TLS context of a tls:// address, `given` or the system's default; None for tcp://."""
    if not address.tls:
        return None
    return given or ssl.create_default_context()
