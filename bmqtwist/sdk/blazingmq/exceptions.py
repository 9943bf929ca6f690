"""Errors with the names of the official library."""

from __future__ import annotations

from bmqtwist.errors import BmqError


class Error(BmqError):
    """A call did not succeed."""


class BrokerTimeoutError(Error):
    """The broker did not answer in time."""
