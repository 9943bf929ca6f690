"""Logger of all sessions, and short texts for connection errors of the system, the resolver, TLS and Twisted.

The standard logger `bmqtwist.sdk` writes nothing until the application configures logging. INFO: connects and losses.
WARNING: refusals and timeouts. The texts are those of the core's `WriteLog` effects; none is logged per message.
`_adapters/base.py` writes the effects, `aio.py`, `tx.py` and `pump.py` name the reasons of lost connections.
"""

from __future__ import annotations

import logging
import re
import ssl

LOG = logging.getLogger("bmqtwist.sdk")
LOG.addHandler(logging.NullHandler())
_NUMBER = re.compile(r"\[Errno (-?\d+)\] ([^\[\],(]*)")
_NAMES = {  # by class name, without importing Twisted
    "ConnectionRefusedError": "connection refused", "gaierror": "unknown host", "DNSLookupError": "unknown host",
    "UserTimeoutError": "no answer", "TCPTimedOutError": "no answer", "TimeoutError": "no answer",
    "ConnectionDone": "closed by the broker", "NoRouteError": "no route to host",
}
_OPENSSL = ("OpenSSL.SSL", "service_identity")


def reason_of(error: BaseException) -> str:
    """Return a short text for a connection error."""
    known: str | None = next((_NAMES[each.__name__] for each in type(error).__mro__ if each.__name__ in _NAMES), None)
    if known is not None:
        return known
    if isinstance(error, ssl.SSLError):
        text = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
        return f"TLS: {text.replace('_', ' ').lower()}"
    if type(error).__module__.startswith(_OPENSSL):
        return f"TLS: {_openssl(error)}"
    if isinstance(error, OSError):
        if error.strerror:
            return str(error.strerror).lower()
        causes = {str(text).strip().lower() for _, text in _NUMBER.findall(str(error))}  # asyncio reports several attempts
        if len(causes) == 1:
            return causes.pop().replace("connect call failed", "connection refused")
    return str(error) or type(error).__name__


def _openssl(error: BaseException) -> str:
    """Return the last member of each entry of an OpenSSL error queue."""
    queue = error.args[0] if error.args else None
    if isinstance(queue, list) and queue and all(isinstance(entry, tuple) and entry for entry in queue):
        return ", ".join(str(entry[-1]) for entry in queue)
    return str(error) or type(error).__name__
