"""Exceptions of the official library's interface.

`session.py` raises them in place of the `SdkError` of `results.py`.
"""

from __future__ import annotations

from bmqtwist.errors import BmqError


class Error(BmqError):
    """A call failed."""


class BrokerTimeoutError(Error):
    """The broker did not answer in time."""
