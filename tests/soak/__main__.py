"""Start of `python -m tests.soak [RUN]`.

The command line, with the names of the runs, is in `tests/soak/command.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
for place in (ROOT, ROOT / "tests"):
    sys.path.insert(0, str(place))

from soak.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
