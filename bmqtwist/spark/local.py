"""A Spark session that knows our formats, its requirements (Java, and a PySpark that is new enough), and the zip of this
package for workers that do not have it."""

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
    """Something is missing on this machine: the sentence says what to install."""


def check_java() -> int:
    """The version of Java that Spark will find; NotInstalled if there is none that it can use."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or ""
    where = f"JAVA_HOME={home} holds no Java" if home else "there is no `java` on the PATH"
    hint = (f"Spark needs Java {JAVA_MIN} or newer: install it with `apt-get install openjdk-{JAVA_MIN}-jre-headless` "
            f"(Debian, Ubuntu), `dnf install java-{JAVA_MIN}-openjdk-headless` (Fedora) or "
            f"`brew install openjdk@{JAVA_MIN}`, or set "
            "JAVA_HOME to where it is")
    if not java or not os.access(java, os.X_OK):
        raise NotInstalled(f"{where}. {hint}.")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < JAVA_MIN:
        raise NotInstalled(f"{java} is {'version ' + found[1] if found else 'no Java'}. {hint}.")
    return int(found[1])


def check_pyspark() -> None:
    try:
        import pyspark
    except ImportError:
        raise NotInstalled("PySpark is not installed: pip install 'bmqtwist[spark]'") from None
    version = tuple(int(each) for each in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < PYSPARK_MIN:
        raise NotInstalled(f"PySpark {pyspark.__version__} is too old, {'.'.join(map(str, PYSPARK_MIN))} or newer is "
                           "needed: pip install -U 'bmqtwist[spark]'")


def session(master: str = "local[*]", name: str = "bmqtwist", **config: Any) -> SparkSession:
    """A session with our formats registered. `config`: settings of Spark, with `__` for each dot in their names.

    Under spark-submit the master is the one that was given there. Workers use this Python unless PYSPARK_PYTHON is set.
    """
    check_pyspark()
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    defaults = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC",
                "spark.sql.python.filterPushdown.enabled": "true"}
    if hasattr(socket, "AF_UNIX"):  # over TCP each task of a Python worker waits 40 ms for an acknowledgement that is late
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
    """Write this package as one zip, for `--py-files` and PYTHONPATH of the driver, where the planner of a streaming source
    looks for it; its path. The libraries that it needs have to be installed on the workers."""
    path, root = Path(target), Path(bmqtwist.__file__).parent
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for each in sorted(root.rglob("*.py")):
            made.write(each, Path(root.name) / each.relative_to(root))
        for each in sorted((root / "spark" / "discovery").glob("pyspark_*.py")):
            made.write(each, each.name)  # at the top: there Spark looks for them
    return path
