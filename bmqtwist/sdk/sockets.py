"""What moves bytes over plain sockets, under the name that applications use; see `pump`."""

from bmqtwist.sdk._adapters.sockets import SocketTransport as SocketPump

__all__ = ["SocketPump"]
