"""Escaping of texts of peers: every input that accepts a text, and every output that may contain it."""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import codec
from kit.client import RequestRefused, consumer_info
from kit.memory import MemoryWorld
from kit.statistics import exposition, stats_tables, stats_tree

from bmqtwist.errors import PeerError
from bmqtwist.logs.format import LineFormat, LogEntry
from bmqtwist.report import shown
from bmqtwist.steps import at_once
from bmqtwist.view import snapshots
from bmqtwist.view.metrics import json_in_steps

FORGED = "21NOV2026_00:00:00.000 forged"
HOSTILE = {
    "newline": f"evil\n{FORGED}", "return": f"evil\r\n{FORGED}", "escape": "evil\x1b[2J\x1b]0;title\x07",
    "nul": "evil\0evil",
    "right to left": "evil\u202egnp.exe\u2067\u200f", "lines of unicode": f"evil\u2028{FORGED}\u2029{FORGED}\x85",
    "quotes": 'evil"} 1\nforged_metric{a="b', "percent": "evil %s %d {} %(x)s", "path": "../../../evil",
    "long": "evil" * (1 << 18)}
LINE_CHARS_MAX = 8192
SAMPLE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="([^"\\\n]|\\[\\"n])*",?)*\})? -?[0-9.e+-]+')


def negotiate_with(member: str) -> Callable[[MemoryWorld, str], None]:
    def send_text(world: MemoryWorld, text: str) -> None:
        client = world.connect("client")
        client.identity[member] = text[:50_000]  # longer negotiation messages are refused before parsing
        client.send(codec.control_frame({"clientIdentity": client.identity}))
        world.run()
        if client.link.session is not None and client.link.session.channel.negotiated_at is not None:
            client.negotiate = lambda: {}  # type: ignore[method-assign]
            client.open("bmq://d/q", read=1, write=1)
    return send_text


def send_credential(world: MemoryWorld, text: str) -> None:
    world.connect("client").send_authentication(text[:50_000], text[:1000].encode())


def uri(form: str) -> Callable[[MemoryWorld, str], None]:
    def send_text(world: MemoryWorld, text: str) -> None:
        with contextlib.suppress(RequestRefused):
            world.client().open(form % text[:200_000], read=1)
    return send_text


def app_id(world: MemoryWorld, text: str) -> None:
    """A printable app id is accepted and reported."""
    with contextlib.suppress(RequestRefused):
        world.client().open("bmq://f/q", read=1, app_id=text[:200_000])
        assert shown(text) == text


def other_app_id(world: MemoryWorld, text: str) -> None:
    consumer = world.client().consume("bmq://f/q", "foo")
    with pytest.raises(RequestRefused):
        consumer.configure_stream({"appId": text[:200_000], "subscriptions": []})


def expression(world: MemoryWorld, text: str) -> None:
    consumer = world.client().open("bmq://d/q", read=1)
    with pytest.raises(RequestRefused):
        consumer.configure_stream({"appId": "__default", "subscriptions": [
            {"sId": 1, "expression": {"version": "E_VERSION_1", "text": "( " + text[:200_000]},
             "consumers": [consumer_info()]}]})


def command(form: str) -> Callable[[MemoryWorld, str], None]:
    def send_text(world: MemoryWorld, text: str) -> None:
        world.admin(form % text[:200_000])
    return send_text


def command_in_json(world: MemoryWorld, text: str) -> None:
    world.admin(json.dumps({"domains": {"domain": {"name": text[:200_000], "command": {"infos": {}}}}}))
    world.admin(json.dumps({"domains": {"reconfigure": {"domain": text[:200_000]}}}))


def properties(world: MemoryWorld, text: str) -> None:
    """Properties of a message that is dumped."""
    world.domain("p", maxDeliveryAttempts=1)
    producer = world.producer("bmq://p/q")
    assert producer.status_of(b"x", properties={text[:1000]: text[:60_000]}) == 0
    consumer = world.client()
    consumer.consume("bmq://p/q")
    world.run()
    consumer.kill()
    assert world.alarms("POISON_PILL") and world.dumps


