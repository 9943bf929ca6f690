"""Our errors as those of the official library: its types, its texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bmqtwist.errors import BmqError
from bmqtwist.ids import InvalidUri
from bmqtwist.sdk.blazingmq.exceptions import BrokerTimeoutError, Error
from bmqtwist.sdk.results import Result, SdkError

STOPPED = "Method called after session was stopped"
NOT_OPENED = "Queue not opened"
_OF_MESSAGES = {Result.PAYLOAD_EMPTY, Result.PAYLOAD_TOO_BIG, Result.QUEUE_SUSPENDED}  # nothing that a connection could help


def _coded(error: BmqError) -> str:
    """CODE: why."""
    if isinstance(error, SdkError):
        return str(error)
    return f"{'INVALID_URI' if isinstance(error, InvalidUri) else 'INVALID_ARGUMENT'}: {error}"


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what goes wrong in a request as `Failed to <what>: CODE: why`."""
    try:
        yield
    except Error:
        raise
    except BmqError as error:
        late = isinstance(error, SdkError) and error.result is Result.TIMEOUT
        raise (BrokerTimeoutError if late else Error)(f"Failed to {what}: {_coded(error)}") from error


def confirm_error(error: SdkError, guid: bytes) -> Error:
    """What a confirmation that cannot be sent raises."""
    if error.result is Result.INVALID_QUEUE:
        return Error(NOT_OPENED)
    return Error(f"Failed to confirm message [{guid.hex().upper()}]: {error}")


@contextlib.contextmanager
def translated_post(uri: str) -> Iterator[None]:
    """Raise what goes wrong with a post."""
    try:
        yield
    except Error:
        raise
    except SdkError as error:
        if error.result in _OF_MESSAGES:
            raise Error(f"Failed to construct message: {error}") from error
        raise Error(f"Failed to post message to {uri} queue: {error}") from error
    except BmqError as error:
        raise ValueError(str(error)) from error
