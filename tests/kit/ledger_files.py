"""Recorded ledger files, and the recorded output of the original's tool for them.

Used by `unit/storage/test_ledger_format.py`; a log that tests write is in `ledger_kit.py`.
"""

import json
import re
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "vectors" / "ledger-files"

FILES = sorted(VECTORS.glob("*/*.bmq_csl"))


def case(path):
    """Return the name of a recorded case."""
    return path.parent.name


def tool_output(path, name):
    """Parse the recorded output of the tool for a file.

    The error message that the tool inserts for the zeros after the last record of an open file is removed.
    """
    text = (path.parent / name).read_text()
    return json.loads(re.sub(r"CSL file is either corrupted or incomplete at offset=\d+\. .*", "", text))
