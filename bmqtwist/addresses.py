"""Network addresses as text: host names that a resolver accepts, and host and port with the brackets of IPv6.

Called by every part that reads an address from a user (`sdk/options.py`, `config/clusters.py`, `cli/`) or prints one.
Attempts to connect are in `dialing.py`.
"""

from __future__ import annotations

import re

HOST_CHARS_MAX = 255  # of a name; DNS allows 253 and a final dot
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f/\\@?#\[\]<>\"'`{}|^,;&=()]")


def is_host(text: str) -> bool:
    """Return whether a resolver accepts a host: a name whose labels have 1 to 63 bytes, or an address without brackets.

    >>> is_host("mq-1.example"), is_host("::1"), is_host("mq..example"), is_host("user:secret@mq")
    (True, True, False, False)
    """
    if not text or len(text) > HOST_CHARS_MAX or _FORBIDDEN.search(text):
        return False
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address.

    >>> host_and_port("::1", 30114), host_and_port("mq", 30114)
    ('[::1]:30114', 'mq:30114')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_credential(text: str) -> str:
    """Return an address for an error text: everything between the scheme and the last @ is replaced.

    >>> without_credential("tcp://user:secret@mq:30114")
    'tcp://***@mq:30114'
    """
    head, at, rest = text.rpartition("@")
    return f"{head.partition('://')[0]}://***@{rest}" if at and "://" in head else f"***@{rest}" if at else text
