"""Alias of `pump.SocketPump`."""

from bmqtwist.sdk.pump import SocketPump

__all__ = ["SocketPump"]
