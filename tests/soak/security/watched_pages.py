"""Watched pages: one viewer opens as many WebSockets as the console accepts, and watches a different queue page with each.

A second viewer must still be able to watch a page, and receive its document.
"""

from __future__ import annotations

from typing import Any

from kit.console_client import Tab

from bmqtwist.console.hub import SUBSCRIBERS_MAX, SUBSCRIPTIONS_MAX, TOPICS_MAX
from soak.security.target import Target, rounds

MESSAGES_MAX = 20


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Open WebSockets and watch; return the number of open ones, of watched pages, and of refusals."""
    greedy, tabs, refused, watched = target.tab("vera"), list[Tab](), 0, 0
    for _ in range(SUBSCRIBERS_MAX):
        tab = target.tab()
        tab.cookie = greedy.cookie
        if _opens(tab):
            tabs.append(tab)
        else:
            refused += 1
    for number, tab in enumerate(tabs):
        for ident in range(2, SUBSCRIPTIONS_MAX + 1):
            tab.subscribe(id=ident, subscribe="queues", filter=f"{number} {ident}")
        watched += _snapshots(tab, SUBSCRIPTIONS_MAX)
    second, served = target.tab("olaf"), 0
    for number in rounds(seconds, 1.0) if _opens(second) else ():
        second.subscribe(id=2, subscribe="queues", filter=f"second {number}")
        served += _snapshots(second, 1, 2)
    found = [] if served else ["the second viewer is not served"]
    if len(tabs) > SUBSCRIBERS_MAX // 2 or watched > TOPICS_MAX // 2 + len(tabs):
        found.append(f"one viewer has {len(tabs)} WebSockets and watches {watched} pages")
    for tab in (*tabs, second):
        tab.close()
    return {"WebSockets": [len(tabs), SUBSCRIBERS_MAX // 2], "refused": refused,
            "watched": [watched, TOPICS_MAX // 2 + len(tabs)], "served": served, "violations": found}


def _opens(tab: Tab) -> bool:
    """Open a WebSocket; return whether the console accepts it."""
    try:
        tab.open_websocket()
    except OSError:
        return False
    return True


def _snapshots(tab: Tab, wanted: int, ident: int = 0) -> int:
    """Read answers until each of `wanted` subscriptions has one; return the number of snapshots, of `ident` if given."""
    answered, snapshots = set[int](), 0
    for _ in range(MESSAGES_MAX):
        for message in tab.messages():
            if ident in (0, message.get("id")) and ("snapshot" in message or "error" in message):
                answered.add(message["id"])
                snapshots += "snapshot" in message
        if len(answered) >= wanted:
            break
    return snapshots
