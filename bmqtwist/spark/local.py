"""Local Spark session with the formats of this package, checks of its requirements (Java, PySpark), and the zip of this
package for workers.

Called by `cli/pipeline.py` and by programs, as `bmqtwist.spark.session`; on a cluster, `discovery/` registers the formats.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bmqtwist
from bmqtwist.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
PYSPARK_MIN = (4, 2)


class NotInstalled(LocalError):
    """A required program or library is missing; the text names what to install."""


def check_java() -> int:
    """Return the version of the Java that Spark uses; NotInstalled if it is missing or too old."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    where = f"JAVA_HOME={home} contains no Java" if home else "there is no `java` on the PATH"
    hint = (f"Spark needs Java {JAVA_MIN} or newer: install it with `apt-get install openjdk-{JAVA_MIN}-jre-headless` "
            f"(Debian, Ubuntu), `dnf install java-{JAVA_MIN}-openjdk-headless` (Fedora) or "
            f"`brew install openjdk@{JAVA_MIN}`, or set "
            "JAVA_HOME to its directory")
    if not java or not os.access(java, os.X_OK):
        raise NotInstalled(f"{where}. {hint}.")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    if not found or int(found[1]) < JAVA_MIN:
        raise NotInstalled(f"{java} is {'version ' + found[1] if found else 'not Java'}. {hint}.")
    return int(found[1])


def check_pyspark() -> None:
    try:
        import pyspark
    except ImportError:
        raise NotInstalled("PySpark is not installed: pip install 'bmqtwist[spark]'") from None
    version = tuple(int(each) for each in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < PYSPARK_MIN:
        raise NotInstalled(f"PySpark {pyspark.__version__} is too old, {'.'.join(map(str, PYSPARK_MIN))} or newer is "
                           "required: pip install -U 'bmqtwist[spark]'")


def session(master: str = "local[*]", name: str = "bmqtwist", **config: Any) -> SparkSession:
    """Return a session with both formats registered. `config`: Spark settings, with `__` for each dot in their names.

    Under spark-submit its master is used. Workers use this Python unless PYSPARK_PYTHON is set.
    """
    check_pyspark()
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    defaults = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC",
                "spark.sql.python.filterPushdown.enabled": "true"}
    if hasattr(socket, "AF_UNIX"):  # over TCP a delayed ACK costs each task of a Python worker 40 ms
        defaults["spark.python.unix.domain.socket.enabled"] = "true"
    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in {**defaults, **{key.replace("__", "."): str(value) for key, value in config.items()}}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made


def register(spark: SparkSession) -> None:
    from bmqtwist.spark.source import QueueDataSource
    from bmqtwist.spark.storage import StorageDataSource

    spark.dataSource.register(QueueDataSource)
    spark.dataSource.register(StorageDataSource)


def package(target: str | Path) -> Path:
    """Write this package as one zip for `--py-files` and the driver's PYTHONPATH (needed by the planner of a stream); return
    its path. The dependencies must be installed on the workers."""
    path, root = Path(target), Path(bmqtwist.__file__).parent
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for each in sorted(root.rglob("*.py")):
            made.write(each, Path(root.name) / each.relative_to(root))
        for each in sorted((root / "spark" / "discovery").glob("pyspark_*.py")):
            made.write(each, each.name)  # at top level, for Spark's discovery
    return path
