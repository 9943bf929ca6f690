"""Administration: applications of a locked cluster try every action of administrators and of brokers.

Each application connects as an administrator, as a proxy, and as each node; and it sends every admin command on its
connection as a client. All must be refused, and the messages of another application must remain. An operator and a proxy
are admitted, with their own credentials.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from kit.client import Client, Closed

from bmqtwist.testing.config import CLUSTER, plain_domain
from soak.security.target import ORDERS, Target, is_admitted

APPLICATIONS = ("", "shop", "billing", "team-a", "other")
QUEUE, MESSAGES = f"bmq://{ORDERS}/q", 20
COMMANDS = (f"DOMAINS DOMAIN {ORDERS} PURGE", f"DOMAINS DOMAIN {ORDERS} QUEUE q PURGE *", f"DOMAINS RECONFIGURE {ORDERS}",
            f"DOMAINS REMOVE {ORDERS}", f"DOMAINS REMOVE {ORDERS} FINALIZE", "CLUSTERS LIST",
            *(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION {number} DISABLE" for number in range(2)),
            f"CLUSTERS CLUSTER {CLUSTER} STATE ELECTOR SET_ALL quorum 9", "DANGER SHUTDOWN")
BROKERS = {"proxy": -1, "node 1": 1, "node 2": 2, "node 3": 3, "unknown node": 9}


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Try each action as each application; return the number of attempts and of admitted ones."""
    attempts, admitted = Counter[str](), Counter[str]()
    shop = target.client("shop")
    posts = shop.open(QUEUE, write=1)
    posts.post_all(*[b"order"] * MESSAGES)
    for each in target.brokers:  # a reconfiguration would reduce the quota
        each.config.domain_text(ORDERS, plain_domain(ORDERS, max_messages=1))
    for user in APPLICATIONS:
        for name, number in {"administrator": 0, **BROKERS}.items():
            attempts[name] += 1
            if is_admitted(_connect(target, user, name, number)):
                admitted[f"{user or 'anonymous'} as {name}"] += 1
        attempts["command"] += len(COMMANDS)
        if answers := _answers(target.client(user)):
            admitted[f"{user or 'anonymous'}: {answers}"] += len(answers)
    found = [f"admitted: {each}" for each in admitted]
    allowed = ("ops1", "administrator", 0), ("proxy", "proxy", -1)
    if not all(is_admitted(_connect(target, *each)) for each in allowed):
        found.append("the operator or the proxy is refused")
    reader = target.client("billing").consume(QUEUE)
    if posts.status_of(b"order") or len(reader.take(MESSAGES + 1)) != MESSAGES + 1:
        found.append("an action had an effect on the queue")
    if replaced := sum("#PEER_RECONNECTED" in line for line in target.broker.log()):
        found.append(f"{replaced} connections of nodes were replaced")
    return {"attempts": dict(attempts), "admitted": dict(admitted), "violations": found}


def _connect(target: Target, user: str, kind: str, number: int) -> Client:
    if kind == "administrator":
        return target.client(user, "E_TCPADMIN")
    return target.client(user, "E_TCPBROKER", clusterName=CLUSTER, clusterNodeId=number)


def _answers(client: Client) -> list[str]:
    """Send the admin commands on the connection of a client; return the answers."""
    with contextlib.suppress(Closed):
        for command in COMMANDS:
            client.send_request({"adminCommand": {"command": command}})
        client.barrier()
    return [str(each.control) for each in client.events if each.kind == "control" and "adminCommandResponse" in each.control]
