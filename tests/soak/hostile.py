"""Soak test with invalid and malicious input to a broker, and a reference client that measures ACK times.

    python -m tests.soak hostile [--count 1000000] [--connections 1000] [--seed N]

Half of the inputs come from connections without negotiation (`--connections` at a time, from several addresses), half from
clients after negotiation. `unauthenticated_inputs` and `authenticated_inputs` list them; disconnected clients connect again.
The reference client, a process, posts a message every 5 ms and measures the time to its ACK, first alone, then during the
attack. The attackers run with a lower priority, in place of other machines. Limits apply to the memory of the broker, the
longest turn of its event loop, and the 99th percentile of the reference client. Called by `command.py`. Mutated
conversations with a broker in memory are in `tests/fuzz/sessions.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from crc32c import crc32c
from fuzz import corpus
from kit.process import BrokerProcess, free_port

from bench.rawclient import READ, WRITE, Closed, RawClient, Refusal, acks
from bmqtwist.limits import NEGOTIATION_BYTES_MAX, SUBSCRIPTIONS_MAX
from bmqtwist.wire import ber, schema
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage, encode_event
from bmqtwist.wire.fast import ACK_REQUESTED, HEARTBEAT_REQ, MESSAGE_PROPERTIES, EventType, event_header, put_message

RSS_BYTES_MAX = 200 << 20
TURN_SECONDS_MAX = 0.1
P99_SECONDS_MAX = 0.05
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 34))  # source addresses of unauthenticated connections
AUTHENTICATED_CONNECTIONS = 8
REFERENCE_SECONDS = 5
DISCONNECT_SHARE = 0.005  # probability that a client disconnects after an input
POST_PERIOD_S = 0.005
SAMPLE_PERIOD_S = 0.5
INPUTS_AT_ONCE = 200
NICE = 10
RTL = "\u202e\u2067"

REFERENCE_SCRIPT = """
import json, select, sys, time
from soak.hostile import post_and_measure
post_and_measure(int(sys.argv[1]), int(sys.argv[2]))
"""


def event(kind: int, body: bytes, specific: int = 0) -> bytes:
    """Encode an event, padded to a word."""
    body += bytes(-len(body) % 4)
    return event_header(kind, len(body), specific) + body


def negotiation(**members: Any) -> bytes:
    """Encode a negotiation message of a client."""
    return encode_event(NegotiationMessage("clientIdentity", schema.ClientIdentity(
        client_type=schema.ClientType.E_TCPCLIENT, **members)))


def unauthenticated_inputs() -> dict[str, bytes]:
    """Return the inputs before negotiation, by name."""
    limit, fields = NEGOTIATION_BYTES_MAX, b"\x9e\0" * ((NEGOTIATION_BYTES_MAX - 200) // 2)
    return {
        "nothing": b"", "one byte": b"\0", "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
        "half of an event": (limit - 4).to_bytes(4, "big") + bytes(limit - 200), "zeros": bytes(limit),
        "a long event announced": (1 << 30).to_bytes(4, "big") + bytes(64), "fragment": b"\xff" * 64,
        "empty fields": event(EventType.CONTROL, b"\x30\x80\xa0\x80\xa0\x80" + fields),
        "deep fields": event(EventType.CONTROL, b"\x30\x80" * (limit // 2 - 50)),
        "deep json": event(EventType.CONTROL, b'{"clientIdentity":' * 3000, 1 << 5),
        "json of lists": event(EventType.CONTROL, b"[" * 60000, 1 << 5),
        "json of numbers": event(EventType.CONTROL, b'{"a":' + b"9" * 60000 + b"}", 1 << 5),
        "heartbeats": HEARTBEAT_REQ * 100, "puts": event(EventType.PUT, bytes(4000)),
        "broken negotiation": negotiation(process_name="x")[:-12] + bytes(12),
        "broker": encode_event(NegotiationMessage("clientIdentity", schema.ClientIdentity(
            client_type=schema.ClientType.E_TCPBROKER, cluster_name="n\n" * 5000))),
        "credential": encode_event(AuthenticationMessage("authenticationRequest", schema.AuthenticationRequest(
            f"NO\x1b[2J{RTL}" * 1000, b"x" * 20000))),
        "long names": negotiation(process_name="n\n\x1b[1m\0" * 4000, host_name="h\r\n" * 4000, features="f:1;" * 5000),
    }


def authenticated_inputs(random: Random) -> dict[str, bytes]:
    """Return the inputs after negotiation, by name; queue id 0 is open for reading and writing."""
    big = 250 << 10
    area = bytes.fromhex("180000020000000c00000000")  # no properties
    bomb, big_bomb, too_big_bomb = (zlib.compress(area + bytes(size), 9) for size in (4 << 20, (64 << 20) - 100, 65 << 20))
    hostile = "\n\x1b[2J\0" + RTL

    def put(payload: bytes, flags: int = ACK_REQUESTED, compressed: bool = False, q_id: int = 0) -> bytes:
        data = bytearray(put_message(q_id, random.randbytes(16), payload, crc32c(payload), flags))
        if compressed:
            data[7] |= 1 << 5
        return bytes(data)

    def open_queue(uri: str, app: str = "") -> bytes:
        sub = schema.SubQueueIdInfo(1, app) if app else None
        return encode_event(ControlMessage(7, "openQueue", schema.OpenQueue(
            schema.QueueHandleParameters(uri, 99, sub, READ, 1, 0, 0))))

    def configure(number: int, text: str) -> bytes:
        expression = schema.Expression(schema.ExpressionVersion.E_VERSION_1, text)
        consumers = [schema.ConsumerInfo(10, 10, 1, 1)]
        subscriptions = [schema.Subscription(s_id, expression, consumers) for s_id in range(number)]
        return encode_event(ControlMessage(8, "configureStream", schema.ConfigureStream(
            0, schema.StreamParameters("__default", subscriptions))))

    elements = ber.encode(ControlMessage(1, "configureStream", schema.ConfigureStream(
        0, schema.StreamParameters("a", [schema.Subscription(77)]))))
    one = ber.encode(schema.Subscription(77))
    return {
        "empty fields": event(EventType.CONTROL, b"\x30\x80" + b"\x9e\0" * (big // 2) + b"\0\0"),
        "empty elements": event(EventType.CONTROL, elements.replace(one, b"\x30\0" * (big // 2))),
        "json of elements": event(EventType.CONTROL, b'{"rId":1,"configureStream":{"streamParameters":{"subscriptions":['
                                  + b"{}," * (big // 3) + b"{}]}}}", 1 << 5),
        "too long a message": event(EventType.CONTROL, bytes(1 << 20)),
        "deep fields": event(EventType.CONTROL, b"\x30\x80" * 60000),
        "hostile uri": open_queue(f"bmq://d{hostile * 1000}/q"), "hostile queue": open_queue("bmq://d/" + hostile),
        "hostile domain": open_queue(f"bmq://d.{'x' * 5000}/q"), "traversal": open_queue("bmq://../../etc/passwd/q"),
        "hostile app": open_queue("bmq://d/q", hostile * 5000),
        "subscriptions": configure(SUBSCRIPTIONS_MAX, "x == 1 && y < 7"),
        "subscriptions too many": configure(SUBSCRIPTIONS_MAX + 1, ""),
        "broken expressions": configure(500, hostile + "(" * 100),
        "bombs": event(EventType.PUT, put(bomb, ACK_REQUESTED | MESSAGE_PROPERTIES, True) * 4),
        "largest bomb": event(EventType.PUT, put(big_bomb, ACK_REQUESTED | MESSAGE_PROPERTIES, True)),
        "too large a bomb": event(EventType.PUT, put(too_big_bomb, ACK_REQUESTED | MESSAGE_PROPERTIES, True)),
        "bomb without properties": event(EventType.PUT, put(too_big_bomb, ACK_REQUESTED, True)),
        "very many puts": event(EventType.PUT, put(b"x", 0) * 20_000),
        "very many refused puts": event(EventType.PUT, put(b"x", q_id=12345) * 20_000),
        "very many confirms": event(EventType.CONFIRM, bytes([0x16, 0, 0, 0]) + bytes(24) * 100_000),
        "very many small events": event(EventType.CONFIRM, bytes([0x16, 0, 0, 0]) + bytes(24)) * 5000,
        "very many requests": open_queue("bmq://d/q\n") * 500,
        "unknown queue": event(EventType.PUT, put(b"x", q_id=12345) * 500),
        "wrong checksum": event(EventType.PUT, put(b"x" * 100)[:-8] + b"yyyyyyyy"),
        "confirms": event(EventType.CONFIRM, bytes([0x16, 0, 0, 0]) + bytes(24) * 2000),
        "half of an event": (40 << 20).to_bytes(4, "big") + bytes(1 << 20),
        "acks": event(EventType.ACK, bytes(3000)), "unknown type": event(40, bytes(300)),
        "credential": encode_event(AuthenticationMessage("authenticationRequest",
                                                         schema.AuthenticationRequest("BASIC", b"x"))),
        "second negotiation": negotiation(process_name="x"),
    }


def mutated(random: Random) -> bytes:
    """Return a recorded event of a client with up to six changed bytes."""
    data = bytearray(random.choice(corpus.events()))
    for _ in range(random.randint(1, 6)):
        data[random.randrange(4, len(data))] = random.randrange(256)
    return bytes(data)


class Attackers:
    """A number of connections that send inputs; closed ones are replaced."""

    def __init__(self, size: int, port: int, random: Random, kinds: dict[str, bytes], authenticated: bool) -> None:
        self.size, self._port, self._random, self._authenticated = size, port, random, authenticated
        self._kinds = list(kinds.items())
        self._sockets: list[socket.socket] = []
        self._rest: dict[socket.socket, bytes] = {}  # rest of an input that was written in part
        self.inputs: Counter[str] = Counter()
        self.connects = self.refused = 0

    def _connect(self) -> socket.socket | None:
        self.connects += 1
        try:
            if self._authenticated:
                client = RawClient(self._port, f"attacker{self.connects}", 10.0)
                with contextlib.suppress(Refusal, TimeoutError):
                    client.open("bmq://d/hostile", 0, READ | WRITE)
                channel = client.socket
            else:
                channel = socket.create_connection(("127.0.0.1", self._port), 10.0,
                                                   (ADDRESSES[self.connects % len(ADDRESSES)], 0))
        except (OSError, Closed, Refusal, TimeoutError):
            self.refused += 1
            return None
        channel.setblocking(False)
        return channel

    def fill(self) -> None:
        """Open connections until there are `size`."""
        for _ in range(self.size - len(self._sockets)):
            channel = self._connect()
            if channel is not None:
                self._sockets.append(channel)

    def send_next(self) -> None:
        """Send an input, or the rest of one, on a random connection."""
        if not self._sockets:
            self.fill()
            return
        index = self._random.randrange(len(self._sockets))
        channel = self._sockets[index]
        data = self._rest.pop(channel, b"")
        if not data:
            name, data = "mutated", mutated(self._random)
            if self._random.random() < 0.5:
                name, data = self._random.choice(self._kinds)
            self.inputs[name] += 1
        try:
            sent = channel.send(data) if data else 0
            if sent < len(data):
                self._rest[channel] = data[sent:]
            while channel.recv(1 << 16):
                pass
            raise ConnectionResetError
        except BlockingIOError:
            if self._random.random() < DISCONNECT_SHARE:
                self._replace(index)
        except OSError:
            self._replace(index)

    def _replace(self, index: int) -> None:
        self._remove(index)
        replacement = self._connect()
        if replacement is not None:
            self._sockets.append(replacement)

    def _remove(self, index: int) -> None:
        channel = self._sockets[index]
        self._sockets[index] = self._sockets[-1]
        self._sockets.pop()
        self._rest.pop(channel, None)
        channel.close()

    def close(self) -> None:
        """Close all connections."""
        while self._sockets:
            self._remove(0)


def post_and_measure(port: int, seconds: int) -> None:
    """Run the reference client: post, wait for the ACK, and print the times in ms at the end."""
    client = RawClient(port, "reference", 60.0)
    client.open("bmq://g/reference", 0, WRITE)
    durations: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data, (guid,) = client.put_event(0, [b"x" * 100])
        posted_at = time.monotonic()
        client.send(data)
        while not any(guid == acked for buffer, (kind, _, start, stop) in client.events(60.0) if kind == EventType.ACK
                      for _, acked in acks(buffer, start, stop)):
            pass
        durations.append(time.monotonic() - posted_at)
        time.sleep(POST_PERIOD_S)
    print(json.dumps([round(seconds * 1000, 2) for seconds in durations]))


class ReferenceClient:
    """Process of the reference client."""

    def __init__(self, port: int, seconds: int) -> None:
        tests = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen([sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tests)!r}, "
                                          f"{str(tests.parent)!r}]\n{REFERENCE_SCRIPT}", str(port), str(seconds)],
                                         stdout=subprocess.PIPE)

    @property
    def is_running(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def result(self) -> list[float]:
        """Return the time from each post to its ACK, in ms."""
        out, _ = self._process.communicate(timeout=120)
        return list(json.loads(out))


def summary(durations: list[float]) -> dict[str, float]:
    """Return number, percentiles and maximum of times in ms."""
    ordered = sorted(durations)
    return {"posts": len(ordered), **{f"p{share}": ordered[len(ordered) * share // 100] for share in (50, 99)},
            "max": ordered[-1]}


def metrics(port: int) -> dict[str, float]:
    """Read the metrics of the broker, without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+)\{[^}]*\} (\S+)", text, re.MULTILINE)}


