"""What moves bytes for the sessions without an event loop, under the names that applications use.

`SocketPump` is the one that is used by default. Another one (an in-memory channel of a test, a tunnel) derives from `Pump`
and is handed to `simple.Session(..., pump=...)` as a callable that makes it:

    class MyPump(Pump):
        def dial(self, effect): ...                     # open a channel, then core.connected(...) or core.failed(...)
        def hang_up(self): ...                          # close it, or give up opening it
        def write(self, chunks): ...                    # bytes to the broker
        def step(self, timeout_s=None): ...             # wait, hand what came to core.received, tick, perform
        def poke(self): ...                             # end a waiting step
        def dispose(self): ...                          # let go of everything

`perform` may be called by any thread that holds `lock`; `step` by one thread at a time, without it.
"""

from bmqtwist.sdk._adapters.sockets import SocketTransport as SocketPump
from bmqtwist.sdk._adapters.transport import Dispatch
from bmqtwist.sdk._adapters.transport import Transport as Pump
from bmqtwist.sdk._adapters.transport import TransportFactory as PumpFactory
from bmqtwist.sdk._core.effects import Connect

__all__ = ["Connect", "Dispatch", "Pump", "PumpFactory", "SocketPump"]
