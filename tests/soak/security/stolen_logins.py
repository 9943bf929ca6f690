"""Stolen logins: a copied cookie after the logout of its user, and node tokens that are sent again.

The node that served the logout restarts, and another node is down at the logout and starts afterwards; both must refuse the
cookie, and admit a new login. A node accepts a token of another node once, also across a restart, and no token for another
node.
"""

from __future__ import annotations

import time
from typing import Any

from kit.console_client import Tab

from bmqtwist.console.access import NodeRequest, NodeTokens, receiver_of
from soak.cluster_load import AVAILABLE_SECONDS_MAX
from soak.security.target import Target

NODES = "n1", "n2", "n3"
PATH, TOKEN_PATH = "/api/v1/cluster", "/api/v1/node/logouts"
POLL_S = 0.2


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Copy a cookie and tokens, log out, restart; return the answers to the cookie and to the tokens by step."""
    assert target.cluster is not None
    user = target.tab("vera")
    cookies, tokens = dict[str, int](), dict[str, int]()
    for node in NODES:
        cookies[f"{node}, before"] = _status(target, node, user.cookie)
    stolen = [_token(target, f"token {number}") for number in range(2)]
    tokens["first"] = _send(target, "n1", stolen[0])
    tokens["again"] = _send(target, "n1", stolen[0])
    tokens["another node"] = _send(target, "n2", stolen[1])
    target.cluster["n3"].stop()
    user.log_out()
    cookies["n1, after the logout"] = _status(target, "n1", user.cookie)
    target.cluster["n1"].stop()
    for node in ("n1", "n3"):
        since = len(target.cluster[node].records)
        target.cluster[node].launch()
        _wait_for_console(target, node)
        cookies[f"{node}, at its start"] = _status(target, node, user.cookie)
        if node == "n1":
            tokens["again after a restart"] = _send(target, node, stolen[0])
            tokens["first after a restart"] = _send(target, node, stolen[1])
        target.cluster[node].expect("Transitioning to AVAILABLE", since=since, deadline=AVAILABLE_SECONDS_MAX)
    logins = {}
    for node in NODES:
        cookies[f"{node}, at the end"] = _status(target, node, user.cookie)
        logins[node] = _log_in_again(target, node)
    found = [f"cookie at {step}: {status}" for step, status in cookies.items()
             if status != (200 if step.endswith("before") else 401)]
    found += [f"token, {step}: {status}" for step, status in tokens.items() if status != (200 if step == "first" else 403)]
    found += [f"a new login at {node}: {status}" for node, status in logins.items() if status != 200]
    return {"cookies": cookies, "tokens": tokens, "new logins": logins, "violations": found}


def _status(target: Target, node: str, cookie: str) -> int:
    tab = target.tab(node=node)
    tab.cookie = cookie
    return tab.ask(PATH)[0]


def _token(target: Target, nonce: str) -> str:
    """Return a token of node n2 for n1, as an observer of their connection copies it."""
    request = NodeRequest("n2", receiver_of("n1", target.tab(node="n1").url), "GET", TOKEN_PATH, b"")
    return NodeTokens(target.secret).make(request, time.time(), nonce)


def _send(target: Target, node: str, token: str) -> int:
    return target.tab(node=node).ask(TOKEN_PATH, headers={"X-Bmqtwist-Node": token})[0]


def _wait_for_console(target: Target, node: str) -> None:
    """Wait until the console of a node accepts connections."""
    end = time.monotonic() + AVAILABLE_SECONDS_MAX
    while True:
        try:
            target.tab(node=node).ask("/livez")
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)


def _log_in_again(target: Target, node: str) -> int:
    """Log in; return the status of a request with the new login."""
    tab: Tab = target.tab("vera", node)
    return tab.ask(PATH)[0]
