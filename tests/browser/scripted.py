"""Scripted cluster: documents of the console for each scene, as functions of the time.

`fake_console.py` serves the documents; clients and proxies in them are in `scripted_clients.py`, the real documents in
`bmqtwist/console/collector.py`.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from bmqtwist.view.stopping import STAGES
from browser.scripted_clients import NO_CONSOLE, clients, proxies

Document = dict[str, Any]

HOSTILE = '<img src=x onerror="document.title=\'owned\'"></script><script>document.title="owned"</script>'
HOSTILE_URI = f"bmq://bmq.test/{HOSTILE}"
QUEUES = 40
MANY_QUEUES = 50_000
SCENES = ("good", "warning", "bad", "empty", "many", "hostile", "lost")
LOST_SECONDS = 60.0  # since the last answer of n2 in the scene `lost`; n3 has never answered
BEGAN = 1_790_000_000.0  # beginning of the history, seconds since the epoch
SORTS = (
    "uri", "messages", "bytes", "oldestSeconds", "putRate", "pushRate", "confirmRate", "consumers", "producers",
    "quota"
)


class Script:
    """Documents of one scene. `urls`: consoles of the nodes by name; `began`: start of the nodes in seconds since the
    epoch."""

    def __init__(self, scene: str, serving: str, urls: dict[str, str], began: float) -> None:
        assert scene in SCENES
        self.scene, self.serving, self.urls, self.began = scene, serving, urls, began
        self.stops: dict[str, tuple[float, Document]] = {}
        self.acknowledged: dict[str, str] = {}
        self.cleared: dict[str, float] = {}
        self.audit: list[Document] = []
        self.moved: dict[int, str] = {}
        self.demo_by = ""
        self.raised: list[Document] = []
        self.reconfigured: set[str] = set()
        self.purged = False
        self.truncated = False  # payloads of messages
        self._sorted: dict[tuple[str, str, str], list[Document]] = {}
        self._queues = [self._queue(n) for n in range(self._queue_count())]

    def _queue_count(self) -> int:
        return {"empty": 0, "many": MANY_QUEUES, "hostile": 3}.get(self.scene, QUEUES)

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [*self.urls, *(["<b>n4</b>"] if self.scene == "hostile" else [])]

    @property
    def proxy_names(self) -> list[str]:
        """Names of the proxies."""
        return [HOSTILE, HOSTILE] if self.scene == "hostile" else ["p1", "edge"]

    # --- the cluster ---

    def cluster(self, at: float) -> Document:
        """Return the cluster document."""
        level, text, reasons = {
            "warning": (
                "warning",
                "The cluster works, but n3 heals and one queue is nearly full.",
                ["partition 2 has only two copies in sync", "bmq://bmq.test/queue-1 uses 91 % of its quota"],
            ),
            "bad": (
                "bad",
                "Partition 1 has no primary: its queues take no messages.",
                ["n3 cannot be reached since 40 s", "no quorum for partition 1"],
            ),
            "hostile": ("warning", f"The name of a queue is {HOSTILE}", [HOSTILE]),
            "lost": ("bad", "Only 1 of 3 nodes is up, 2 are required.", []),
            "empty": ("good", "All is well: 3 nodes are up, and there is no queue yet.", []),
        }.get(
            self.scene, ("good", "All is well: 3 of 3 nodes are up, every partition has a primary and all its replicas.", [])
        )
        rate = 0.0 if self.scene in ("empty", "bad") else 1000 + 50 * math.sin(at / 7)
        return {
            "at": at,
            "servedBy": self.serving,
            "name": HOSTILE if self.scene == "hostile" else "c",
            "version": "1.0",
            "verdict": {"level": level, "text": text, "reasons": reasons},
            "leader": {"node": "n1", "term": 7, "since": self.began + 30, "state": "active"},
            "rates": {
                "put": rate,
                "ack": rate,
                "push": 2 * rate,
                "confirm": 2 * rate - 3,
                "putBytes": rate * 900,
                "pushBytes": rate * 1800,
            },
            "ackLatencyMs": {"p50": 1.25, "p99": 18.4} if rate else {"p50": None, "p99": None},
            "rateSeconds": 5.0,
            "stored": {"messages": 5000, "bytes": 4_500_000, "sampledAt": at},
            "history": [] if self.scene == "empty" else self._history(at, rate),
            "nodes": [self._node(n, name, at) for n, name in enumerate(self.names)],
            "partitions": [] if self.scene == "empty" else [self._partition(n, at) for n in range(4)],
            "proxies": [] if self.scene == "empty" else proxies(at, self.began, self.proxy_names, self.urls),
            "queuesTop": self.queues(at, limit=10)["rows"],
            "alarms": self.alarms(at),
            "demo": {
                "running": bool(self.demo_by),
                "by": self.demo_by,
                "since": self.began,
                "problem": "",
                "queues": ["bmq://bmq.test/demo-orders"] if self.demo_by else [],
                "posted": 120,
                "confirmed": 100,
                "refused": 0,
            },
            "events": self.events(at),
        }

    def _history(self, at: float, rate: float) -> list[list[float | None]]:
        step = 5 * int(at // 5)
        rows: list[list[float | None]] = [
            [
                wall,
                rate * (1 + 0.1 * math.sin(wall / 40)),
                rate,
                2 * rate,
                2 * rate - 3,
                5000 + 900 * math.sin(wall / 90),
                4_500_000,
                800_000_000,
            ]
            for wall in range(step - 895, step + 1, 5)
        ]
        if self.scene == "lost":  # no rates for 100 s, and a minute without any row
            for row in rows[40:60]:
                row[1:5] = [None] * 4
            del rows[100:112]
        return rows

    def _node(self, n: int, name: str, at: float) -> Document:
        state = {("warning", 2): "starting", ("bad", 2): "unreachable", ("lost", 1): "down", ("lost", 2): "down"}.get(
            (self.scene, n), "up")
        lost = self.scene == "lost" and n > 0
        stop = self.stop(name, at)
        if stop and not stop.get("abortable"):
            state = "down" if stop["done"] else "stopping"
        return {
            "name": name,
            "id": n,
            "dataCenter": "west" if n < 2 else "east",
            "state": state,
            "answers": not lost,
            "lastAnswerAt": None if lost and n == 2 else at - (LOST_SECONDS if lost else 0.0),
            "storage": None if lost else {"location": "/var/storage", "freeBytes": 800_000_000, "totalBytes": 2_000_000_000,
                                          "usedBytes": 371_000_000, "allocatedBytes": 402_000_000},
            "leader": name == "n1",
            "primaryFor": [p for p in range(4) if self._primary(p) == name],
            "version": "1.0",
            "startedAt": None if lost else self.began,
            "url": self.urls.get(name, ""),
            "sessions": None if lost else 4 + n,
            "memoryBytes": None if lost else 180_000_000 + n * 7_000_000,
            "cpuShare": None if lost else 0.12 + n / 20,
            "loopLagMs": None if lost else 0.8 + n,
            "openFiles": None if lost else 60 + n,
            "openFilesMax": None if lost else 1024,
            "sampledAt": at,
            "stop": stop,
        }

    def _primary(self, partition: int) -> str | None:
        if self.scene == "bad" and partition == 1:
            return None
        wanted = self.moved.get(partition) or list(self.urls)[partition % len(self.urls)]
        return wanted if wanted not in self.stops else next((name for name in self.urls if name not in self.stops), None)

    def _partition(self, number: int, at: float) -> Document:
        primary = self._primary(number)
        sequence = 100_000 + int((at - BEGAN) * 10)
        replicas = []
        for n, name in enumerate(self.urls):
            role = (
                "primary"
                if name == primary
                else "down"
                if (self.scene, n) == ("bad", 2) or name in self.stops
                else "healing"
                if (self.scene, n, number) == ("warning", 2, 3)
                else "replica"
            )
            lag = {"replica": {1: 12, 2: 3}.get(n, 0) if self.scene == "warning" else 0, "healing": 48_210,
                   "down": 90_000}.get(role, 0)
            replicas.append(
                {"node": name, "role": role, "sequence": sequence - lag, "lagRecords": lag, "lagBytes": lag * 960,
                 "lagMs": lag * 150}
            )
        return {
            "id": number,
            "primary": primary,
            "lease": 3,
            "sequence": sequence,
            "state": "active" if primary else "down",
            "replicas": replicas,
            "queues": self._queue_count() // 4,
            "messages": 1250,
            "bytes": 1_125_000,
            "source": "n1" if self.scene == "lost" else primary,
            "sampledAt": at,
            "journal": {"used": 61_000_000 + number * 9_000_000, "total": 100_000_000},
            "data": {"used": 310_000_000, "total": 1_000_000_000},
        }

    def alarms(self, at: float) -> list[Document]:
        """Return all rows."""
        if self.scene in ("good", "empty", "many", "lost"):
            return []
        text = HOSTILE if self.scene == "hostile" else "bmq://bmq.test/queue-1 uses 91 % of its quota of messages"
        found = [
            {
                "id": "n1:1",
                "kind": "capacity-state-high-watermark",
                "category": "CAPACITY_STATE_HIGH_WATERMARK",
                "text": text,
                "node": "n1",
                "raisedAt": at - 125,
                "count": 3,
                "acknowledgedBy": self.acknowledged.get("n1:1"),
                "clearedAt": self.cleared.get("n1:1"),
            },
            {
                "id": "n2:4",
                "kind": "partition-log-failed",
                "category": "REPLICATION",
                "text": "partition 2 was behind",
                "node": "n2",
                "raisedAt": at - 4000,
                "count": 1,
                "acknowledgedBy": "ada",
                "clearedAt": at - 3500,
            },
        ]
        if self.scene == "bad":
            found.append(
                {
                    "id": "n1:2",
                    "kind": "primary-not-active",
                    "category": "CLUSTER",
                    "text": "partition 1 has no primary since 40 s",
                    "node": "n1",
                    "raisedAt": at - 40,
                    "count": 1,
                    "acknowledgedBy": None,
                    "clearedAt": None,
                }
            )
        return found + self.raised

    def events(self, at: float) -> list[Document]:
        """Return the recent events."""
        if self.scene == "empty":
            return []
        base = self.began
        entries = [
            ("election", "n1 leads in term 7: n3 missed 5 heartbeats", "n1"),
            ("primary", "n2 became primary of partition 1", "n1"),
            ("session", "client ada@host-7 connected", "n2"),
            ("queue", "bmq://bmq.test/queue-1 was created", "n1"),
            ("node", HOSTILE if self.scene == "hostile" else "n3 is up", "n3"),
        ]
        events: list[Document] = [
            {"n": n + 1, "at": base + 10 * n, "node": node, "kind": kind, "text": text, "detail": {}}
            for n, (kind, text, node) in enumerate(entries)
        ]
        for name, (since, given) in self.stops.items():
            events.append(
                {
                    "n": 100,
                    "at": since,
                    "node": name,
                    "kind": "stop",
                    "text": f"{name} stops: {given['reason']}",
                    "detail": {},
                }
            )
        return events

    # --- a stop ---

    def begin_stop(self, name: str, at: float, given: Document) -> None:
        """Start the graceful stop of a node at the time `at`."""
        self.stops[name] = (at, given)

    def stop(self, name: str, at: float) -> Document | None:
        """Return the progress of a node's stop; None = the node is not stopping."""
        if name not in self.stops:
            return None
        since, given = self.stops[name]
        if at < since:
            return {
                "stage": STAGES[0],
                "stages": STAGES,
                "seconds": 0.0,
                "clients": None,
                "partitions": [],
                "unconfirmed": None,
                "unanswered": None,
                "secondsLeft": since - at,
                "peers": [],
                "reason": given["reason"],
                "by": given.get("by", ""),
                "done": False,
                "abortable": True,
            }
        seconds = max(0.0, at - since)
        done = seconds >= 3.5
        left = 0 if done else max(0, round(700 - 200 * seconds))
        stop = {
            "stage": STAGES[-1 if done else 1 + min(3, int(seconds * 2))],
            "stages": STAGES,
            "seconds": seconds,
            "clients": 0 if done else 5,
            "partitions": [],
            "unconfirmed": left,
            "unanswered": left // 7,
            "secondsLeft": max(0.0, 20 - seconds),
            "peers": [
                {"name": each, "unconfirmed": left // 2, "unanswered": left // 14} for each in self.urls if each != name
            ],
            "reason": given["reason"],
            "by": given.get("by", ""),
            "done": done,
        }
        if done:
            stop["report"] = {
                "seconds": 3.5,
                "moved": [{"cluster": "c", "partition": 0, "to": "n2"}],
                "unconfirmed": 0,
                "unanswered": 0,
                "clients": 1,
                "reason": given["reason"],
                "by": given.get("by", ""),
            }
        return stop

    def preflight(self, name: str) -> Document:
        """Return the effects of a node's stop."""
        return {
            "node": name,
            "quorumSurvives": self.scene != "bad",
            "moves": [{"partition": 0, "to": "n2", "quorumSurvives": True}],
            "sessions": 4,
            "unconfirmed": 700,
            "warnings": ["n3 heals: it cannot take over"] if self.scene == "warning" else [],
        }

    # --- queues ---

    def _queue(self, n: int) -> Document:
        uri = f"bmq://bmq.test/queue-{n}" if self.scene != "hostile" or n else HOSTILE_URI
        messages = 91_000 if n == 1 else (n * 7919) % 10_007
        return {
            "uri": uri,
            "domain": "bmq.test",
            "mode": "fanout" if n % 3 == 0 else "priority",
            "partition": n % 4,
            "messages": messages,
            "bytes": messages * 900,
            "messagesMax": 100_000,
            "bytesMax": 100_000_000,
            "oldestSeconds": messages // 9,
            "putRate": n % 50,
            "pushRate": n % 40,
            "confirmRate": n % 40,
            "consumers": n % 5,
            "producers": 1 + n % 2,
            "quota": messages / 100_000,
            "spark": [max(0, messages - (k * 37) % 400) for k in range(30)],
        }

    def queues(
        self, at: float, filter: str = "", sort: str = "messages", order: str = "desc", offset: int = 0, limit: int = 100
    ) -> Document:
        """Return a page of the list of queues."""
        if (filter, sort, order) not in self._sorted:
            found = [queue for queue in self._queues if filter.lower() in queue["uri"].lower()]
            found.sort(key=lambda queue: queue["uri"])
            found.sort(key=lambda queue: queue[sort if sort in SORTS else "messages"], reverse=order == "desc")
            self._sorted[filter, sort, order] = found
        found = self._sorted[filter, sort, order]
        rows = found[offset : offset + limit]
        if self.scene == "lost":
            unknown = dict.fromkeys(("putRate", "pushRate", "confirmRate", "consumers", "producers", "quota"))
            rows = [{**row, **unknown, "copyAt": "n1"} for row in rows]
        return {"at": at, "total": len(found), "offset": offset, "rows": rows, "missing": {}, "unknown": []}

    def queue(self, at: float, uri: str) -> Document | None:
        """Return the document of a queue; None = unknown."""
        found = next((queue for queue in self._queues if queue["uri"] == uri), None)
        if found is None:
            return None
        name = HOSTILE if self.scene == "hostile" else "ada@host-7:3411"
        step = 5 * int(at // 5)
        return {
            **found,
            "at": at,
            "apps": [
                {
                    "app": HOSTILE if self.scene == "hostile" else app,
                    "messages": found["messages"] // (k + 1),
                    "bytes": 9000,
                    "unconfirmed": 12 * k,
                    "consumers": 1,
                    "redelivery": 2,
                    "aside": 0,
                    "registered": True,
                }
                for k, app in enumerate(("billing", "audit"))
            ],
            "consumers": [
                {
                    "client": name,
                    "node": "n1",
                    "app": "billing",
                    "unconfirmed": 1000,
                    "unconfirmedMax": 1000,
                    "priority": 1,
                    "stuck": True,
                    "subscriptions": [{"expression": 'price > 100 && firm == "ABC"', "unconfirmed": 1000, "full": True,
                                       "given": 91_250, "givenRate": 96}],
                },
                {
                    "client": "eve@host-9:12",
                    "node": "p1",
                    "proxy": True,
                    "app": "audit",
                    "unconfirmed": 3,
                    "unconfirmedMax": 1000,
                    "priority": 0,
                    "stuck": False,
                    "subscriptions": [],
                },
            ],
            "producers": [{"client": name, "node": "n2"}],
            "missing": {self.proxy_names[1]: NO_CONSOLE},
            "history": [[wall, 5000 + 900 * math.sin(wall / 90), 4_500_000] for wall in range(step - 895, step + 1, 5)],
            "events": [
                {"n": 9, "at": step - 300, "node": "n1", "kind": "queue", "text": "a consumer connected", "detail": {}}
            ],
            "tree": {
                "name": "n1",
                "kind": "primary",
                "state": "up",
                "pushRate": 96,
                "bytesRate": 86_000,
                "unconfirmed": 1003,
                "children": [
                    {
                        "name": "n2",
                        "kind": "replica",
                        "state": "up",
                        "pushRate": 48,
                        "bytesRate": 43_000,
                        "unconfirmed": 3,
                        "children": [
                            {
                                "name": "p1",
                                "kind": "proxy",
                                "state": "connected",
                                "pushRate": 48,
                                "bytesRate": 43_000,
                                "unconfirmed": 3,
                                "children": [
                                    {
                                        "name": name,
                                        "kind": "client",
                                        "state": "connected",
                                        "pushRate": 48,
                                        "bytesRate": 43_000,
                                        "unconfirmed": 3,
                                    }
                                ],
                            }
                        ],
                    },
                    {
                        "name": name,
                        "kind": "client",
                        "state": "connected",
                        "pushRate": 48,
                        "bytesRate": 43_000,
                        "unconfirmed": 1000,
                    },
                ],
            },
        }

    def elections(self, at: float) -> Document:
        """Return the terms with their causes, and election events."""
        if self.scene == "empty":
            return {"at": at, "terms": [], "events": []}
        began = self.began
        return {
            "at": at,
            "terms": [
                {"term": 5, "leader": "n3", "from": began - 4000, "to": began - 100, "reason": "the cluster started"},
                {"term": 6, "leader": None, "from": began - 100, "to": began + 30, "reason": "n3 missed 5 heartbeats"},
                {"term": 7, "leader": "n1", "from": began + 30, "to": None, "reason": "n1 got 2 of 3 votes"},
            ],
            "events": [event for event in self.events(at) if event["kind"] in ("election", "primary", "node")],
        }

    # --- messages, clients, log ---

    def messages(self, at: float, uri: str, after: str = "", guid: str = "", limit: int = 50) -> Document:
        """Return a page of the stored messages."""
        total = 0 if self.purged else 120
        first = int(after, 16) if after else 0
        numbers = [int(guid, 16)] if guid else range(first + 1, min(first + limit, total) + 1)
        rows = [self._message(n, at) for n in numbers if n <= total]
        more = not guid and first + limit < total
        return {"messages": rows, "next": f"{first + limit:032X}" if more else None, "total": total, "role": "primary"}

    def _message(self, n: int, at: float) -> Document:
        hostile = self.scene == "hostile"
        return {
            "guid": f"{n:032X}",
            "bytes": 40 + n,
            "storedAt": at - 600 + n,
            "compression": "NONE",
            "properties": {
                HOSTILE if hostile else "price": {"type": "int32", "value": 100 + n},
                "firm": {"type": "string", "value": HOSTILE if hostile else "ABC"},
            },
            "apps": [
                {"appId": "billing", "state": "delivered", "to": ["ada@host-7"], "sinceSeconds": 4, "attemptsLeft": 3},
                {"appId": "audit", "state": "pending", "to": [], "sinceSeconds": None, "attemptsLeft": None},
            ],
        }

    def message(self, at: float, guid: str) -> Document:
        """Return a message with its payload."""
        payload = (HOSTILE if self.scene == "hostile" else json.dumps({"order": int(guid, 16), "price": 101.5})).encode()
        return {
            **self._message(int(guid, 16), at),
            "payload": base64.b64encode(payload).decode(),
            "payloadBytes": len(payload),
            "truncated": self.truncated,
        }

    def clients(self) -> list[Document]:
        """Return the connected clients."""
        return [] if self.scene == "empty" else clients(self.began, HOSTILE if self.scene == "hostile" else "orders")

    def config(self, node: str) -> Document:
        """Return the configuration of a node; n3 has a lower memory limit."""
        return {
            "brokerConfig": {
                "hostName": node,
                "threads": 2,
                "limits": {"memoryBytes": 1 << (29 if node == "n3" else 30)},
                "listeners": [{"name": "clients", "port": 30114}],
            }
        }

    def log(self, at: float, level: str, lines: int) -> list[Document]:
        """Return the last lines of a log."""
        levels = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"]
        entries = [
            ("INFO", "BMQbrkr started successfully"),
            ("WARN", "Cluster (c): n3 missed 3 heartbeats"),
            ("ERROR", HOSTILE if self.scene == "hostile" else "partition 2: the journal of n3 ends early"),
            ("DEBUG", "one turn took 12 ms"),
        ]
        rows = [
            {"n": n, "at": self.began + n, "level": each, "category": "bmqtwist", "text": text}
            for n, (each, text) in enumerate(entries)
        ]
        return [row for row in rows if levels.index(str(row["level"])) >= levels.index(level)][-lines:]

    # --- domains and storage ---

    def domains(self) -> list[Document]:
        """Return all rows."""
        if self.scene == "empty":
            return []
        name = HOSTILE if self.scene == "hostile" else "bmq.test"
        used = {
            "inUse": True,
            "cluster": "c",
            "mode": "priority",
            "storage": "files",
            "copies": "majority",
            "queues": 40,
            "messages": 5_000,
            "bytes": 4_500_000,
            "messagesMax": 10_000,
            "bytesMax": 100_000_000,
            "ttlSeconds": 3600,
            "nodes": list(self.urls),
        }
        return [{"name": name, **used}, {"name": "unused", **dict.fromkeys(used), "inUse": False, "queues": 0}]

    def domain(self, name: str, node: str) -> Document:
        """Return a domain at a node; the file of n2 has been edited, in the scene `warning` that of each node; in the scene
        `bad` all files are invalid."""
        config = {"name": name, "messageTtl": 3600, "mode": {"priority": {}}}
        edited = (node == "n2" or self.scene == "warning") and name not in self.reconfigured
        if self.scene == "bad":
            return {"name": name, "node": node, "config": config, "file": None, "problem": "line 3: expected a number"}
        return {
            "name": name,
            "node": node,
            "config": config,
            "file": {**config, "messageTtl": 60} if edited else config,
            "problem": "",
        }

    def reconfigure(self, name: str) -> Document:
        """Reload the files at all nodes; n3 fails."""
        self.reconfigured.add(name)
        return {
            "ok": False,
            "nodes": [
                {"node": node, "ok": node != "n3", "error": "" if node != "n3" else "the file cannot be read"}
                for node in self.urls
            ],
        }

    def storage(self, node: str) -> Document:
        """Return the storage files of a node."""
        sizes = {"journal": (61_000_000, 100_000_000), "data": (310_000_000, 1_000_000_000), "qlist": (4_000, 1_000_000)}
        return {
            "node": node,
            "partitions": [
                {
                    "partition": number,
                    "lease": 3,
                    "sequence": 100_000,
                    "rollingOver": False,
                    "damaged": 0,
                    "repaired": 0,
                    "discarded": 0,
                    "archivedFiles": 3,
                    "archived": [],
                    "files": [
                        {"kind": kind, "used": used, "outstanding": used // 2, "length": most, "max": most,
                         "allocated": used + 4096}
                        for kind, (used, most) in sizes.items()
                    ],
                }
                for number in range(0 if self.scene == "empty" else 4)
            ],
        }

    def records(self, at: float) -> Document:
        """Return the number of records by kind."""
        kinds = {} if self.scene == "empty" else {"MESSAGE": 5000, "CONFIRM": 4800, "DELETION": 4800, "JOURNAL_OP": 90}
        return {
            "partition": 0,
            "bytes": sum(kinds.values()) * 60,
            "kinds": [
                {"kind": kind, "records": count, "bytes": count * 60, "oldest": self.began, "newest": at}
                for kind, count in kinds.items()
            ],
        }

    def journal(self, at: float, before: int, kind: str) -> Document:
        """Return records, newest first."""
        last = 0 if self.scene == "empty" else (before or 44 + 120 * 60 + 60) // 60 - 1
        queue = HOSTILE_URI if self.scene == "hostile" else "bmq://bmq.test/queue-1"
        rows = [
            {
                "offset": 44 + 60 * number,
                "kind": kind or ("MESSAGE", "CONFIRM", "DELETION")[number % 3],
                "lease": 3,
                "sequence": number,
                "at": at - 120 + number,
                "queue": queue,
                "fields": [["GUID", f"{number:032X}"], ["RefCount", "1"]],
            }
            for number in range(last, max(0, last - 50), -1)
        ]
        return {
            "partition": 0,
            "records": rows,
            "next": rows[-1]["offset"] if rows and rows[-1]["sequence"] > 1 else None,
            "searched": len(rows),
        }

    def compare(self) -> Document:
        """Return the comparison of copies."""
        bad = self.scene == "bad"
        return {
            "partition": 0,
            "missing": {"n3": "no answer in time"} if bad else {},
            "first": [3, 1],
            "last": [3, 9000],
            "comparedRecords": 9000,
            "differing": [{"lease": 3, "from": 4000, "to": 4999}] if bad else [],
            "nodes": [{"node": node, "first": [3, 1], "last": [3, 9000]} for node in self.urls],
        }

def wire(document: Document) -> Document:
    """Return a document in the form that the WebSocket sends: lists of rows as objects by key."""
    result = dict(document)
    for name, key in (("nodes", "name"), ("partitions", "id"), ("proxies", "ident")):
        if name in result:
            result[name] = {str(row[key]): row for row in result[name]}
    if "queuesTop" in result:
        result["queuesTop"] = keyed(result["queuesTop"])
    if "rows" in result:
        result |= keyed(result["rows"])
    return result


def keyed(rows: list[Document]) -> Document:
    """Return rows by URI, and the order of the URIs."""
    return {"rows": {row["uri"]: row for row in rows}, "order": [row["uri"] for row in rows]}


def patch(old: Any, new: Any) -> Any:
    """Return the merge patch (RFC 7386) from `old` to `new`."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {name: patch(old.get(name), value) for name, value in new.items() if name not in old or old[name] != value}
    return changed | {name: None for name in old if name not in new}
