"""Runs the examples of the SDK and of its documentation, unchanged, with a broker process.

The broker has the sample configuration of etc/, so the examples work after `make run`, too. Additions: a TLS listener whose
certificate is ca.pem in the directory of the programs, a user, and the domains of the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kit.certificates import certificate
from kit.children import time_limited
from kit.markdown import BROKER, RUN, Block, blocks
from kit.process import STARTED, BrokerProcess, free_port

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
TLS_BROKER = "tls://localhost:30115"
DEADLINE = 60.0

pytestmark = pytest.mark.process

BLOCKS = [block for name in RUN for block in blocks(ROOT / name)]


class Node:
    """A broker process with the sample configuration, and a directory for programs."""

    def __init__(self, root: Path) -> None:
        self.root, self.broker = root, BrokerProcess(root)
        self.tls_port = free_port()
        etc = self.broker.config.etc
        shutil.rmtree(etc)
        shutil.copytree(ROOT / "etc", etc)
        for directory in ("storage", "archive", "logs"):
            (root / "data" / directory).mkdir(parents=True)
        self._edit(etc / "bmqbrkrcfg.json")
        clusters = etc / "clusters.json"
        clusters.write_text(clusters.read_text(encoding="utf-8").replace(":30114", f":{self.broker.port}"),
                            encoding="utf-8")
        for block in BLOCKS:
            if block.domain:
                (etc / "domains" / f"{block.domain}.json").write_text(block.text, encoding="utf-8")

    def _edit(self, path: Path) -> None:
        """Write free ports, and the configuration that the examples with TLS need."""
        cert, key = certificate(self.root)
        shutil.copy(cert, self.root / "ca.pem")
        config = json.loads(path.read_text(encoding="utf-8"))
        app = config["appConfig"]
        app["tlsConfig"] = {"certificateAuthority": str(cert), "certificate": str(cert), "key": str(key),
                            "versions": "TLSv1.3"}
        listeners = app["networkInterfaces"]["tcpInterface"]["listeners"]
        listeners[0]["port"] = self.broker.port
        listeners.append({"name": "tls", "address": "127.0.0.1", "port": self.tls_port, "tls": True})
        app["authentication"] = {"authenticators": [
            {"name": "BasicAuthenticator", "settings": [{"key": "alice", "value": {"stringVal": "secret"}}]},
            {"name": "AnonAuthenticator", "settings": [{"key": "shouldPass", "value": {"boolVal": True}}]}],
            "anonymousCredential": {"credential": {"mechanism": "ANONYMOUS", "identity": ""}}}
        app["plugins"] = {"libraries": [], "enabled": ["BasicAuthenticator", "AnonAuthenticator"]}
        path.write_text(json.dumps(config), encoding="utf-8")

    def here(self, text: str) -> str:
        """Return a program with the addresses of this broker."""
        return text.replace(BROKER, self.broker.uri).replace(TLS_BROKER, f"tls://localhost:{self.tls_port}")

    def run(self, *arguments: str) -> str:
        """Run a Python program and return its output."""
        environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=DEADLINE,
                              check=False, cwd=self.root, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield a broker process with the sample configuration."""
    node = Node(tmp_path_factory.mktemp("node"))
    try:
        node.broker.launch()
        node.broker.expect(STARTED, deadline=180.0)
        yield node
    finally:
        node.broker.cleanup()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("sdk_*.py")), ids=lambda path: path.stem)
def test_each_example_runs(node: Node, path: Path) -> None:
    assert node.run(str(path), node.broker.uri)


@pytest.fixture(params=["blazingmq", "bmqtwist.sdk.blazingmq"])
def official(request: pytest.FixtureRequest, node: Node) -> Path:
    """Return a directory with the examples for the official SDK, unchanged and with the import replaced."""
    directory = node.root / request.param
    directory.mkdir(exist_ok=True)
    for name in ("producer.py", "consumer.py", "demo.py"):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert text.count("\nimport blazingmq\n") == 1
        if request.param != "blazingmq":
            text = text.replace("\nimport blazingmq\n", f"\nimport {request.param} as blazingmq\n")
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def test_the_demo_runs_with_the_official_library_and_with_bmqtwist(node: Node, official: Path) -> None:
    assert "5 posted and acknowledged, 15 delivered" in node.run(str(official / "demo.py"), node.broker.uri)