def payload(world: MemoryWorld, text: str) -> None:
    world.producer().post(text.encode())
    world.admin("DOMAINS DOMAIN d QUEUE q LIST 0 10")


def broker_of_a_cluster(world: MemoryWorld, text: str) -> None:
    client = world.connect("other", client_type="E_TCPBROKER", cluster=text[:50_000])
    client.send(codec.control_frame({"clientIdentity": client.identity}))
    world.run()


SOURCES: dict[str, Callable[[MemoryWorld, str], None]] = {
    **{member: negotiate_with(member) for member in ("processName", "hostName", "userAgent", "features", "clusterName")},
    "mechanism": send_credential, "uri": uri("%s"), "domain of a uri": uri("bmq://%s/q"), "tier of a uri": uri("bmq://d.~%s/q"),
    "queue of a uri": uri("bmq://d/%s"), "query of a uri": uri("bmq://d/q?%s=x"), "app of a uri": uri("bmq://d/q?id=%s"),
    "appId of an open": app_id, "appId of a configure": other_app_id, "expression": expression,
    "command": command("%s"), "domain of a command": command("DOMAINS DOMAIN %s INFOS"),
    "queue of a command": command("DOMAINS DOMAIN d QUEUE %s INTERNALS"), "reconfigure": command("DOMAINS RECONFIGURE %s"),
    "app of a command": command("DOMAINS DOMAIN f QUEUE q PURGE %s"), "command in json": command_in_json,
    "properties": properties, "payload": payload, "cluster of a broker": broker_of_a_cluster,
}


def all_outputs(world: MemoryWorld) -> dict[str, str]:
    """Return the text of every output."""
    state = at_once(snapshots.broker_in_steps(world.broker, world.now))
    statistics = world.assembled.start_statistics()
    at_once(world.assembled.sample_in_steps(world.now))
    layout = LineFormat("%d %s %m\n")
    return {
        "log": "".join(layout.render(LogEntry(0.0, severity, "c", text)) for severity, text in world.report.lines),
        "metrics": exposition(state, statistics), "console": json.dumps(snapshots.short_status(world.broker, world.now, "")),
        "statistics": stats_tables(state, statistics),
        "statistics in json": at_once(json_in_steps(stats_tree(state, statistics))),
        "internals": world.admin("DOMAINS DOMAIN d QUEUE q INTERNALS") + world.admin("DOMAINS DOMAIN f QUEUE q INTERNALS"),
        "cluster": world.admin("CLUSTERS CLUSTER c3 STATUS"), "dumps": "\n".join(world.dumps),
    }


@pytest.mark.parametrize("source", SOURCES)
def test_texts_of_peers_are_escaped_in_every_output(tmp_path: Path, source: str) -> None:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    world.domain("f", "fanout", apps=["foo"])
    world.producer()
    world.producer("bmq://f/q")
    files = file_names(tmp_path)
    for kind, text in HOSTILE.items():
        try:
            SOURCES[source](world, text)
        except PeerError as error:
            raise AssertionError(kind) from error
        world.run()
    for place, text in all_outputs(world).items():
        ugly = {each for each in text if each not in "\n" and not each.isprintable()}
        assert not ugly, (place, ugly, [line for line in text.splitlines() if ugly & set(line)][:3])
        for line in text.split("\n"):
            assert not line.startswith((FORGED, "forged")), (place, line)
            assert len(line) <= LINE_CHARS_MAX or place in ("statistics in json", "dumps"), (place, len(line), line[:300])
        assert not any(unicodedata.bidirectional(each) in ("RLO", "RLI", "RLE") for each in text), place
    for line in all_outputs(world)["metrics"].splitlines():
        assert line.startswith("# TYPE ") or SAMPLE.fullmatch(line), line
    made = file_names(tmp_path) - files
    assert not any("evil" in name for name in made), made


def file_names(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*")}


def test_an_app_id_in_the_domain_file_may_have_any_length(tmp_path: Path) -> None:
    """The operator chose its name."""
    world, name = MemoryWorld(tmp_path), "a" * 200
    world.domain("f", "fanout", apps=[name])
    assert world.client().open("bmq://f/q", read=1, app_id=name)
