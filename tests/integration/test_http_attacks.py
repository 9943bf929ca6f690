"""Short forms of the attacks of the campaign `security` on broker processes: the event loop and `/livez` stay responsive."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.security import http_burst, http_flood, malformed_requests, slow_connections
from soak.security.target import Target

pytestmark = pytest.mark.process
TURN_SECONDS_MAX = 0.5  # on a busy machine


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    found = Target(tmp_path, queues=500)
    yield found
    found.close()


def longest_turn(target: Target) -> float:
    found = re.search(rb"^brkr_system_turn_seconds_max\{[^}]*\} (\S+)", target.request("/metrics"), re.MULTILINE)
    assert found
    return float(found[1])


@pytest.mark.parametrize("attack", [http_flood, http_burst])
def test_anonymous_requests_do_not_stop_the_event_loop(target: Target, attack: object) -> None:
    assert attack.run(target, 3.0)  # type: ignore[attr-defined]
    began = time.monotonic()
    assert target.request("/livez").startswith(b"HTTP/1.1 200 ") and time.monotonic() - began < 2.0
    assert longest_turn(target) < TURN_SECONDS_MAX


def test_liveness_is_answered_among_slow_connections(target: Target) -> None:
    assert not slow_connections.run(target, 3.0)["violations"]


def test_malformed_requests_are_answered_and_cost_few_lines_of_the_log(target: Target) -> None:
    before = target.log_bytes()
    assert not malformed_requests.run(target, 2.0)["violations"]
    assert target.log_bytes() - before < 4 << 10
