"""Connected sockets for blocking programs: the first address of the first broker that accepts, as in RFC 8305.

Called by `pump.py` and by `cli/adminclient.py`. The order of the attempts is in `bmqtwist/dialing.py`; asynchronous fronts
race in `event_loop.py`.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from bmqtwist.dialing import Race, interleave
from bmqtwist.sdk.options import Address

_Found = tuple[Address, list[Any], OSError | None]  # broker, results of getaddrinfo, error
_Place = tuple[Address, Any]


class ConnectFailed(OSError):
    """No broker has accepted; `causes`: the error of each."""

    def __init__(self, causes: dict[Address, OSError]) -> None:
        super().__init__("; ".join(dict.fromkeys(each.strerror or str(each) for each in causes.values())))
        self.causes = causes


def connect_first(brokers: Sequence[Address], timeout_s: float | None) -> tuple[socket.socket, Address]:
    """Connect to the first address that accepts; return the blocking socket and the broker. ConnectFailed if all
    refuse, TimeoutError after `timeout_s` seconds (None = no limit)."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    with _Dialer(brokers) as dialer:
        return dialer.run(end)


class _Dialer:
    """One race. With several brokers each name is resolved in a thread, so that a slow resolver delays only its own name."""

    def __init__(self, brokers: Sequence[Address]) -> None:
        self._brokers = brokers
        self._race = Race[_Place]((), len(brokers))
        self._selector = selectors.DefaultSelector()
        self._resolved: deque[_Found] = deque()
        self._reader, self._writer = socket.socketpair()
        self._lock, self._closed = threading.Lock(), False
        self._causes: dict[Address, OSError] = {}

    def __enter__(self) -> _Dialer:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._writer.close()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._reader.close()

    def run(self, end: float | None) -> tuple[socket.socket, Address]:
        self._selector.register(self._reader, selectors.EVENT_READ)
        if len(self._brokers) == 1:
            self._resolve(self._brokers[0])
        else:
            for broker in self._brokers:
                threading.Thread(target=self._resolve, args=(broker,), daemon=True).start()
        while True:
            self._add_resolved()
            now = time.monotonic()
            while (place := self._race.take(now)) is not None:
                self._start(*place)
            if self._race.is_lost:
                raise ConnectFailed(self._causes)
            if end is not None and now >= end:
                raise TimeoutError("timed out")
            due = [each for each in (self._race.next_at, end) if each is not None]
            for key, _ in self._selector.select(max(min(due) - now, 0.0) if due else None):
                if key.data is None:
                    self._reader.recv(1024)
                elif (won := self._finish(key)) is not None:
                    return won, key.data

    def _resolve(self, broker: Address) -> None:
        """Resolve a name; runs in a thread if there are several."""
        found: list[Any] = []
        error = None
        try:
            found = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
        except OSError as failure:
            error = failure
        with self._lock:
            if not self._closed:
                self._resolved.append((broker, found, error))
                self._writer.send(b"\0")

    def _add_resolved(self) -> None:
        while self._resolved:
            broker, found, error = self._resolved.popleft()
            self._race.add([(broker, place) for place in interleave(found)], self._note(broker, error) if error else "")

    def _note(self, broker: Address, error: OSError) -> str:
        """Keep the last error of a broker."""
        self._causes[broker] = error
        return error.strerror or str(error)

    def _start(self, broker: Address, place: Any) -> None:
        family, kind, protocol, _, address = place
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # this machine lacks the family
            self._race.on_failed(self._note(broker, error))
            return
        made.setblocking(False)
        try:
            code = made.connect_ex(address)
        except OSError as error:  # such as an address without its scope
            code = error.errno or errno.EINVAL
        if code not in (0, errno.EINPROGRESS):
            made.close()
            self._race.on_failed(self._note(broker, OSError(code, os.strerror(code))))
            return
        self._selector.register(made, selectors.EVENT_WRITE, broker)

    def _finish(self, key: selectors.SelectorKey) -> socket.socket | None:
        """Return the connected socket, None if its attempt has failed."""
        made: Any = key.fileobj
        self._selector.unregister(made)
        code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            made.close()
            self._race.on_failed(self._note(key.data, OSError(code, os.strerror(code))))
            return None
        made.setblocking(True)
        return made  # type: ignore[no-any-return]
