"""Notifications to systemd (`Type=notify`, `WatchdogSec=`): state of the broker as datagrams to the socket NOTIFY_SOCKET.

    READY=1                 the broker accepts connections; in a cluster, its partitions may still wait for other nodes
    STATUS=...              the reason why clients are not served yet, or the progress of a stop; sent when it changes
    RELOADING=1, READY=1    around the reload that SIGHUP causes
    STOPPING=1              the graceful stop has begun
    WATCHDOG=1              every half of WATCHDOG_USEC, by a timer of the event loop: a loop that hangs sends none

Without NOTIFY_SOCKET nothing is sent. A send never blocks; a datagram that systemd cannot take is dropped. `service.py`
calls this module; docs/operations.md has a unit file.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

CHECK_S = 1.0  # longest time between two checks of the status
STATUS_CHARS_MAX = 400
STARTING, SERVING = "starting: reads the stored data", "clients are served"


class Systemd:
    """Socket of the service manager, from the environment of the process. `check_s`: seconds between two calls of `tick`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if path else None
        watchdog = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self._watchdog_s = int(watchdog) / 1e6 if mine and watchdog.isascii() and watchdog.isdecimal() else 0.0
        self.check_s = min(CHECK_S, self._watchdog_s / 2) if self._watchdog_s else CHECK_S
        self._status = ""

    @property
    def enabled(self) -> bool:
        return self._socket is not None

    def starting(self) -> None:
        self._send(*self._changed(STARTING))

    def ready(self, status: str) -> None:
        self._send("READY=1", *self._changed(status))

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def tick(self, status: str) -> None:
        """Send the status if it has changed, and reset the watchdog."""
        self._send(*(("WATCHDOG=1",) if self._watchdog_s else ()), *self._changed(status))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _changed(self, status: str) -> tuple[str, ...]:
        status = (status or SERVING).replace("\n", " ")[:STATUS_CHARS_MAX]
        if status == self._status:
            return ()
        self._status = status
        return (f"STATUS={status}",)

    def _send(self, *lines: str) -> None:
        if self._socket is not None and lines:
            try:
                self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), socket.MSG_DONTWAIT, self._address)
            except OSError:
                pass  # systemd restarts, or its buffer is full: the next status or watchdog follows
