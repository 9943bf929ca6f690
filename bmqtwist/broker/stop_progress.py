"""How far the graceful stop of a broker is, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """What is left to be done for one cluster. `partitions`: those that are still led here; `leads`: the cluster is, too;
    `seconds_left`: until confirms and answers are waited for no longer."""

    title: str
    partitions: tuple[int, ...]
    leads: bool
    unconfirmed: int
    unanswered: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that was led here; `to`: who leads it now, empty = nobody else."""

    cluster: str
    partition_id: int
    to: str


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop has ended. `unconfirmed`, `unanswered`: messages and PUTs that were given up on; `clients`: applications
    that were connected still, and are told to go elsewhere."""

    seconds: float
    moved: tuple[MovedPartition, ...]
    unconfirmed: int
    unanswered: int
    clients: int
    reason: str = ""
    by: str = ""

    def tree(self) -> dict[str, object]:
        """As JSON."""
        return {"seconds": self.seconds, "unconfirmed": self.unconfirmed, "unanswered": self.unanswered,
                "clients": self.clients, "reason": self.reason, "by": self.by,
                "moved": [{"cluster": each.cluster, "partition": each.partition_id, "to": each.to or None}
                          for each in self.moved]}

    @property
    def text(self) -> str:
        """In one line."""
        left = [f"Partition [{each.partition_id}] to {each.to}" if each.to else f"Partition [{each.partition_id}] to nobody"
                for each in self.moved]
        return (f"this node has stopped in {self.seconds:.1f} s: {', '.join(left) or 'nothing was to be moved'}; "
                f"{self.unconfirmed} unconfirmed messages, {self.unanswered} PUTs without an answer, {self.clients} clients "
                "connected until the end")


@dataclass(frozen=True, slots=True)
class StopProgress:
    """`stage`: what is done now; `seconds`: since the stop began; `clients`: applications that are connected. `report`: once
    it is done."""

    stage: str
    seconds: float
    clients: int
    clusters: tuple[ClusterProgress, ...]
    reason: str = ""
    by: str = ""
    report: StopReport | None = None
