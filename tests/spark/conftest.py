"""Fixtures: one small Spark session for all tests, on the loopback network only, and a broker process.

Recorded journals are in `recorded_journals.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bmqtwist.spark.local import check_java, check_pyspark
from bmqtwist.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def spark_is_there() -> None:
    """Fail with the package to install if PySpark or Java is missing."""
    check_pyspark()
    check_java()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_is_there: None) -> Iterator[SparkSession]:
    """Return the Spark session of all tests."""
    from bmqtwist.spark import session

    place = tmp_path_factory.mktemp("spark")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = session("local[2]", "tests", **small(place))
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


def small(place: Path) -> dict[str, Any]:
    """Settings of a session with fast start and small memory."""
    return {"spark__sql__shuffle__partitions": 2, "spark__default__parallelism": 2, "spark__driver__memory": "512m",
            "spark__sql__adaptive__enabled": "false", "spark__ui__showConsoleProgress": "false",
            "spark__sql__warehouse__dir": str(place / "warehouse"), "spark__local__dir": str(place / "local"),
            "spark__sql__codegen__wholeStage": "false", "spark__sql__codegen__factoryMode": "NO_CODEGEN",
            "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker process with a priority domain `d.prio` and a fanout domain `d.fan` with the apps a and b. Its statistics
    log is written every second."""
    root = tmp_path_factory.mktemp("broker")
    printer = {"printInterval": 1, "file": str(root / "logs" / "stat.log"), "maxAgeDays": 10, "encoding": "JSON"}
    with BrokerProcess(root, app={"stats": {"snapshotInterval": 1, "printer": printer}}, samples=False) as made:
        made.domain("d.prio")
        made.domain("d.fan", "fanout", app_ids=("a", "b"))
        yield made
