"""Recorded ledger files, and what the original tool prints of them."""

import json
import re
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "vectors" / "ledger-files"

FILES = sorted(VECTORS.glob("*/*.bmq_csl"))


def case(path):
    return path.parent.name


def told_by_tool(path, name):
    """What the tool printed beside a file. At the zeros behind an open file it breaks its JSON with a complaint."""
    text = (path.parent / name).read_text()
    return json.loads(re.sub(r"CSL file is either corrupted or incomplete at offset=\d+\. .*", "", text))
