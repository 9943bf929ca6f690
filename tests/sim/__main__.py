"""Command line of scenarios: `PYTHONPATH=tests python -m sim SEED ...`; the exit status is 1 if a seed failed.

`scenario.py` runs a seed; `test_whole_broker.py` runs fixed seeds in the suite. Campaigns in clusters are run by
`sim/campaign/__main__.py`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sim.scenario import Scenario


def main(seeds: list[int]) -> int:
    """Run the seeds and print their outcomes; return 1 if one failed."""
    failed = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = Scenario(seed, Path(folder)).run()
            except Exception as error:
                failed = 1
                print(f"seed {seed} FAILED: {type(error).__name__}: {error}")
            else:
                print(f"seed {seed}: {dict(result.counts)} {result.digest[:16]}")
    return failed


if __name__ == "__main__":
    sys.exit(main([int(argument) for argument in sys.argv[1:]]))
