"""`bmq broker` in an empty directory, and the sample configuration that it writes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from bmqtwist.cli.broker import write_sample
from bmqtwist.config.sample import ELECTORS, SAMPLE_CLUSTER, cluster_files, sample_files
from bmqtwist.daemon.preflight import check
from bmqtwist.testing.process import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
BMQ = Path(sys.executable).parent / "bmq"


def test_the_sample_configuration_in_the_repository_equals_the_generated_one() -> None:
    """All files of `etc/` are compared; those of a cluster are in `cluster/`."""
    files = sample_files("data/")
    files |= {f"cluster/{name}/{path}": text for name, found in cluster_files(SAMPLE_CLUSTER).items()
              for path, text in found.items()}
    assert {str(path.relative_to(ROOT / "etc")) for path in (ROOT / "etc").rglob("*.json")} == set(files)
    for path, text in files.items():
        assert (ROOT / "etc" / path).read_text(encoding="utf-8") == text, path


@pytest.mark.parametrize("name", [each.name for each in SAMPLE_CLUSTER])
def test_the_sample_configuration_of_a_cluster_is_valid_and_documented(name: str) -> None:
    assert check(str(ROOT / "etc" / "cluster" / name))[0] == []
    page = (ROOT / "etc" / "cluster" / "README.md").read_text(encoding="utf-8")
    broker = next(each for each in SAMPLE_CLUSTER if each.name == name)
    assert f"`tcp://localhost:{broker.port}` | `http://127.0.0.1:{broker.http_port}/` |" in page
    for member, value in ELECTORS["fast"].items():
        assert f"| `{member}` | {value} | {ELECTORS['original'][member]} |" in page


def test_the_sample_configuration_is_valid_and_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_sample("etc") and not write_sample("etc")
    assert check("etc")[0] == []
    domain = tmp_path / "etc" / "domains" / "bmq.test.persistent.priority.json"
    domain.unlink()
    assert not write_sample("etc") and not domain.exists()


class Running:
    """A process of `bmq broker`."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.process = subprocess.Popen([BMQ, "broker", *arguments], cwd=root, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("STARTED"):
                return
        raise AssertionError("".join(self.lines))

    def stop(self) -> str:
        """Stop the process with SIGTERM; return the rest of its output."""
        self.process.send_signal(signal.SIGTERM)
        rest: str = self.process.communicate(timeout=60)[0]
        assert self.process.returncode == 0
        return rest


def bmq(port: int, *arguments: str) -> str:
    """Run a command with the address of the broker and return its output."""
    return subprocess.run([BMQ, *arguments, "--broker", f"tcp://localhost:{port}"], capture_output=True, text=True,
                          timeout=60, check=True).stdout


@pytest.mark.process
def test_a_broker_started_in_an_empty_directory_keeps_its_messages(tmp_path: Path) -> None:
    port, console = free_port(), free_port()
    options = ("--data", "here", "--port", str(port), "--console-port", str(console))
    broker = Running(tmp_path, *options)
    try:
        assert f"Configuration written to {tmp_path}/here/etc" in broker.lines[0]
        assert sum("was missing and has been created" in line for line in broker.lines) == 3  # storage, archive, logs
        with urlopen(f"http://127.0.0.1:{console}/readyz", timeout=20) as answer:
            assert answer.read() == b"ok\n"
        bmq(port, "produce", "bmq://bmq.test.persistent.priority/q", "hello")
        bmq(port, "produce", "bmq://bmq.test.persistent.priority.large/q", "--count", "3000", "x")  # above other limits
        assert "BMQbrkr stopped" in broker.stop()
        assert {path.name for path in tmp_path.iterdir()} == {"here"}
        broker = Running(tmp_path, *options)
        assert f"Configuration read from {tmp_path}/here/etc" in broker.lines[0]
        assert not any("was missing" in line for line in broker.lines)
        assert "hello" in bmq(port, "consume", "bmq://bmq.test.persistent.priority/q", "-n", "1")
        broker.stop()
    finally:
        broker.process.kill()
        broker.process.wait()


@pytest.mark.process
def test_repeated_signals_do_not_turn_a_graceful_stop_into_a_failure(tmp_path: Path) -> None:
    broker = Running(tmp_path, "--port", str(free_port()), "--console-port", str(free_port()))
    try:
        while broker.process.poll() is None:
            for number in (signal.SIGINT, signal.SIGTERM):
                broker.process.send_signal(number)
            time.sleep(0.002)
        assert broker.process.stdout is not None and broker.process.returncode == 0
        assert "STOPPED bmqbrkr" in broker.process.stdout.read()
    finally:
        broker.process.kill()
        broker.process.wait()
