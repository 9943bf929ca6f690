"""Load cells of the benchmarks: numbers of producers, consumers and queues, payload size, rate and batching.

`run.py`, `compare.py` and `proxy.py` choose cells by name; `load.py` runs one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One load.

    `rate`: messages/s of all producers, 0 = as fast as possible; `window`: messages of a producer that its slowest consumer
    has not received; `batch`: messages per PUT event and per CONFIRM event, 1 = official SDK, above: raw client;
    `together`: one process runs all sessions, else each producer and consumer is a process. """

    name: str
    mode: str  # priority, fanout, broadcast
    size: int  # bytes of payload
    queues: int = 1
    consumers: int = 1  # of each queue
    batch: int = 1
    rate: int = 0
    window: int = 1000
    together: bool = False

    @property
    def deliveries(self) -> int:
        """Number of deliveries of each message."""
        return 1 if self.mode == "priority" else self.consumers


def _sizes(name: str, *args: object, **kwargs: object) -> list[Cell]:
    sizes = ((1024, "1k"), (128, "128"))
    return [Cell(f"{name}-{label}", args[0], size, **kwargs) for size, label in sizes]  # type: ignore[arg-type]


_CELLS = [
    # The main cell: one process with one session that posts, and one that consumes and confirms.
    *_sizes("one-process", "priority", together=True),
    Cell("one-process-1000", "priority", 1024, rate=1000, together=True),
    Cell("one-process-5000", "priority", 1024, rate=5000, together=True),
    *_sizes("1q1p1c", "priority"),
    Cell("1q1p1c-5000", "priority", 1024, rate=5000),
    *_sizes("10q10p10c", "priority", queues=10, window=200),
    *_sizes("fanout5", "fanout", consumers=5),
    *_sizes("broadcast5", "broadcast", consumers=5),
    *_sizes("1q1p1c-x20", "priority", batch=20, window=4000),
    Cell("1q1p1c-x20-5000", "priority", 1024, batch=20, rate=5000, window=4000),
    *_sizes("10q10p10c-x20", "priority", queues=10, batch=20, window=800),
    *_sizes("fanout5-x20", "fanout", consumers=5, batch=20, window=4000),
    *_sizes("broadcast5-x20", "broadcast", consumers=5, batch=20, window=4000),
]
CELLS = {cell.name: cell for cell in _CELLS}
QUICK = ("one-process-1k", "one-process-5000", "1q1p1c-1k", "1q1p1c-x20-1k")


def choose(names: str) -> list[Cell]:
    """Return cells by comma-separated names, `all`, `quick`, or prefixes ending in `*`; KeyError for an unknown name."""
    if names == "all":
        return list(CELLS.values())
    chosen: list[Cell] = []
    for name in QUICK if names == "quick" else names.split(","):
        if name.endswith("*"):
            chosen += [cell for cell in CELLS.values() if cell.name.startswith(name[:-1])]
        else:
            chosen.append(CELLS[name])
    return chosen
