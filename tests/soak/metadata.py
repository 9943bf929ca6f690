"""Crashes at every write of every operation that changes metadata, in the simulator (`sim/metadata_crashes.py`).

    python -m tests.soak metadata [--operation NAME]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from sim.metadata_crashes import CRASHES, OPERATIONS, walk


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak metadata", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", choices=OPERATIONS, action="append")
    options = parser.parse_args(arguments)
    wrong = 0
    for operation in options.operation or OPERATIONS:
        for crash, strike in CRASHES.items():
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="bmq-metadata-") as name:
                try:
                    counts, finding = walk(OPERATIONS[operation], strike, Path(name)), ""
                except AssertionError as error:
                    counts, finding, wrong = {}, str(error), wrong + 1
            print(json.dumps({"run": "metadata", "operation": operation, "crash": crash, **counts, "finding": finding,
                              "seconds": round(time.monotonic() - began)}), flush=True)
    return 1 if wrong else 0
