"""The answers of proxies' consoles about the clients behind them: believed no further than they are sound. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bmqtwist.console.documents import Document
from bmqtwist.peers.welcome import is_console_url
from bmqtwist.view.proxy_facts import PROXIES_MAX

LEVELS_MAX = 4  # of proxies behind proxies whose consoles are asked
ROWS_MAX = 2000  # of each kind, that are taken from the answer of one proxy
NO_CONSOLE = "it has no console"
NAMED_AS_A_NODE = "it has the name of a node"


def proxies_told(document: Mapping[str, Any]) -> list[Document]:
    """The proxies that an answer names."""
    return [{"ident": each["ident"], "name": each["name"], "url": each["url"] if is_console_url(each["url"]) else ""}
            for each in _rows(document, "proxies", ("ident", "name", "url"))][:PROXIES_MAX]


def clients_told(answer: Mapping[str, Any], proxy: Document) -> list[Document]:
    """The clients of a proxy."""
    return [{**row, "id": f"{proxy['ident']} {row['id']}", "node": proxy["name"], "proxy": True}
            for row in _rows(answer, "clients", ("id", "client"))]


def queue_told(answer: Mapping[str, Any], proxy: Document) -> Document:
    """What a proxy knows of a queue, as `queue_facts.queue_part` has it."""
    rates = answer.get("rates")
    return {"node": proxy["name"], "ident": proxy["ident"], "proxy": True, "leads": False, "apps": [],
            "rates": rates if isinstance(rates, dict) else {}, "proxies": proxies_told(answer),
            **{kind: [{**row, "node": proxy["name"], "proxy": True, "broker": bool(row.get("broker")),
                       "subscriptions": _rows(row, "subscriptions", ("expression",))}
                      for row in _rows(answer, kind, ("client", "ident")) if _is_whole(row.get("unconfirmed", 0))]
               for kind in ("consumers", "producers")}}


def _rows(answer: Mapping[str, Any], name: str, texts: Iterable[str]) -> list[Document]:
    rows = answer.get(name)
    return [row for row in rows[:ROWS_MAX] if isinstance(row, dict) and all(
        isinstance(row.get(each), str) for each in texts)] if isinstance(rows, list) else []


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
