"""Local cluster in one directory: files, start, stop and health of its brokers.

    DIR/cluster.json        the record: brokers, ports, last pids
    DIR/domains/            the domains of all brokers
    DIR/<name>/etc/         the configuration of one broker; its `domains` is a link to DIR/domains
    DIR/<name>/             its working directory: storage, archive, logs

Existing configuration files are never overwritten, so that they can be edited, except `clusters.json` when the nodes change
(`members.py`). Used by `command.py`; processes and signals
are in `processes.py`, the generated configurations in `config/sample.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.cli.cluster import processes
from bmqtwist.cli.cluster.processes import is_free
from bmqtwist.cli.exits import Unreachable
from bmqtwist.config.load import CLUSTERS_FILE, DOMAINS_DIRECTORY
from bmqtwist.config.sample import CLUSTER, LOG, SampleBroker, cluster_files, domain_files
from bmqtwist.errors import BmqError, LocalError

RECORD, LOCK, CONFIGURATION = "cluster.json", ".lock", "etc"
OUTPUT = "logs/output.log"  # standard output and error of a broker, with the reason of a failed start
_VERSION = 1
_POLL_S = 0.2
_TAIL_LINES = 12  # lines of the output of an ended broker in an error text
PROXY = "proxy"
_ACTIVE, _NO_LEADER = "ACTIVE", "** NULL **"
_HOST = "localhost"
_ANSWER_SECONDS_MAX = 5.0

PrintLine = Callable[[str], None]


@dataclass(slots=True)
class ClusterRecord:
    """Content of `cluster.json`. `pids`: last pid of each broker, by name."""

    brokers: list[SampleBroker]
    elector: str
    durability: str
    pids: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        brokers = [{**asdict(each), "pid": self.pids.get(each.name, 0)} for each in self.brokers]
        return json.dumps({"version": _VERSION, "elector": self.elector, "durability": self.durability,
                           "brokers": brokers}, indent=4) + "\n"

    @classmethod
    def read(cls, path: Path) -> ClusterRecord:
        """Read the file. Raises LocalError for another version or a damaged file."""
        try:
            tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if tree["version"] != _VERSION:
                raise LocalError(f"{path} is of another version of bmq ({tree['version']}): stop its brokers with that "
                                 "version, and create the cluster in another directory")
            pids = {each["name"]: int(each.pop("pid")) for each in tree["brokers"]}
            return cls([SampleBroker(**each) for each in tree["brokers"]], tree["elector"], tree["durability"], pids)
        except (ValueError, KeyError, TypeError) as error:
            raise LocalError(f"{path} is damaged ({error!r}): restore it from a copy; or stop the brokers (pids: "
                             f"{path.parent}/*/bmqbrkr.pid), remove {path.parent}, and create the cluster again") from None


class LocalCluster:
    """The cluster in `directory`. `print_line` receives a line for each action."""

    def __init__(self, directory: Path, record: ClusterRecord, print_line: PrintLine) -> None:
        self.directory, self.record, self._print_line = directory, record, print_line

    @classmethod
    def load(cls, directory: Path, print_line: PrintLine) -> LocalCluster:
        if not (directory / RECORD).exists():
            raise LocalError(f"there is no cluster in '{directory}': give its directory with --dir, or create a cluster "
                             f"with `bmq cluster up --dir {directory}`")
        return cls(directory, ClusterRecord.read(directory / RECORD), print_line)

    @classmethod
    def make(cls, directory: Path, record: ClusterRecord, print_line: PrintLine) -> LocalCluster:
        if any(each.name not in (LOCK, f"{RECORD}.new") for each in directory.iterdir()):
            raise LocalError(f"'{directory}' is not empty, and contains no cluster: give an empty directory with --dir")
        made = cls(directory, record, print_line)
        made.save()
        return made

    def save(self) -> None:
        """Write the record to `cluster.json`."""
        _replace(self.directory / RECORD, self.record.to_json())

    # -- brokers ----------------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[SampleBroker]:
        return self.record.brokers

    def broker(self, name: str) -> SampleBroker:
        """Return the broker of that name; `2` is short for `n2`. Raises LocalError if there is none."""
        wanted = f"n{name}" if name.isdecimal() else name
        for each in self.brokers:
            if each.name == wanted:
                return each
        raise LocalError(f"there is no broker '{name}' in '{self.directory}': it has "
                         f"{', '.join(each.name for each in self.brokers)}")

    def directory_of(self, broker: SampleBroker) -> Path:
        return self.directory / broker.name

    def log(self, broker: SampleBroker) -> Path:
        return self.directory_of(broker) / LOG

    def running_pid(self, broker: SampleBroker) -> int:
        """Return the pid of the broker's running process, 0 = none."""
        return processes.find_pid(self.directory_of(broker), self.record.pids.get(broker.name, 0))

    def inspect_all(self) -> dict[str, BrokerView]:
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            views = threads.map(lambda each: inspect_broker(each, self.running_pid(each)), self.brokers)
            return dict(zip([each.name for each in self.brokers], views, strict=True))

    # -- start and stop ---------------------------------------------------------------------------------------------

    def write_missing_files(self) -> None:
        for name, text in domain_files().items():
            _write(self.directory / name, text)
        for name, files in cluster_files(self.brokers, self.record.elector, self.record.durability).items():
            configuration = self.directory / name / CONFIGURATION
            for path, text in files.items():
                _write(configuration / path, text)
            if not (configuration / DOMAINS_DIRECTORY).exists():
                (configuration / DOMAINS_DIRECTORY).symlink_to(os.path.join("..", "..", DOMAINS_DIRECTORY))

    def write_nodes(self) -> None:
        """Replace the nodes in `clusters.json` of all brokers by those of the record; other members stay as they are."""
        for name, files in cluster_files(self.brokers, self.record.elector, self.record.durability).items():
            path = self.directory / name / CONFIGURATION / CLUSTERS_FILE
            wanted, present = json.loads(files[CLUSTERS_FILE]), json.loads(path.read_text(encoding="utf-8"))
            for kind in ("myClusters", "proxyClusters"):
                for old, new in zip(present.get(kind, ()), wanted.get(kind, ()), strict=False):
                    old["nodes"] = new["nodes"]
            _replace(path, json.dumps(present, indent=4) + "\n")

    def start(self, brokers: Sequence[SampleBroker]) -> None:
        for each in brokers:
            for port in filter(None, (each.port, each.http_port)):
                if not is_free(port):
                    raise LocalError(f"{each.name} cannot start: another program listens at its port {port}. Stop that "
                                     f"program; or set another port in {self.directory_of(each)}/{CONFIGURATION}, in "
                                     f"clusters.json of all brokers, and in {self.directory / RECORD}")
        for each in brokers:
            output = self.directory_of(each) / OUTPUT
            output.parent.mkdir(parents=True, exist_ok=True)
            directory = self.directory_of(each)
            process = processes.start_broker(directory, (directory / CONFIGURATION).resolve(), output)
            self.record.pids[each.name] = process.pid
            self.save()
            self._print_line(f"{each.name}: started (pid {process.pid})")

    def send_signal(self, brokers: Sequence[SampleBroker], number: signal.Signals, seconds: float) -> list[SampleBroker]:
        """Send a signal to the running brokers and wait up to `seconds` for their end; return processes still running."""
        sent = []
        for each in brokers:
            pid = self.running_pid(each)
            if pid and processes.send_signal(pid, self.directory_of(each), number):
                sent.append((each, pid))
        end = time.monotonic() + seconds
        left = []
        for each, pid in sent:
            if processes.wait_until_ended(pid, self.directory_of(each), max(0.0, end - time.monotonic())):
                self._print_line(f"{each.name}: {'killed' if number is signal.SIGKILL else 'stopped'} (pid {pid})")
            else:
                left.append(each)
        return left

    def stop(self, brokers: Sequence[SampleBroker], seconds: float) -> None:
        """Stop brokers gracefully. Raises Unreachable if one does not end within `seconds`."""
        left = self.send_signal(brokers, signal.SIGTERM, seconds)
        if left:
            names = " ".join(each.name for each in left)
            raise Unreachable(f"{names} did not stop within {seconds:g} s: read the log with `bmq cluster logs "
                              f"{left[0].name}`, wait longer with --timeout, or kill it with `bmq cluster kill "
                              f"{left[0].name}`")

    def wait_until_healthy(self, seconds: float, brokers: Sequence[SampleBroker]) -> dict[str, BrokerView]:
        """Wait until these brokers are healthy, and return the views of all. Raises Unreachable after `seconds`, or if one
        of the brokers ends."""
        end = time.monotonic() + seconds
        while True:
            views = self.inspect_all()
            wrong = problems(brokers, views)
            if not wrong:
                return views
            for each in brokers:
                if not views[each.name].pid and not self.running_pid(each):
                    raise Unreachable(f"{each.name} has ended. Its last output:\n{self._last_output(each)}\nCorrect the "
                                      f"cause, then run `bmq cluster up --dir {self.directory}`: it starts stopped brokers.")
            if time.monotonic() > end:
                raise Unreachable(f"the cluster is not healthy after {seconds:g} s: {'; '.join(wrong)}. Read the log "
                                  f"with `bmq cluster logs {brokers[0].name} --dir {self.directory}`, or wait longer with "
                                  "--timeout")
            time.sleep(_POLL_S)

    def _last_output(self, broker: SampleBroker) -> str:
        with suppress(OSError):
            text = (self.directory_of(broker) / OUTPUT).read_text(encoding="utf-8", errors="replace")
            return "\n".join(f"    {line}" for line in text.splitlines()[-_TAIL_LINES:])
        return "    none"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against other `bmq cluster` commands. Raises LocalError if another command has the lock."""
    with open(directory / LOCK, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(f"another `bmq cluster` command is running in '{directory}': wait until it ends") from None
        yield


def _replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _write(path: Path, text: str) -> None:
    """Write a file unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)


