"""Test of the Spark jobs on a standalone Spark cluster of this machine: a master and two workers.

    python -m bench.spark_cluster [--messages 2000]

Ships this package as a zip (to tasks by --py-files, to the driver by PYTHONPATH), runs bench/spark_job.py on the cluster and
with local[2], and prints as JSON the executors of each part and whether the results are equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bmqtwist.spark.local import check_java, package
from bmqtwist.testing.process import BrokerProcess, free_port

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "bmqtwist.zip"
_UP_SECONDS_MAX = 90.0
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@contextlib.contextmanager
def cluster(root: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a master and two workers with one core each; yield the URL of the master."""
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    port, processes = free_port(), list[subprocess.Popen[bytes]]()
    url = f"spark://127.0.0.1:{port}"

    def start(name: str, *arguments: str) -> None:
        with open(root / f"{name}.log", "wb") as log:
            processes.append(subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log, cwd=root))

    def expect(name: str, text: str) -> None:
        until = time.monotonic() + _UP_SECONDS_MAX
        while text not in (root / f"{name}.log").read_text(errors="replace"):
            if time.monotonic() > until or processes[-1].poll() is not None:
                raise RuntimeError((root / f"{name}.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    try:
        start("master", _MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        expect("master", "New state: ALIVE")
        for number in (1, 2):  # separate hosts for Spark: it retries a task on another host
            start(f"worker{number}", _WORKER, "--host", f"127.0.0.{number}", "--cores", "1", "--memory", "1g",
                  "--webui-port", str(free_port()), "--work-dir", str(root / f"work{number}"), url)
        for number in (1, 2):
            expect(f"worker{number}", "Successfully registered with master")
        yield url
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def submit(master: str, root: Path, environment: dict[str, str], *arguments: str) -> dict[str, object]:
    """Run the job with spark-submit and return its result."""
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master, "--driver-memory", "1g",
               "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2",
               "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    if master.startswith("spark:"):
        command += ["--executor-memory", "512m", "--executor-cores", "1", "--total-executor-cores", "2",
                    "--conf", "spark.speculation=true", "--conf", "spark.speculation.interval=100ms",
                    "--conf", "spark.speculation.multiplier=2", "--conf", "spark.speculation.quantile=0.5",
                    "--conf", "spark.scheduler.minRegisteredResourcesRatio=1",
                    "--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=10", "--py-files", str(root / PACKAGE)]
    ended = subprocess.run([*command, str(ROOT / "bench" / "spark_job.py"), *arguments], env=environment, cwd=root,
                           capture_output=True, text=True, timeout=600, check=False)
    results = re.findall(r"^RESULT (.*)$", ended.stdout, re.MULTILINE)
    if ended.returncode or not results:
        raise RuntimeError(f"the job on {master} has failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    found: dict[str, object] = json.loads(results[-1])
    return found


def run(messages: int) -> dict[str, object]:
    """Run the job on the cluster and locally, and return the comparison."""
    check_java()
    with tempfile.TemporaryDirectory(prefix="bmq-spark-cluster-") as name:
        root = Path(name)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
                       "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(package(root / PACKAGE))}
        with BrokerProcess(root / "broker", samples=False) as broker:
            broker.domain("spark")
            began = time.monotonic()
            # without PYTHONPATH, so that tasks use the shipped package
            bare = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
            with cluster(root, bare) as url:
                up = time.monotonic() - began
                on_cluster = submit(url, root, environment, broker.url, str(root / "on_cluster"), str(messages),
                               str(ROOT / "tests" / "vectors" / "storage-recorded" / "rollover" / "n1"))
            locally = submit("local[2]", root, environment, broker.url, str(root / "locally"), str(messages),
                          str(ROOT / "tests" / "vectors" / "storage-recorded" / "rollover" / "n1"))
            twice = sum("Duplicate PUT message queue [bmq://spark/on_cluster-twice]" in line for line in broker.log())
    same = {name: on_cluster[name] == locally[name] for name in ("records", "messages", "posted", "each_once")}
    return {"cluster_start_s": round(up, 1), "executors": on_cluster["executors"], "same": same,
            "results": on_cluster["messages"],
            "attempts": on_cluster["attempts"], "each_once": on_cluster["each_once"], "duplicates_logged_by_broker": twice}


def main() -> int:
    """Run from the command line; return 1 if the results differ or only one worker took part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000, help="messages (default: %(default)s)")
    found = run(parser.parse_args().messages)
    print(json.dumps(found))
    executors = found["executors"]
    assert isinstance(executors, dict) and isinstance(found["same"], dict)
    good = all(found["same"].values()) and found["each_once"] and all(len(each) > 1 for each in executors.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
