"""What the brokers of a cluster say of themselves, and whether that is well."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.config.sample import CLUSTER, SampleBroker
from bmqtwist.errors import BmqError

PROXY = "proxy"
_ACTIVE, _NOBODY = "ACTIVE", "** NULL **"
_HOST = "localhost"
_ANSWER_SECONDS_MAX = 5.0


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
        """What is not well with it; empty = all is."""
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
