"""Interface of scenarios to one broker, its configuration, clients, log and clock, in memory or as a process.

A scenario is a function of a `world`; by default it runs in memory under a virtual clock, with `@pytest.mark.real` also
against a process. Both worlds have all methods; `advance` and `storage_stalled` work in memory only. The worlds are
`memory.py` and `process.py`; the fixture `world` of tests/conftest.py chooses one.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kit.client import DEADLINE, Client, ClientLink, Push, Queue
from kit.config import ConfigDirectory


class World(ABC):
    """A broker and its clients."""

    config: ConfigDirectory
    root: Path

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self._admin: Client | None = None
        self._names = 0

    # Implemented by each kind of world

    @abstractmethod
    def start(self) -> None:
        """Start the broker; return when it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker gracefully; return when it has ended."""

    @abstractmethod
    def crash(self) -> None:
        """Kill the broker; only data that it has written remain."""

    @abstractmethod
    def link(self, listener: int = 0) -> ClientLink:
        """Open a connection to the broker."""

    @abstractmethod
    def log(self) -> list[str]:
        """Return all log records of the broker, one per item, of all its starts."""

    @abstractmethod
    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Wait for a log record that contains all texts, from record number `since` on, and return it."""

    @abstractmethod
    def wait_disconnected(self, client: Client) -> None:
        """Return when the broker has handled the end of this client's connection."""

    def advance(self, seconds: float) -> None:
        """Advance the virtual clock."""
        raise AssertionError("the clock of a real broker cannot be advanced")

    def storage_stalled(self) -> AbstractContextManager[None]:
        """Complete no sync of the virtual disk within the `with` block."""
        raise AssertionError("a real disk cannot be stalled")

    # Restarts

    def restart(self) -> None:
        """Stop gracefully and start again; all clients are disconnected."""
        self._drop_clients()
        self.stop()
        self.start()

    def crash_and_start(self) -> None:
        """Kill and start again; all clients are disconnected."""
        self._drop_clients()
        self.crash()
        self.start()

    def _drop_clients(self) -> None:
        for client in self.clients:
            client.link.closed = True
        self.clients, self._admin = [], None

    # Configuration

    def domain(self, name: str = "d", *args: Any, **parameters: Any) -> str:
        """Write the file of a domain (see config.domain_config) and return its name."""
        self.config.domain(name, *args, **parameters)
        return name

    def reconfigure(self, name: str = "d", *args: Any, **parameters: Any) -> str:
        """Write the file of a domain, have the broker read it, and return the answer."""
        self.domain(name, *args, **parameters)
        return self.admin(f"DOMAINS RECONFIGURE {name}")

    # Clients

    def connect(self, name: str = "", *, listener: int = 0, **identity: Any) -> Client:
        """Open a connection without negotiation."""
        self._names += 1
        client = Client(self.link(listener), name or f"client{self._names}", on_drop=self._dropped, **identity)
        self.clients.append(client)
        return client

    def client(self, name: str = "", *, listener: int = 0, **identity: Any) -> Client:
        """Open a connection and negotiate a session."""
        client = self.connect(name, listener=listener, **identity)
        response = client.negotiate()
        assert response["result"]["category"] == "E_SUCCESS", response
        return client

    def producer(self, uri: str = "bmq://d/q", name: str = "", **identity: Any) -> Queue:
        """Connect a new client and open a queue for writing."""
        return self.client(name, **identity).open(uri, write=1)

    def consumer(self, uri: str = "bmq://d/q", app: str | None = None, *, name: str = "", **options: Any) -> Queue:
        """Connect a new client, open a queue for reading and configure it; options as of Queue.configure."""
        return self.client(name).consume(uri, app, **options)

    def _dropped(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
        self.wait_disconnected(client)

    def wait_idle(self) -> None:
        """Return when the broker has handled all requests so far and all clients have received the results."""
        for _ in range(2):
            for client in list(self.clients):
                if client.broker_response and client.identity["clientType"] == "E_TCPCLIENT":
                    client.barrier()

    def new_payloads(self, queue: Queue) -> list[bytes]:
        """Return the payloads delivered to this consumer since the last call, after the broker has become idle."""
        return [push.payload for push in self.pushes(queue)]

    def pushes(self, queue: Queue) -> list[Push]:
        """Return the messages delivered to this consumer since the last call, after the broker has become idle."""
        self.wait_idle()
        return queue.pushes()

    # Administration

    def admin(self, command: str) -> str:
        """Run an admin command on the admin session, which the first call opens."""
        if self._admin is None or self._admin.link.closed:
            self._admin = self.client("admin", client_type="E_TCPADMIN")
        return self._admin.admin(command)

    def admin_json(self, command: str) -> dict[str, Any]:
        """Run an admin command and return its answer, decoded from JSON."""
        return json.loads(self.admin(f"ENCODING JSON_COMPACT {command}"))  # type: ignore[no-any-return]

    def stored(self, uri: str = "bmq://d/q") -> int:
        """Return the number of messages in the storage of a queue."""
        domain = re.fullmatch(r"bmq://([^/]+)/.*", uri)
        assert domain
        self.wait_idle()
        infos = self.admin_json(f"DOMAINS DOMAIN {domain[1]} INFOS")["domainInfo"]
        return sum(s["numMessages"] for s in infos["storageContent"]["storages"] if s["queueUri"] == uri)

    def statistics(self, uri: str = "bmq://d/q") -> dict[str, Any]:
        """Return the statistics of a queue from STAT SHOW: {"values": {...}, "appIds": {app: {"values": {...}}}}."""
        domain = uri.removeprefix("bmq://").partition("/")[0]
        stats = json.loads(self.admin_json("STAT SHOW")["stats"])
        return stats["domainQueues"]["domains"][domain][uri]  # type: ignore[no-any-return]

    def alarms(self, category: str) -> list[str]:
        """Return the log records that raised an alarm (or panic) of this category."""
        self.wait_idle()
        return [record for record in self.log() if re.search(rf"(ALARM|PANIC) \[{category}\]", record)
                and not record.startswith(("ALARM: ", "PANIC: "))]  # the copy on the alarm channel

    def logged(self, *texts: str) -> list[str]:
        """Return the log records that contain all texts."""
        return [record for record in self.log() if all(text in record for text in texts)]