# -- health -------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class BrokerView:
    """State of one broker. `pid` 0 = no process. `unreachable_reason`: reason why it does not answer; `not_ready_reason`:
    reason why it does not serve clients."""

    pid: int = 0
    role: str = ""
    leader: str = ""
    leader_status: str = ""
    term: int = 0
    unreachable_reason: str = ""
    not_ready_reason: str = ""

    def describe_problem(self, broker: SampleBroker) -> str:
        if not self.pid:
            return "down"
        if self.unreachable_reason:
            return f"does not answer: {self.unreachable_reason}"
        if broker.node_id and not self.leader:
            return f"has no leader{self.not_ready_reason and f': {self.not_ready_reason}'}"
        if broker.node_id and self.leader_status != _ACTIVE:
            return f"its leader {self.leader} is {self.leader_status}"
        return self.not_ready_reason


def inspect_broker(broker: SampleBroker, pid: int, seconds: float = _ANSWER_SECONDS_MAX) -> BrokerView:
    """Query the state of a broker whose process has this pid, 0 = none; `seconds`: timeout of each answer."""
    if not pid:
        return BrokerView()
    try:
        with AdminClient(_HOST, broker.port, seconds) as client:
            client.negotiate()
            answer = client.run(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS") if broker.node_id else ""
        not_ready_reason = _query_readiness(broker, seconds)
        if not broker.node_id:
            return BrokerView(pid, PROXY, not_ready_reason=not_ready_reason)
        elector = json.loads(answer)["clusterStatus"]["electorInfo"]
        leader = "" if elector["leaderNode"] == _NO_LEADER else elector["leaderNode"].strip("[]").partition(",")[0]
        return BrokerView(pid, elector["electorState"].lower(), leader, elector["leaderStatus"],
                          elector["leaderMessageSequence"]["electorTerm"], not_ready_reason=not_ready_reason)
    except (BmqError, OSError) as error:
        return BrokerView(pid, unreachable_reason=str(error))
    except (ValueError, KeyError) as error:
        return BrokerView(pid, unreachable_reason=f"its answer is invalid: {error!r}")


def _query_readiness(broker: SampleBroker, seconds: float) -> str:
    """Query readiness; return the reason why the broker does not serve clients, "" if it does."""
    if not broker.http_port:
        return ""
    try:
        with urlopen(f"http://{_HOST}:{broker.http_port}/readyz", timeout=seconds):
            return ""
    except HTTPError as error:
        with error:
            return error.read().decode(errors="replace").strip() or "not ready"
    except (URLError, OSError) as error:
        return f"its console does not answer: {error}"


def problems(brokers: Sequence[SampleBroker], views: Mapping[str, BrokerView]) -> list[str]:
    """Return the problems of the cluster, a sentence each; empty = healthy."""
    found = [f"{each.name} {text}" if text.startswith(("does", "has")) else f"{each.name}: {text}"
             for each in brokers if (text := views[each.name].describe_problem(each))]
    named = {views[each.name].leader for each in brokers if each.node_id and views[each.name].leader}
    if len(named) > 1:
        found.append(f"the nodes follow different leaders: {', '.join(sorted(named))}")
    return found


def leader_of(brokers: Sequence[SampleBroker], views: Mapping[str, BrokerView]) -> tuple[str, int]:
    """Return the leader and term of the nodes in the highest term; ("", 0) = no leader."""
    known = [(views[each.name].term, views[each.name].leader) for each in brokers if views[each.name].leader]
    return (max(known)[1], max(known)[0]) if known else ("", 0)
