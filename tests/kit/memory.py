"""A broker in this process without sockets, storage files, threads or a real clock; it runs only when a test calls it.

The broker is `bmqtwist.testing.node`, with configuration files on the real disk. `receive` of a link runs it until it is
idle, so that no wait is needed after it. The fixture `world` of tests/conftest.py creates it; the same scenarios run
against a process with `process.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bmqtwist.config.load import DomainReader, load
from bmqtwist.link.session import Session
from bmqtwist.testing.node import ImmediateNode
from kit.client import DEADLINE, Client, Expired
from kit.config import ConfigDirectory
from kit.world import World

PORT = 30114  # in the configuration only; no process listens on it


class MemoryLink:
    """Client end of a connection to a broker in memory; also the transport of the broker's session."""

    def __init__(self, world: MemoryWorld, peer: str) -> None:
        self._world, self.closed = world, False
        self._arrived: deque[bytes] = deque()
        self._ended = False  # the broker has closed it; data that arrived before can still be read
        self.session: Session | None = world.broker.sessions.add_accepted(peer, world.now)
        self.session.transport = self

    def send(self, data: bytes) -> None:
        """Pass bytes to the session; the broker handles them at the next `receive`."""
        if self.session is not None:
            self._world.broker.sessions.on_received(self.session, data, self._world.now)
            self._world.turn_requested = True

    def receive(self, deadline: float) -> bytes:
        """Run the broker until it is idle, and return the bytes that have arrived."""
        self._world.run()
        data = b"".join(self._arrived)
        self._arrived.clear()
        if not data and self._ended:
            self.closed = True
        return data

    def drop(self) -> None:
        """Cut the connection."""
        self.closed = True
        self.report_loss()
        self._world.run()

    # Transport of the session

    def write(self, data: bytes) -> int:
        """Store bytes that the broker writes; 0 bytes are pending."""
        self._arrived.append(data)
        return 0

    def close(self) -> None:
        """The broker closed the connection."""
        self._ended = True
        self.report_loss()

    def set_reading(self, wanted: bool) -> None:
        """Ignore flow control: the client end has no limit."""

    def report_loss(self) -> None:
        """Report the end of the connection to the session."""
        session, self.session = self.session, None
        if session is not None:
            self._world.broker.sessions.on_lost(session, self._world.now)
            self._world.turn_requested = True


class MemoryWorld(ImmediateNode, World):
    """A world whose broker runs in this process, with a virtual clock and disk."""

    def __init__(self, root: Path, *, app: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None,
                 start: bool = True) -> None:
        World.__init__(self)
        self.root = root
        self.config = ConfigDirectory(root, PORT, app=app, cluster=cluster)
        ImmediateNode.__init__(self, lambda: load(str(self.config.etc), environment={}).configuration,
                      lambda configuration: DomainReader(configuration.directory))
        self._peers = self._lines_checked = 0
        self.allow_internal_errors = False  # else a test fails if the broker logs INTERNAL_ERROR
        if start:
            self.start()

    def run(self) -> None:
        """Run the broker until it is idle; an internal error fails the test, unless the test allows them."""
        super().run()
        lines, self._lines_checked = self.report.lines[self._lines_checked:], len(self.report.lines)
        assert self.allow_internal_errors or not any("[INTERNAL_ERROR]" in text for _, text in lines), lines

    @contextmanager
    def storage_stalled(self) -> Iterator[None]:
        """No sync completes within the `with` block."""
        self.disk_stalled = True
        try:
            yield
        finally:
            self.disk_stalled = False
            self.run()

    def link(self, listener: int = 0) -> MemoryLink:
        """Open a connection without a socket."""
        self._peers += 1
        return MemoryLink(self, f"127.0.0.1:{40000 + self._peers}")

    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Run the broker until it is idle and return the first matching record; raises Expired without waiting."""
        self.run()
        for record in self.log()[since:]:
            if all(text in record for text in texts):
                return record
        raise Expired("no log record with " + repr(texts) + ":\n" + "\n".join(self.log()[-60:]))

    def wait_disconnected(self, client: Client) -> None:
        """Run the broker until it is idle: it has the end of the connection already."""
        self.run()
