"""Coverage-guided fuzzer of the decoders and sessions: `python tests/fuzz/coverage_guided.py [options]`.

Options are those of libFuzzer, for example `-max_total_time=600` or a corpus directory. The first byte of an input says
the target of the rest: one of `codecs.TARGETS`, or a session of a broker in memory that has already negotiated and
opened a queue. A finding is an undeclared exception; the input is left in a `crash-*` file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent.parent), str(Path(__file__).resolve().parent.parent)]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["bmqtwist"]):
    from kit.codec import Unreadable
    from kit.memory import MemoryWorld

    from fuzz import codecs, corpus
    from fuzz.findings import Finding

_NAMES = list(codecs.TARGETS)
_SESSION = len(_NAMES)
_WORLD_INPUTS = 5_000
INPUT_BYTES_MAX = 4096


class Target:
    """Feeds inputs to the targets; one broker serves the session inputs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bmq-fuzz-guided-")
        self._inputs = self._worlds = 0
        self._world = self._new_world()

    def _new_world(self) -> MemoryWorld:
        self._worlds += 1
        world = MemoryWorld(Path(self._folder.name) / str(self._worlds), start=False,
                            app={"bmqtwist": {"durability": "none", "event_bytes_max": 1 << 20}})
        world.domain("d", queue_messages=100, domain_messages=1000)
        world.domain("f", "fanout", queue_messages=100, domain_messages=1000)
        world.start()
        return world

    def __call__(self, data: bytes) -> None:
        """Feed one input."""
        if not data:
            return
        which = data[0] % (_SESSION + 3)  # sessions have three shares
        if which < _SESSION:
            codecs.feed(_NAMES[which], data[1:])
        else:
            self._session(data[1:], which - _SESSION)

    def _was_administered(self) -> bool:
        """Return whether an earlier input removed a domain or disabled a partition: refusals are valid then."""
        broker = self._world.broker
        return (any(domain.removing for domain in broker.domains.by_name.values())
                or not all(partition.available for cluster in broker.clusters.values() for partition in cluster.partitions))

    def _session(self, data: bytes, role: int) -> None:
        self._inputs += 1
        if self._inputs % _WORLD_INPUTS == 0 or self._was_administered():
            self._world = self._new_world()
        world = self._world
        try:
            if role == 0:
                link = world.link()
            else:
                client = world.client()
                client.open("bmq://d/q", read=1, write=1).configure()
                client.consume("bmq://f/q", "foo")
                link = client.link
            link.send(data)
            link.receive(0)
            link.drop()
            world.clients.clear()
        except Unreadable:  # an earlier input posted malformed data; brokers forward data unchanged
            self._world = self._new_world()
            return
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}", f"session {role}", data) from error
        if world.broker.sessions.open:
            raise Finding("a leaked session", f"session {role}", data)
        world.report.lines.clear()


def seeds(directory: Path) -> None:
    """Write the recorded events as a starting corpus."""
    for name, (_, make, _) in codecs.TARGETS.items():
        for index, data in enumerate(list(make())[:100]):
            (directory / f"{name}{index}").write_bytes(bytes([_NAMES.index(name)]) + data[:INPUT_BYTES_MAX])
    for index, conversation in enumerate(corpus.conversations()):
        (directory / f"conversation{index}").write_bytes(
            bytes([_SESSION]) + b"".join(conversation)[:INPUT_BYTES_MAX])
        (directory / f"served{index}").write_bytes(
            bytes([_SESSION + 1]) + b"".join(conversation[1:])[:INPUT_BYTES_MAX])


def main() -> None:
    """Run libFuzzer with its options."""
    with tempfile.TemporaryDirectory(prefix="bmq-fuzz-corpus-") as folder:
        seeds(Path(folder))
        atheris.Setup([*sys.argv, f"-max_len={INPUT_BYTES_MAX}", "-timeout=20", "-rss_limit_mb=4096", folder], Target())
        atheris.Fuzz()


if __name__ == "__main__":
    main()