def test_the_example_consumer_prints_the_messages_of_the_example_producer(node: Node, official: Path) -> None:
    uri = f"bmq://bmq.test.persistent.priority/lines-{official.name}"  # a consumer may leave before it has confirmed
    posted = subprocess.run([sys.executable, str(official / "producer.py"), uri, node.broker.uri], input="a\nb\n",
                            capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert posted.stdout == "2 message(s) acknowledged\n"
    consumer = subprocess.Popen([sys.executable, str(official / "consumer.py"), uri, node.broker.uri], text=True,
                                stdout=subprocess.PIPE)
    with time_limited(consumer, 2 * DEADLINE):
        assert consumer.stdout is not None
        lines = [consumer.stdout.readline() for _ in range(2)]
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(DEADLINE) == 0
    assert ["b'a'" in lines[0], "b'b'" in lines[1]] == [True, True], lines


UNHEARD = """
import runpy, signal, sys, threading
def interrupt():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_example_consumer_ends_at_a_signal_while_idle(node: Node, official: Path) -> None:
    """Python handles a signal in the main thread only.

    A wait that the main thread starts just after the signal does not end by it, and neither does one when another thread is
    interrupted.
    """
    uri = f"bmq://bmq.test.persistent.priority/unheard-{official.name}"
    consumer = subprocess.Popen([sys.executable, "-c", UNHEARD, str(official / "consumer.py"), uri, node.broker.uri],
                                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with time_limited(consumer, 2 * DEADLINE):
        posted = subprocess.run([sys.executable, str(official / "producer.py"), uri, node.broker.uri], input="a\n",
                                capture_output=True, text=True, timeout=DEADLINE, check=True)
        assert posted.stdout == "1 message(s) acknowledged\n"
        assert consumer.stdin is not None and consumer.stdout is not None
        assert "b'a'" in consumer.stdout.readline()
        consumer.stdin.write("now\n")
        consumer.stdin.flush()
        assert consumer.wait(DEADLINE) == 0


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.info == "python"], ids=str)
def test_an_example_of_the_documentation_prints_the_documented_output(
        node: Node, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(node.root)
    if block.wants_session:
        printed = replace(block, text=node.here(block.text)).run_inside(node.broker.uri, DEADLINE)
    else:
        assert BROKER in block.text or TLS_BROKER in block.text or "Session(" not in block.text
        program = node.root / "program.py"
        program.write_text(node.here(block.text), encoding="utf-8")
        printed = node.run(str(program))
    if block.output is not None:
        assert printed == block.output


def test_the_first_example_equals_the_program_of_the_readme() -> None:
    (shown,) = (block.text for block in BLOCKS if block.path.name == "README.md" and block.info == "python")
    assert (EXAMPLES / "hello.py").read_text(encoding="utf-8").endswith(f'"""\n\n{shown}')


def test_the_first_commands_of_the_readme_post_and_consume(node: Node) -> None:
    (shown,) = (block.text for block in BLOCKS if block.path.name == "README.md" and "bmq produce" in block.text)
    binaries = str(Path(sys.executable).parent)
    (node.root / "examples").mkdir()
    hello = node.here((EXAMPLES / "hello.py").read_text(encoding="utf-8"))
    (node.root / "examples" / "hello.py").write_text(hello, encoding="utf-8")
    done = subprocess.run(["sh", "-e", "-c", shown.replace(".venv/bin", binaries)], capture_output=True, text=True,
                          timeout=DEADLINE, cwd=node.root, check=False, env={**os.environ, "BMQ_BROKER": node.broker.uri})
    assert done.returncode == 0, done.stderr
    assert "hello\nworld\n" in done.stdout
