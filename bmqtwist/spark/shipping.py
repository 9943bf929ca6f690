"""This package as one zip, for workers that do not have it: `--py-files bmqtwist.zip`, and the same file in PYTHONPATH of
the driver, where what plans a streaming source looks for it. The libraries that it needs are to be installed on the workers.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import bmqtwist

DISCOVERY = "pyspark_*.py"


def package(target: str | Path) -> Path:
    """Write the zip; its path."""
    path, root = Path(target), Path(bmqtwist.__file__).parent
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for each in sorted(root.rglob("*.py")):
            made.write(each, Path(root.name) / each.relative_to(root))
        for each in sorted((root / "spark" / "discovery").glob(DISCOVERY)):
            made.write(each, each.name)  # at the top: there Spark looks for them
    return path
