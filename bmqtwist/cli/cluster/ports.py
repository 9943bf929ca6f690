"""TCP ports of this machine that nobody listens at."""

from __future__ import annotations

import random
import socket

from bmqtwist.cli.exits import EXIT_USAGE, CommandFailed

LOOPBACK = "127.0.0.1"
# Below the ports that systems give to outgoing connections: a broker that is down keeps its own.
_RANGE = range(20000, 30000)
_TRIED_MAX = 100


def is_free(port: int) -> bool:
    """Whether a broker could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """So many, one after the other."""
    for _ in range(_TRIED_MAX):
        first = random.choice(_RANGE)
        ports = list(range(first, first + count))
        if all(map(is_free, ports)):
            return ports
    raise CommandFailed(f"no {count} free ports in a row were found from {_RANGE.start} to {_RANGE.stop}: name the first "
                        "of them with --base-port", EXIT_USAGE)
