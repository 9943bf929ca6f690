"""Public module name of `SocketPump`, for programs; `pump` defines it.

The fronts import `pump.py` directly.
"""

from bmqtwist.sdk.pump import SocketPump

__all__ = ["SocketPump"]
