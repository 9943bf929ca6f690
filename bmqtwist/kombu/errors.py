"""What goes wrong, as kombu sees it: either a new connection may help, or it will not."""

from __future__ import annotations

from kombu.exceptions import OperationalError

from bmqtwist.sdk.results import Result, SdkError


class LinkLost(ConnectionError):
    """The connection is gone or does not answer: kombu and Celery connect again."""


class Refused(OperationalError):
    """The broker does not want that: no such domain, wrong password, queue full. Trying again at once is no use."""


_PASSING = frozenset((Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED, Result.NOT_READY,
                      Result.ALREADY_IN_PROGRESS))


def refusal(what: str, result: Result, message: str = "") -> LinkLost | Refused:
    """The error for something that ended with a result other than SUCCESS."""
    text = f"{what}: {result.value} {message}".rstrip()
    return LinkLost(text) if result in _PASSING else Refused(text)


def translated(what: str, error: SdkError) -> LinkLost | Refused:
    """The same of an error of the session core."""
    return refusal(what, error.result, error.message)
