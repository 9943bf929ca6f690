"""What a scenario sees: one broker with its configuration, clients, log and clock - in memory or as a process.

A scenario is a function of a `world`; by default it runs in memory under a virtual clock, with `@pytest.mark.real`
also against a process. Only what both worlds have is defined here; `advance` needs the virtual clock.
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
    """A broker and those who talk to it."""

    config: ConfigDirectory
    root: Path

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self._admin: Client | None = None
        self._names = 0

    # What a kind of world must do

    @abstractmethod
    def start(self) -> None:
        """Start the broker; returns when it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker gracefully; returns when it is gone."""

    @abstractmethod
    def crash(self) -> None:
        """Kill the broker; nothing it has not written survives."""

    @abstractmethod
    def link(self, listener: int = 0) -> ClientLink:
        """A new connection to the broker."""

    @abstractmethod
    def log(self) -> list[str]:
        """The broker's log so far, one record an item, of all its lives."""

    @abstractmethod
    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Wait for a record that holds all the texts, from record number `since` on; the record."""

    @abstractmethod
    def gone(self, client: Client) -> None:
        """Return when the broker has taken note that this client's connection is cut."""

    def advance(self, seconds: float) -> None:
        """Let time pass (virtual clock only)."""
        raise AssertionError("a real broker's clock cannot be moved")

    def storage_stalled(self) -> AbstractContextManager[None]:
        """While inside, nothing becomes safe on disk (virtual disk only)."""
        raise AssertionError("a real disk cannot be stalled")

    # Life

    def restart(self) -> None:
        """Stop gracefully and start again; all clients are gone."""
        self._forget_clients()
        self.stop()
        self.start()

    def crash_and_start(self) -> None:
        """Kill and start again; all clients are gone."""
        self._forget_clients()
        self.crash()
        self.start()

    def _forget_clients(self) -> None:
        for client in self.clients:
            client.link.closed = True
        self.clients, self._admin = [], None

    # Configuration

    def domain(self, name: str = "d", *args: Any, **parameters: Any) -> str:
        """Write a domain's file (see config.domain_config); its name."""
        self.config.domain(name, *args, **parameters)
        return name

    def reconfigure(self, name: str = "d", *args: Any, **parameters: Any) -> str:
        """Write a domain's file and have it read again; the answer."""
        self.domain(name, *args, **parameters)
        return self.admin(f"DOMAINS RECONFIGURE {name}")

    # Clients

    def connect(self, name: str = "", *, listener: int = 0, **identity: Any) -> Client:
        """A connection that has said nothing yet."""
        self._names += 1
        client = Client(self.link(listener), name or f"client{self._names}", on_drop=self._dropped, **identity)
        self.clients.append(client)
        return client

    def client(self, name: str = "", *, listener: int = 0, **identity: Any) -> Client:
        """A negotiated session."""
        client = self.connect(name, listener=listener, **identity)
        response = client.negotiate()
        assert response["result"]["category"] == "E_SUCCESS", response
        return client

    def producer(self, uri: str = "bmq://d/q", name: str = "", **identity: Any) -> Queue:
        """A queue opened for writing by a client of its own."""
        return self.client(name, **identity).open(uri, write=1)

    def consumer(self, uri: str = "bmq://d/q", app: str | None = None, *, name: str = "", **options: Any) -> Queue:
        """A queue opened for reading and configured, by a client of its own; options as of Queue.configure."""
        return self.client(name).consume(uri, app, **options)

    def _dropped(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
        self.gone(client)

    def settle(self) -> None:
        """Return when the broker has done all that was asked of it so far and every client has heard of it."""
        for _ in range(2):
            for client in list(self.clients):
                if client.broker_response and client.identity["clientType"] == "E_TCPCLIENT":
                    client.barrier()

    def got(self, queue: Queue) -> list[bytes]:
        """The payloads that reached this consumer since the last look; what it has not got now it will not get
        without something else happening."""
        return [push.payload for push in self.pushes(queue)]

    def pushes(self, queue: Queue) -> list[Push]:
        """The messages that reached this consumer since the last look."""
        self.settle()
        return queue.pushes()

    # Administration

    def admin(self, command: str) -> str:
        """Run an admin command on a session kept for it."""
        if self._admin is None or self._admin.link.closed:
            self._admin = self.client("admin", client_type="E_TCPADMIN")
        return self._admin.admin(command)

    def admin_json(self, command: str) -> dict[str, Any]:
        """Run an admin command with the answer in JSON."""
        return json.loads(self.admin(f"ENCODING JSON_COMPACT {command}"))  # type: ignore[no-any-return]

    def stored(self, uri: str = "bmq://d/q") -> int:
        """How many messages the queue's storage holds."""
        domain = re.fullmatch(r"bmq://([^/]+)/.*", uri)
        assert domain
        self.settle()
        infos = self.admin_json(f"DOMAINS DOMAIN {domain[1]} INFOS")["domainInfo"]
        return sum(s["numMessages"] for s in infos["storageContent"]["storages"] if s["queueUri"] == uri)

    def statistics(self, uri: str = "bmq://d/q") -> dict[str, Any]:
        """{"values": {...}, "appIds": {app: {"values": {...}}}} of a queue, as STAT SHOW says it."""
        domain = uri.removeprefix("bmq://").partition("/")[0]
        stats = json.loads(self.admin_json("STAT SHOW")["stats"])
        return stats["domainQueues"]["domains"][domain][uri]  # type: ignore[no-any-return]

    def alarms(self, category: str) -> list[str]:
        """The log records that raised an alarm (or panic) of this category."""
        self.settle()
        return [record for record in self.log() if re.search(rf"(ALARM|PANIC) \[{category}\]", record)
                and not record.startswith(("ALARM: ", "PANIC: "))]  # the copy on the alarm channel

    def logged(self, *texts: str) -> list[str]:
        """The log records that hold all the texts."""
        return [record for record in self.log() if all(text in record for text in texts)]


