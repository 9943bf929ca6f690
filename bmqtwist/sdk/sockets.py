"""Public module name of `SocketPump`, for programs; `pump` defines it."""

from bmqtwist.sdk.pump import SocketPump

__all__ = ["SocketPump"]
