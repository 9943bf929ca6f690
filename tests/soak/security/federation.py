"""Federation: a rogue proxy announces 200 proxies, each of which announces 50 new ones, and so on, at ever new addresses.

A viewer inspects the clients each second, and watches a queue that the proxy has open. The requests and the connections to
announced consoles are limited, and connections end soon after the last inspection. A peer that is not authorized as a proxy
is refused, and its console is not asked.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from bmqtwist.limits import PROXIES_ASKED_MAX, PROXY_REQUESTS_PER_SECOND
from soak.security.rogue_proxy import FakeConsoles, announce
from soak.security.target import Target, is_admitted, rounds

ROOT, FIRST, NEXT = "127.0.0.1", 200, 50
QUEUE = "bmq://g/watched"
CONNECTIONS_MAX = 2 * PROXIES_ASKED_MAX
IDLE_SECONDS_MAX = 30.0


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Announce, and inspect once per second; return the numbers of requests and connections to announced consoles."""
    numbers = count(1)

    def answer(address: str) -> dict[str, Any]:
        found = []
        for number in (next(numbers) for _ in range(FIRST if address == ROOT else NEXT)):
            new = f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            found.append({"ident": new, "name": new, "url": consoles.url(new)})
        return {"clients": [], "consumers": [], "producers": [], "proxies": found}

    consoles, unknown = FakeConsoles(answer), FakeConsoles(answer)
    try:
        refused = [announce(target, "unknown", unknown.url(ROOT), user) for user in ("", "shop")]
        rogue = announce(target, "rogue", consoles.url(ROOT))
        rogue.open(QUEUE, write=1)
        viewer = target.tab("vera")
        viewer.open_websocket(id=1, subscribe="queue", uri=QUEUE)
        answered = sum(viewer.ask("/api/v1/clients")[0] == 200 for _ in rounds(seconds, 1.0))
        viewer.close()
        rogue.drop()
        remaining = consoles.remaining_connections(IDLE_SECONDS_MAX)
    finally:
        consoles.close()
        unknown.close()
    most = int(PROXIES_ASKED_MAX + PROXY_REQUESTS_PER_SECOND * (seconds + 2))
    requests, found = len(consoles.received), list[str]()
    if not PROXIES_ASKED_MAX // 2 < requests <= most:
        found.append(f"{requests} requests to announced consoles, expected at most {most}, and more than 100")
    if consoles.connections_max > CONNECTIONS_MAX:
        found.append(f"{consoles.connections_max} connections to announced consoles, expected at most {CONNECTIONS_MAX}")
    if remaining:
        found.append(f"{remaining} connections to announced consoles remain after {IDLE_SECONDS_MAX:g} s")
    if unknown.received or any(map(is_admitted, refused)):
        found.append(f"a peer that is no proxy is admitted; {len(unknown.received)} requests to its console")
    return {"inspections": answered, "requests": [requests, most],
            "connections": [consoles.connections_max, CONNECTIONS_MAX], "violations": found}
