"""`SocketPump` of `pump`."""

from bmqtwist.sdk.pump import SocketPump

__all__ = ["SocketPump"]