def run(count: int, connections: int, seed: int) -> dict[str, Any]:
    """Run the test with `count` inputs; return counts and measurements."""
    random, http = Random(seed), free_port()
    with tempfile.TemporaryDirectory(prefix="bmq-hostile-") as name:
        broker = BrokerProcess(Path(name), app={"bmqtwist": {"http": {"port": http, "localRole": "admin"}}})
        groups: list[Attackers] = []
        try:
            broker.domain("d", max_messages=100_000, max_bytes=256 << 20, ttl=2)
            broker.domain("g")
            broker.start()
            alone_ms = summary(ReferenceClient(broker.port, REFERENCE_SECONDS).result())
            started, alone = time.monotonic(), broker.memory()
            unauthenticated = Attackers(connections, broker.port, random, unauthenticated_inputs(), False)
            authenticated = Attackers(AUTHENTICATED_CONNECTIONS, broker.port, random, authenticated_inputs(random), True)
            groups = [unauthenticated, authenticated]
            phases: dict[str, dict[str, Any]] = {}
            with ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICE,)) as attackers:  # nice value of this thread only
                for what, active in (("before login", [unauthenticated]), ("after login", [unauthenticated, authenticated])):
                    phases[what] = _phase(broker, http, active, attackers, count // 2, random)
            output = [record for record in broker.records if "INTERNAL_ERROR" in record or "Traceback" in record]
            inputs = sum(sum(group.inputs.values()) for group in groups)
            return {"run": "hostile", "seed": seed, "seconds": round(time.monotonic() - started), "inputs": inputs,
                    "kinds": {"unauthenticated": dict(unauthenticated.inputs), "authenticated": dict(authenticated.inputs)},
                    "connects": [group.connects for group in groups], "refused": [group.refused for group in groups],
                    "rss_mib_alone": alone >> 20, "reference_alone_ms": alone_ms, **phases, "internal_errors": output[:5],
                    "longest_line": max(map(len, broker.records))}
        finally:
            for group in groups:
                group.close()
            broker.cleanup()


def _attack(groups: list[Attackers], random: Random) -> None:
    """Send `INPUTS_AT_ONCE` inputs of random groups."""
    for group in groups:
        if len(group._sockets) < group.size:
            group.fill()
    for _ in range(INPUTS_AT_ONCE):
        random.choice(groups).send_next()


def _phase(broker: BrokerProcess, http: int, groups: list[Attackers], attackers: ThreadPoolExecutor, count: int,
           random: Random) -> dict[str, Any]:
    """Send inputs of all groups, `count` of the last one, with the reference client running; return measurements."""
    before, peak, sampled, durations = metrics(http), 0, 0.0, list[float]()
    reference = ReferenceClient(broker.port, REFERENCE_SECONDS)
    while sum(groups[-1].inputs.values()) < count or not durations:
        attackers.submit(_attack, groups, random).result()
        now = time.monotonic()
        if now - sampled >= SAMPLE_PERIOD_S:
            sampled, peak = now, max(peak, broker.memory())
        if not reference.is_running:
            durations += reference.result()
            reference = ReferenceClient(broker.port, REFERENCE_SECONDS)
    durations += reference.result()
    after = metrics(http)
    slow = {name: after[f"brkr_system_turns_{name}"] - before[f"brkr_system_turns_{name}"] for name in ("slow", "stalled")}
    return {"rss_mib_max": peak >> 20, "turns": slow, "longest_turn_ms": round(after["brkr_system_turn_seconds_max"] * 1000),
            "reference_ms": summary(durations)}


def violations(result: dict[str, Any]) -> list[str]:
    """Return the exceeded limits."""
    found = [f"internal errors of the broker: {result['internal_errors']}"] if result["internal_errors"] else []
    before_login = result["before login"]
    if before_login["rss_mib_max"] >= RSS_BYTES_MAX >> 20:
        found.append(f"memory: {before_login['rss_mib_max']} MiB")
    for what in ("before login", "after login"):
        if result[what]["longest_turn_ms"] > TURN_SECONDS_MAX * 1000:
            found.append(f"{what}: a turn of {result[what]['longest_turn_ms']} ms")
        if result[what]["reference_ms"]["p99"] > P99_SECONDS_MAX * 1000:
            found.append(f"{what}: p99 of the reference client {result[what]['reference_ms']['p99']} ms")
    return found


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if a limit was exceeded."""
    parser = argparse.ArgumentParser(prog="tests.soak hostile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    result = run(options.count, options.connections, options.seed)
    found = violations(result)
    print(json.dumps({**result, "violations": found}), flush=True)
    return 1 if found else 0
