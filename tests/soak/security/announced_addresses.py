"""Announced addresses: proxies announce URLs of consoles that would change the request of a node.

A viewer inspects the clients. A node sends its token to the announced scheme, host and port, with its own path; URLs with a
query, a fragment or a user are not used. All unreachable addresses have the same reason. A node refuses the tokens that
consoles of proxies have received.
"""

from __future__ import annotations

import re
import socket
import threading
from typing import Any

from kit.process import free_port

from bmqtwist.console.proxies import NO_ANSWER, NO_CONSOLE
from soak.security.rogue_proxy import FakeConsoles, announce
from soak.security.target import Target, rounds

PATH = "/api/v1/node/clients"
# By name of the proxy: the URL, and whether its console is asked. ANOTHER_HOST must receive nothing.
ANOTHER_HOST = "127.0.9.9"
URLS = {"plain": ("http://127.0.1.1:{port}", True), "path": ("http://127.0.1.2:{port}/api/v1/nodes/n1/stop", True),
        "query": ("http://127.0.1.3:{port}/livez?", False), "bare query": ("http://127.0.1.4:{port}?x=", False),
        "fragment": ("http://127.0.1.5:{port}/livez#", False), "user": ("http://admin:x@127.0.1.6:{port}", False),
        "user like a host": ("http://127.0.1.7:{port}@127.0.9.9:{port}", False),
        "backslash": ("http://127.0.1.8:{port}\\@127.0.9.9:{port}", False),
        "dots": ("http://127.0.1.9:{port}/x/../../livez", False), "line end": ("http://127.0.1.10:{port}/\r\nX: y", False),
        "scheme": ("ftp://127.0.1.11:{port}", False)}
_ADDRESS = re.compile(r"127\.[0-9.]+")


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Announce the URLs at two levels, and inspect once per second; return the numbers of requests by name and level."""
    def answer(address: str) -> dict[str, Any]:
        below = [{"ident": f"below {name}", "name": f"below {name}", "url": below_of(url.format(port=port))}
                 for name, (url, _) in URLS.items()]
        return {"clients": [], "proxies": below if address == "127.0.1.1" else []}

    consoles = FakeConsoles(answer)
    port = consoles.server_address[1]
    unreachable = {"closed port": free_port(), "no HTTP": _listen(b"SSH-2.0-x\r\n"), "silent": _listen(b"")}
    rogues = [announce(target, name, url.format(port=port)) for name, (url, _) in URLS.items()]
    rogues += [announce(target, name, f"http://127.0.0.1:{number}") for name, number in unreachable.items()]
    try:
        viewer, missing = target.tab("vera"), dict[str, str]()
        for _ in rounds(seconds, 1.0):
            missing |= viewer.ask("/api/v1/clients")[1]["missing"]
        return _judge(target, consoles, missing, list(unreachable))
    finally:
        consoles.close()
        for each in rogues:
            each.drop()


def _judge(target: Target, consoles: FakeConsoles, missing: dict[str, str], unreachable: list[str]) -> dict[str, Any]:
    hosts = [each.host.partition(":")[0] for each in consoles.received]
    asked = {name: [hosts.count(each) for address in _ADDRESS.findall(url.replace(ANOTHER_HOST, ""))
                    for each in (address, below_of(address))] for name, (url, _) in URLS.items()}
    found = [f"{name}: {asked[name]} requests" for name, (_, is_asked) in URLS.items()
             if any(bool(each) is not is_asked for each in asked[name])]
    for each in consoles.received:
        is_wrong_place = each.arrived_at == ANOTHER_HOST or not each.host.startswith(each.arrived_at)
        if each.path != PATH or not each.is_clean or is_wrong_place:
            found.append(f"a request for {each.path} at {each.arrived_at}, for the host {each.host}")
    reasons = {missing.get(name) for name in unreachable}
    if reasons != {NO_ANSWER} or set(missing.values()) - {NO_ANSWER, NO_CONSOLE}:
        found.append(f"reasons of unreachable consoles: {sorted(set(missing.values()))}")
    answers = {target.tab().ask(each.path, headers={"X-Bmqtwist-Node": each.token})[0] for each in consoles.received[:20]}
    if answers != {403}:
        found.append(f"relayed tokens are answered with {answers}")
    return {"requests": asked, "reasons": len(reasons), "relayed tokens": sorted(answers), "violations": found}


def below_of(text: str) -> str:
    """Return a URL or address of the second level for one of the first."""
    return text.replace("127.0.1.", "127.0.2.")


def _listen(greeting: bytes) -> int:
    """Accept connections, send each a greeting, and never answer; return the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        held = []
        while True:
            held.append(listener.accept()[0])
            held[-1].sendall(greeting)

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])
