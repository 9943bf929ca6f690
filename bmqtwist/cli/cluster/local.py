"""The cluster of one directory: its files, the record of it, its brokers started, stopped and waited for.

    DIR/cluster.json        the record: how many brokers, their ports, their last pids
    DIR/domains/            the domains of all brokers
    DIR/<name>/etc/         the configuration of one broker; its `domains` is a link to those of all
    DIR/<name>/             its working directory: storage, archive, logs

What is written once is never written again, so that it can be edited.
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
from bmqtwist.config.load import DOMAINS_DIRECTORY
from bmqtwist.config.sample import CLUSTER, LOG, SampleBroker, cluster_files, domain_files
from bmqtwist.errors import BmqError, LocalError

RECORD, LOCK, CONFIGURATION = "cluster.json", ".lock", "etc"
OUTPUT = "logs/output.log"  # what a broker prints, in its working directory: most of all why it did not start
_VERSION = 1
_POLL_S = 0.2
_TAIL_LINES = 12  # of the output of a broker that ended
PROXY = "proxy"
_ACTIVE, _NOBODY = "ACTIVE", "** NULL **"
_HOST = "localhost"
_ANSWER_SECONDS_MAX = 5.0

Say = Callable[[str], None]


@dataclass(slots=True)
class ClusterRecord:
    """What `cluster.json` says. `pids`: by name, of those that were started last."""

    brokers: list[SampleBroker]
    elector: str
    durability: str
    pids: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        brokers = [{**asdict(each), "pid": self.pids.get(each.name, 0)} for each in self.brokers]
        return json.dumps({"version": _VERSION, "elector": self.elector, "durability": self.durability,
                           "brokers": brokers}, indent=4) + "\n"

    @classmethod
    def read(cls, path: Path) -> ClusterRecord:
        """LocalError if it cannot be understood."""
        try:
            tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if tree["version"] != _VERSION:
                raise LocalError(f"{path} is of another version of bmq ({tree['version']}): end its brokers with that one, "
                                 "and make the cluster anew in another directory")
            pids = {each["name"]: int(each.pop("pid")) for each in tree["brokers"]}
            return cls([SampleBroker(**each) for each in tree["brokers"]], tree["elector"], tree["durability"], pids)
        except (ValueError, KeyError, TypeError) as error:
            raise LocalError(f"{path} is damaged ({error!r}): restore it from a copy; or end the brokers (their pids are in "
                             f"{path.parent}/*/bmqbrkr.pid), remove {path.parent}, and make the cluster anew") from None


class LocalCluster:
    """The cluster in `directory`. `say` is told what is done."""

    def __init__(self, directory: Path, record: ClusterRecord, say: Say) -> None:
        self.directory, self.record, self._say = directory, record, say

    @classmethod
    def load(cls, directory: Path, say: Say) -> LocalCluster:
        if not (directory / RECORD).exists():
            raise LocalError(f"there is no cluster in '{directory}': name its directory with --dir, or make one with "
                             f"`bmq cluster up --dir {directory}`")
        return cls(directory, ClusterRecord.read(directory / RECORD), say)

    @classmethod
    def make(cls, directory: Path, record: ClusterRecord, say: Say) -> LocalCluster:
        if any(each.name not in (LOCK, f"{RECORD}.new") for each in directory.iterdir()):
            raise LocalError(f"'{directory}' is not empty, and holds no cluster: name a directory of its own with --dir")
        made = cls(directory, record, say)
        made.save()
        return made

    def save(self) -> None:
        """Write the record."""
        _replace(self.directory / RECORD, self.record.text())

    # -- who is there -----------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[SampleBroker]:
        return self.record.brokers

    def broker(self, name: str) -> SampleBroker:
        """`n2`, or 2 for that node; LocalError if there is none."""
        wanted = f"n{name}" if name.isdecimal() else name
        for each in self.brokers:
            if each.name == wanted:
                return each
        raise LocalError(f"there is no broker '{name}' in '{self.directory}': it has "
                         f"{', '.join(each.name for each in self.brokers)}")

    def home(self, broker: SampleBroker) -> Path:
        return self.directory / broker.name

    def log(self, broker: SampleBroker) -> Path:
        return self.home(broker) / LOG

    def pid(self, broker: SampleBroker) -> int:
        """Of its process, whoever started it; 0 = there is none."""
        return processes.running(self.home(broker), self.record.pids.get(broker.name, 0))

    def views(self) -> dict[str, BrokerView]:
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            return dict(zip([each.name for each in self.brokers],
                            threads.map(lambda each: look(each, self.pid(each)), self.brokers), strict=True))

    # -- start and stop ---------------------------------------------------------------------------------------------

    def write_missing(self) -> None:
        for name, text in domain_files().items():
            _write(self.directory / name, text)
        for name, files in cluster_files(self.brokers, self.record.elector, self.record.durability).items():
            configuration = self.directory / name / CONFIGURATION
            for path, text in files.items():
                _write(configuration / path, text)
            if not (configuration / DOMAINS_DIRECTORY).exists():
                (configuration / DOMAINS_DIRECTORY).symlink_to(os.path.join("..", "..", DOMAINS_DIRECTORY))

    def start(self, brokers: Sequence[SampleBroker]) -> None:
        for each in brokers:
            for port in filter(None, (each.port, each.http_port)):
                if not is_free(port):
                    raise LocalError(f"{each.name} cannot start: another program listens at its port {port}. End that "
                                     f"program; or name another port in {self.home(each)}/{CONFIGURATION}, in clusters.json "
                                     f"of all brokers, and in {self.directory / RECORD}")
        for each in brokers:
            output = self.home(each) / OUTPUT
            output.parent.mkdir(parents=True, exist_ok=True)
            process = processes.launch(self.home(each), (self.home(each) / CONFIGURATION).resolve(), output)
            self.record.pids[each.name] = process.pid
            self.save()
            self._say(f"{each.name}: started (pid {process.pid})")

    def signal(self, brokers: Sequence[SampleBroker], number: signal.Signals, seconds: float) -> list[SampleBroker]:
        """Send it to those that run, and wait until they are gone; those that are still there after so many seconds."""
        sent = []
        for each in brokers:
            pid = self.pid(each)
            if pid and processes.send_signal(pid, self.home(each), number):
                sent.append((each, pid))
        end = time.monotonic() + seconds
        left = []
        for each, pid in sent:
            if processes.wait_until_gone(pid, self.home(each), max(0.0, end - time.monotonic())):
                self._say(f"{each.name}: {'killed' if number is signal.SIGKILL else 'stopped'} (pid {pid})")
            else:
                left.append(each)
        return left

    def stop(self, brokers: Sequence[SampleBroker], seconds: float) -> None:
        """The graceful stop; Unreachable if one of them does not end."""
        left = self.signal(brokers, signal.SIGTERM, seconds)
        if left:
            names = " ".join(each.name for each in left)
            raise Unreachable(f"{names} did not stop within {seconds:g} s: look into the log with `bmq cluster logs "
                              f"{left[0].name}`, wait longer with --timeout, or end it with `bmq cluster kill "
                              f"{left[0].name}`")

    def wait_until_healthy(self, seconds: float, brokers: Sequence[SampleBroker]) -> dict[str, BrokerView]:
        """What all say when all is well with these; Unreachable if that takes longer, or one of them has ended meanwhile."""
        end = time.monotonic() + seconds
        while True:
            views = self.views()
            wrong = complaints(brokers, views)
            if not wrong:
                return views
            for each in brokers:
                if not views[each.name].pid and not self.pid(each):
                    raise Unreachable(f"{each.name} has ended. It said last:\n{self._last_words(each)}\nMend that, then run "
                                      f"`bmq cluster up --dir {self.directory}` again; it starts what is down.")
            if time.monotonic() > end:
                raise Unreachable(f"the cluster is not healthy after {seconds:g} s: {'; '.join(wrong)}. Look into the log "
                                  f"with `bmq cluster logs {brokers[0].name} --dir {self.directory}`, or wait longer with "
                                  "--timeout")
            time.sleep(_POLL_S)

    def _last_words(self, broker: SampleBroker) -> str:
        with suppress(OSError):
            text = (self.home(broker) / OUTPUT).read_text(encoding="utf-8", errors="replace")
            return "\n".join(f"    {line}" for line in text.splitlines()[-_TAIL_LINES:])
        return "    nothing"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else starts or stops brokers of the directory meanwhile; LocalError if somebody does."""
    with open(directory / LOCK, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(f"another `bmq cluster` is at work in '{directory}': wait until it is done") from None
        yield


def _replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _write(path: Path, text: str) -> None:
    """Write a file that is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)


# -- health: what each broker says of itself, and whether that is well ---------------------------------------------------

@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker now. `pid` 0: there is no process. `silent`: why it does not answer; `unready`: why it serves nobody."""

    pid: int = 0
    role: str = ""
    leader: str = ""
    leader_status: str = ""
    term: int = 0
    silent: str = ""
    unready: str = ""

    def complaint(self, broker: SampleBroker) -> str:
        if not self.pid:
            return "down"
        if self.silent:
            return f"does not answer: {self.silent}"
        if broker.node_id and not self.leader:
            return "knows no leader"
        if broker.node_id and self.leader_status != _ACTIVE:
            return f"its leader {self.leader} is {self.leader_status}"
        return self.unready


def look(broker: SampleBroker, pid: int, seconds: float = _ANSWER_SECONDS_MAX) -> BrokerView:
    """Ask a broker; `pid` is that of its process, 0 = there is none."""
    if not pid:
        return BrokerView()
    try:
        with AdminClient(_HOST, broker.port, seconds) as client:
            client.negotiate()
            answer = client.run(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS") if broker.node_id else ""
        unready = _unready(broker, seconds)
        if not broker.node_id:
            return BrokerView(pid, PROXY, unready=unready)
        elector = json.loads(answer)["clusterStatus"]["electorInfo"]
        leader = "" if elector["leaderNode"] == _NOBODY else elector["leaderNode"].strip("[]").partition(",")[0]
        return BrokerView(pid, elector["electorState"].lower(), leader, elector["leaderStatus"],
                          elector["leaderMessageSequence"]["electorTerm"], unready=unready)
    except (BmqError, OSError) as error:
        return BrokerView(pid, silent=str(error))
    except (ValueError, KeyError) as error:
        return BrokerView(pid, silent=f"its answer is not understood: {error!r}")


def _unready(broker: SampleBroker, seconds: float) -> str:
    """What it answers when it is asked whether it serves clients."""
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


def complaints(brokers: Sequence[SampleBroker], views: Mapping[str, BrokerView]) -> list[str]:
    """What is not well with the cluster, a sentence each; none = all is."""
    found = [f"{each.name} {text}" if text.startswith(("does", "knows")) else f"{each.name}: {text}"
             for each in brokers if (text := views[each.name].complaint(each))]
    named = {views[each.name].leader for each in brokers if each.node_id and views[each.name].leader}
    if len(named) > 1:
        found.append(f"the nodes follow different leaders: {', '.join(sorted(named))}")
    return found


def leader_of(brokers: Sequence[SampleBroker], views: Mapping[str, BrokerView]) -> tuple[str, int]:
    """Whom the nodes follow, in which term: as those say that are in the newest; ("", 0) = nobody."""
    known = [(views[each.name].term, views[each.name].leader) for each in brokers if views[each.name].leader]
    return (max(known)[1], max(known)[0]) if known else ("", 0)
