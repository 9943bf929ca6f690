"""Exceptions by cause: LocalError (this program or its configuration), PeerError (malformed input), Refused (a refusal).

Also the codes on the wire: result categories of control messages and statuses of ACKs. `link/requests.py` sends the category
and the text of a `Refused` to the client; `cli/exits.py` turns errors into exit codes. `loop/error_isolation.py` handles all
other exceptions.
"""

from __future__ import annotations

from enum import IntEnum


class Category(IntEnum):
    """Result category of a control message's Status."""

    E_SUCCESS = 0
    E_UNKNOWN = -1
    E_TIMEOUT = -2
    E_NOT_CONNECTED = -3
    E_CANCELED = -4
    E_NOT_SUPPORTED = -5
    E_REFUSED = -6
    E_INVALID_ARGUMENT = -7
    E_NOT_READY = -8


class AckStatus(IntEnum):
    """Status of one ACK message."""

    SUCCESS = 0
    LIMIT_MESSAGES = 1
    LIMIT_BYTES = 2
    UNKNOWN = 5
    STORAGE_FAILURE = 6
    NOT_READY = 7


class BmqError(Exception):
    """Base of all exceptions of this package; not raised itself."""


class LocalError(BmqError, ValueError):
    """An error of the caller, the operator or the configuration; the message says how to correct it."""


class PeerError(BmqError):
    """Malformed input of a peer.

    `field`: the field being read; `offset`: bytes from the start of the given buffer; `fatal`: the byte stream cannot be
    parsed further, and the connection must be closed.
    """

    reason: str
    field: str
    offset: int
    fatal: bool

    def __init__(self, reason: str, field: str = "", offset: int = 0, fatal: bool = False) -> None:
        super().__init__(f"{reason} [field: {field}, offset: {offset}]" if field else reason)
        self.reason, self.field, self.offset, self.fatal = reason, field, offset, fatal


class Refused(BmqError):
    """The refusal of a well-formed request, as a status: `category`, opaque `code` and a `message` for people. `node`: the
    node that refused, for the log; empty = this one."""

    def __init__(self, category: Category, message: str, code: int = 0, node: str = "") -> None:
        super().__init__(message)
        self.category, self.message, self.code, self.node = category, message, code, node
