"""Command line of `python -m tests.soak`: runs soak tests, prints their counts as JSON lines and fails on violations.

    python -m tests.soak                      all runs at full size, except spark
    python -m tests.soak frames --count N     mutated frames and control messages through sessions and decoders
    python -m tests.soak storage --count N    damaged file sets through recovery
    python -m tests.soak configs --count N    mutated configuration directories
    python -m tests.soak starts --count N     mutated files, arguments and environments of starts of `bmqbrkr`
    python -m tests.soak commands --count N   mutated command lines, environments and inputs of `bmq`
    python -m tests.soak damage --count N     damaged storage directories, each opened by a broker and consumed
    python -m tests.soak kill9 --count N      kill -9 under load (more options: `kill9 --help`)
    python -m tests.soak restarts --count N   restarts under clients of the SDK (more options: `restarts --help`)
    python -m tests.soak failover --minutes N faults of nodes, links, disks and operators (more options: `failover --help`)
    python -m tests.soak upgrade --from REF   nodes of an earlier release and of this one under load (`upgrade --help`)
    python -m tests.soak spread               many consumers at nodes and proxies (more options: `spread --help`)
    python -m tests.soak hostile --count N    invalid and malicious input of clients (more options: `hostile --help`)
    python -m tests.soak security             attacks on the ports of console and clients (`security --help`)
    python -m tests.soak spark                kills of a Spark query and its broker (more options: `spark --help`)
    python -m tests.soak metadata             crashes at every write of every change of metadata
    python -m tests.soak coverage --minutes N the coverage-guided fuzzer (needs the extra `fuzz`)

`--seed N` repeats a run; the default is taken from the clock. The seed is printed. Each run is a module of this package; the
first five are in `tests/fuzz/` (`codecs.py`, `storage_tails.py`, `configurations.py`, `starts.py`, `command_lines.py`).
`make soak` calls it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import codecs, sessions
from fuzz.command_lines import CommandLines
from fuzz.configurations import Configurations
from fuzz.findings import Finding
from fuzz.starts import Starts
from fuzz.storage_tails import Tails

from soak import damage, failover, hostile, kill9, metadata, restarts, spark, spread, upgrade
from soak.security import campaign as security

FRAMES, STORAGE_TAILS, CONFIGS, STARTS, COMMAND_LINES, KILLS, MINUTES = 1_000_000, 10_000, 10_000, 10_000, 10_000, 300, 10


def frames(count: int, seed: int) -> dict[str, Any]:
    """Run `count` mutated frames, half through sessions of a broker, half through the decoders only; return counts."""
    seen = sessions.main(count // 2, seed)
    decoded = codecs.run(count - seen["mutated"], seed)
    total = seen["mutated"] + sum(decoded.values())
    return {"mutated frames and control messages": total, "crashes": 0, "leaked sessions": 0, "sessions": seen,
            "decoders": decoded}


def storage(count: int, seed: int) -> dict[str, Any]:
    """Run the recovery of `count` damaged file sets; return counts."""
    return {"crashes": 0, **Tails(seed).run(count)}


def configs(count: int, seed: int) -> dict[str, Any]:
    """Load `count` mutated configuration directories; return counts."""
    configurations = Configurations(seed)
    try:
        return {"crashes": 0, **configurations.run(count)}
    finally:
        configurations.close()


def starts(count: int, seed: int) -> dict[str, Any]:
    """Run `count` mutated starts of the broker; return counts."""
    cases = Starts(seed)
    try:
        return {"tracebacks": 0, **cases.run(count)}
    finally:
        cases.close()


def commands(count: int, seed: int) -> dict[str, Any]:
    """Run `count` mutated command lines; return counts."""
    command_lines = CommandLines(seed)
    try:
        return {"tracebacks": 0, **command_lines.run(count)}
    finally:
        command_lines.close()


def coverage(minutes: int) -> int | None:
    """Run the coverage-guided fuzzer as a process; return its exit code, None if it is not installed."""
    target = Path(__file__).resolve().parent.parent / "fuzz" / "coverage_guided.py"
    try:
        import atheris  # noqa: F401 - only a check whether it is installed
    except ImportError:
        print("The coverage-guided run needs atheris: pip install 'bmqtwist[fuzz]'", file=sys.stderr)
        return None
    return subprocess.run([sys.executable, str(target), f"-max_total_time={minutes * 60}"], check=False).returncode


_RUNS: dict[str, tuple[Callable[[int, int], dict[str, Any]], int]] = {
    "frames": (frames, FRAMES), "storage": (storage, STORAGE_TAILS), "configs": (configs, CONFIGS),
    "starts": (starts, STARTS), "commands": (commands, COMMAND_LINES)}
_COMMANDS: dict[str, Callable[[list[str]], int]] = {  # runs with other options
    "kill9": kill9.main, "restarts": restarts.main, "failover": failover.main, "spread": spread.main,
    "upgrade": upgrade.main, "hostile": hostile.main, "metadata": metadata.main, "damage": damage.main,
    "security": security.main, "spark": spark.main}


def _fuzz(name: str, count: int | None, seed: int) -> int:
    run, default_count = _RUNS[name]
    start = time.monotonic()
    try:
        counts = run(default_count if count is None else count, seed)
    except Finding as finding:
        print(json.dumps({"run": name, "seed": seed, "finding": finding.what}))
        print(finding, file=sys.stderr)
        return 1
    print(json.dumps({"run": name, "seed": seed, "seconds": round(time.monotonic() - start), **counts}), flush=True)
    return 0


def main(arguments: list[str]) -> int:
    """Run the command line; return the number of runs with violations."""
    if arguments and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="all",
                        choices=["all", *_RUNS, *_COMMANDS, "coverage"])
    parser.add_argument("--count", type=int, help="number of cases; of kills, for `all`")
    parser.add_argument("--minutes", type=int, default=MINUTES)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    if options.run in _RUNS:
        return _fuzz(options.run, options.count, options.seed)
    if options.run == "coverage":
        return 1 if (code := coverage(options.minutes)) is None else code
    failed = sum(_fuzz(name, None, options.seed) for name in _RUNS)
    failed += kill9.main(["--count", str(options.count or KILLS), "--seed", str(options.seed)]) != 0
    failed += restarts.main(["--seed", str(options.seed)]) != 0
    failed += failover.main(["--seed", str(options.seed)]) != 0
    failed += spread.main([]) != 0
    failed += hostile.main(["--seed", str(options.seed)]) != 0
    failed += security.main([]) != 0
    failed += metadata.main([]) != 0
    failed += damage.main(["--seed", str(options.seed)]) != 0
    return failed + bool(coverage(options.minutes))
