"""The domains as a node knows them: those in use with what is stored in them, those that have a file, and what the file says
beside what is in force. Everything is read, nothing is changed. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.config.text import plain
from bmqtwist.errors import LocalError, Refused

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.root import Domain

Document = dict[str, Any]
SUMS = ("queues", "messages", "bytes")
_UNKNOWN: Document = {"cluster": "", "mode": "", "storage": "", "copies": "", "messagesMax": None, "bytesMax": None,
                      "ttlSeconds": None}


def domain_rows(broker: Broker) -> list[Document]:
    """A row for each domain that is in use here, or has a file."""
    rows = {name: _row(domain) for name, domain in broker.domains.by_name.items()}
    for name in broker.domains.provider.names():
        rows.setdefault(name, {"name": name, "inUse": False, **_UNKNOWN, **dict.fromkeys(SUMS, 0)})
    return [rows[name] for name in sorted(rows)]


def _row(domain: Domain) -> Document:
    settings, meter = domain.settings, domain.meter
    return {"name": domain.name, "inUse": True, "cluster": domain.cluster, "mode": str(domain.mode),
            "storage": "memory" if domain.in_memory else "files", "copies": settings.copies.name.lower(),
            "queues": len(domain.queues), "messages": meter.messages, "bytes": meter.bytes,
            "messagesMax": meter.messages_max, "bytesMax": meter.bytes_max, "ttlSeconds": settings.ttl_s}


def domain_document(broker: Broker, node: str, name: str) -> Document | None:
    """`config`: what is in force here, None = the domain is not in use; `file`: what a reconfigure would put into force,
    None = `problem` says why it would not. None: there is no such domain."""
    domain = broker.domains.by_name.get(name)
    loaded = broker.domains.loaded.get(domain.source if domain is not None else name)
    file: Any = None
    problem = ""
    try:
        file = plain(broker.domains.provider.of_file(loaded.name if loaded is not None else name, broker.domains.loaded,
                                                    broker.loop.now))
    except (LocalError, Refused) as error:
        problem = error.message if isinstance(error, Refused) else str(error)
    if loaded is None and file is None and name not in broker.domains.provider.names():
        return None
    return {"name": name, "node": node, "config": plain(loaded.config) if loaded is not None else None, "file": file,
            "problem": problem[:2000]}
