"""The steps of docs/migration-cluster.md, executed on two clusters and a proxy, while clients post and consume."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.cli_kit import BMQ

from bmqtwist.sdk import simple
from bmqtwist.testing.config import node_config
from bmqtwist.testing.process import BrokerProcess, free_port

PAGE = Path(__file__).parents[2] / "docs" / "migration-cluster.md"
DOMAINS = {"orders": "priority", "copies": "fanout"}
QUEUES = {"bmq://orders/q": ["bmq://orders/q"], "bmq://copies/q": ["bmq://copies/q?id=foo", "bmq://copies/q?id=bar"]}
LATE = "bmq://orders/late"
TITLES = ("Move", "Wait until the open queues are drained", "Drain the remainder", "The way back")
PAUSE_S, SECONDS_MAX, BATCH = 0.01, 60.0, 5
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


def commands() -> dict[str, list[str]]:
    """Return the shell blocks of the guide by the title of their section."""
    sections = re.split(r"^##+ (?:\d\. )?(.*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    found = {title: re.findall(r"```sh\n(.*?)```", text, re.S)
             for title, text in zip(sections[1::2], sections[2::2], strict=True)}
    return {title: blocks for title, blocks in found.items() if blocks}


class Deployment:
    """Two single-node clusters and a proxy of both."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.old, self.new = (stack.enter_context(self._node(root, name, number))
                              for number, name in enumerate(("old", "new"), 1))
        self.proxy = self._proxy(root)
        stack.enter_context(self.proxy)
        self.environment = {
            **os.environ, "PATH": f"{Path(BMQ).parent}:{os.environ['PATH']}", "PROXY": self.proxy.url, "OLD": self.old.url,
            "NEW": self.new.url, "PROXY_ETC": str(self.proxy.config.etc), "ETC": str(self.old.config.etc),
            "STORAGE": str(self.old.config.storage)}

    def _node(self, root: Path, name: str, number: int) -> BrokerProcess:
        made = BrokerProcess(root / name, free_port(), app={"hostName": name}, cluster={"name": name})
        made.config.clusters["myClusters"][0]["nodes"] = [node_config(number, name, f"localhost:{made.port}")]
        made.config.clusters["myVirtualClusters"] = []
        made.config.write()
        self._write_domains(made, name)
        return made

    def _proxy(self, root: Path) -> BrokerProcess:
        made = BrokerProcess(root / "proxy", free_port(), app={"hostName": "proxy"})
        operations = made.config.clusters["myClusters"][0]["queueOperations"]
        made.config.clusters.update(myClusters=[], myVirtualClusters=[], proxyClusters=[
            {"name": name, "queueOperations": operations, "nodes": [node_config(number, name, f"localhost:{node.port}")]}
            for number, (name, node) in enumerate((("old", self.old), ("new", self.new)), 1)])
        made.config.write()
        self._write_domains(made, "old")
        return made

    def _write_domains(self, broker: BrokerProcess, cluster: str) -> None:
        for name, mode in DOMAINS.items():
            broker.config.domain(name, mode, cluster=cluster, apps=("foo", "bar"))

    def run(self, block: str, domain: str = "orders") -> str:
        """Run a block of the guide for a domain; return its output."""
        done = subprocess.run(["bash", "-ec", block.replace("orders", domain)], cwd=self.root, env=self.environment,
                              check=False, capture_output=True, text=True, timeout=SECONDS_MAX)
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout

    def stored(self, node: BrokerProcess) -> list[str]:
        """Return the queues of which a node stores messages."""
        return sorted({uri for domain in DOMAINS for uri in re.findall(
            r"bmq://[\w/]+", node.admin(f"DOMAINS DOMAIN {domain} INFOS").partition("Storage ......")[2])})


class Clients:
    """A producer and consumers at the proxy, each in a thread: every message is the number of its post."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.posted = dict.fromkeys(QUEUES, 0)  # acknowledged posts, by queue
        self.received: dict[str, list[int]] = {uri: [] for uris in QUEUES.values() for uri in uris}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._post)] + [
            threading.Thread(target=self._consume, args=(queue, uri)) for queue, uris in QUEUES.items() for uri in uris]
        self._complete = False
        for thread in self._threads:
            thread.start()

    def _post(self) -> None:
        with simple.Session(self._broker) as session:
            queues = {uri: session.open(uri, write=True) for uri in QUEUES}
            while not self._ended.is_set():
                for uri, queue in queues.items():
                    for number in range(BATCH):
                        queue.post_nowait(b"%d" % (self.posted[uri] + number))
                for uri, queue in queues.items():
                    queue.flush()
                    self.posted[uri] += BATCH
                self._ended.wait(PAUSE_S)

    def _consume(self, queue: str, uri: str) -> None:
        got = self.received[uri]
        with simple.Session(self._broker) as session, session.open(uri, read=True) as source:
            while not self._complete:
                message = source.get(0.2)
                if message is not None:
                    with message:
                        got.append(int(message.payload))

    def until_received(self, more: int) -> None:
        """Wait until each consumer has received this number of further messages."""
        wanted = {uri: len(got) + more for uri, got in self.received.items()}
        self._until(lambda: all(len(self.received[uri]) >= count for uri, count in wanted.items()))

    def end(self) -> None:
        """End the posts, wait until all of them have arrived, and end the consumers."""
        self._ended.set()
        self._threads[0].join(SECONDS_MAX)
        try:
            self._until(lambda: all(len(self.received[uri]) >= self.posted[queue]
                                    for queue, uris in QUEUES.items() for uri in uris))
        finally:
            self._complete = True
            for thread in self._threads:
                thread.join(SECONDS_MAX)

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < end, (self.posted, {uri: len(got) for uri, got in self.received.items()})
            time.sleep(0.05)


def test_the_guide_moves_domains_there_and_back_while_clients_work(tmp_path: Path) -> None:
    guide = commands()
    [move], [wait], [show, consume], [back] = (guide[title] for title in TITLES)
    with ExitStack() as stack:
        made = Deployment(tmp_path, stack)
        with simple.Session(made.proxy.url) as session, session.open(LATE, write=True) as late:
            late.post_many([b"1", b"2", b"3"])
        clients = Clients(made.proxy.url)
        try:
            clients.until_received(100)
            for domain in DOMAINS:
                assert made.run(move, domain).strip() == "SUCCESS"
            made.run(wait)
            clients.until_received(100)
            assert made.stored(made.old) == [LATE]
            assert LATE in made.run(show)
            made.run(consume)
            assert len((tmp_path / "remainder.json").read_text().splitlines()) == 3 and not made.stored(made.old)
            for domain in DOMAINS:
                made.run(back, domain)
            clients.until_received(100)
            assert not made.stored(made.new)
        finally:
            clients.end()
        for queue, uris in QUEUES.items():
            for uri in uris:
                assert clients.received[uri] == list(range(clients.posted[queue])), "complete, in order, none twice"
        log = [line for line in made.proxy.log() if "Domain '" in line and ("moves to" in line or "is moved to" in line)]
        assert len(log) == 4 * len(DOMAINS)
        made.old.stop()
        made.run(guide["Hand over a storage directory"][0])
        assert not [line for broker in (made.old, made.new, made.proxy) for line in broker.log() if "INTERNAL_ERROR" in line]
