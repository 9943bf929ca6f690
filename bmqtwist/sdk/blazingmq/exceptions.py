"""Exceptions of the official library's interface."""

from __future__ import annotations

from bmqtwist.errors import BmqError


class Error(BmqError):
    """A call failed."""


class BrokerTimeoutError(Error):
    """The broker did not answer in time."""
