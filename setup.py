"""Build of the distribution; its metadata is in setup.cfg.

BMQTWIST_COMPILE builds the hot modules as C extensions with mypyc and a C compiler. Its value is the level of optimization: 1 takes
two minutes, 3 takes five minutes and gives code that is a few per cent faster. BMQTWIST_PROFILE is for `.ci/compile`: with `write`
the broker writes a profile beside the objects, with `read` the compiler uses it.

The console's `templates/` and `web/` are installed in its package. They are copied, because with a mapping of packages to
directories an editable install would not be a path, and twistd would find no plugins in it.

A source distribution contains the API reference, which `docs/make_api.py` writes from the docstrings.

Spark finds data sources in top-level modules named `pyspark_*`: the modules of `bmqtwist/spark/discovery` are also installed
there. In an editable install, call `bmqtwist.spark.register(spark)` instead.
"""

import os
import runpy
import shutil
from importlib.metadata import version
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CONSOLE_FOLDERS = ("templates", "web")


class Build(build_py):
    """Adds the files of the console's pages and the modules for Spark."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            for name in CONSOLE_FOLDERS:
                shutil.copytree(HERE / name, Path(self.build_lib) / "bmqtwist" / "console" / name, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns(".*", "__pycache__"))
            for path in (HERE / "bmqtwist" / "spark" / "discovery").glob("pyspark_*.py"):
                shutil.copy(path, Path(self.build_lib))


class Metadata(egg_info):
    """Makes a compiled broker depend on `librt`, of the version it was compiled with or newer."""

    def finalize_options(self):
        if extensions:
            self.distribution.install_requires = [*self.distribution.install_requires, f"librt>={version('librt')}"]
        super().finalize_options()


class SourceDistribution(sdist):
    """Writes the API reference first, which is not in the repository."""

    def run(self):
        runpy.run_path(str(HERE / "docs" / "make_api.py"), run_name="__main__")
        super().run()


# A class and its subclasses: all of them or none.
HOT = [f"bmqtwist/{name}.py" for name in (
    "steps", "machine", "wire/fast", "wire/frames", "wire/walk", "wire/options", "storage/records", "storage/message",
    "storage/gate", "storage/long_dict", "storage/state", "storage/compaction", "storage/rollover",
    "storage/payloads", "storage/partition", "storage/replica", "storage/replay", "storage/recovery",
    "storage/fileset", "storage/files", "storage/guid_table", "storage/history", "queue/counters",
    "queue/meter", "queue/window", "queue/queue",
    "queue/restored_messages", "queue/root", "queue/relay", "queue/delivery", "queue/handles", "queue/domain", "loop/scheduler",
    "reactor/incoming", "link/batching", "link/outgoing", "link/data_lane", "link/outbox", "link/session", "link/states",
    "link/puts",
    "link/client", "link/receipts", "link/upstream_batch", "link/admin", "link/peer", "link/negotiation",
    "broker/storage_turn", "broker/deliveries", "broker/output", "broker/sessions", "broker/periodic_jobs", "broker/broker",
    "loop/loop", "reactor/performer",
    "reactor/epoll_round",
    "reactor/admission", "reactor/loop_lag", "reactor/processor_time", "reactor/disk_threads", "reactor/watchdog",
    "storage/psn",
    "storage/availability", "storage/partition_log", "storage/room", "storage/queue_records", "broker/batching",
    "cluster/partition_events",
    "cluster/partition_standing", "cluster/replication_targets", "cluster/partition_reception", "cluster/take_over",
    "cluster/partition_machine", "cluster/write_times", "cluster/active_primaries",
    "storage/exchange", "member/replication", "member/partition_runner",
    "member/partition_logs", "member/promises", "peers/links", "member/leadership",
    "member/dispatch", "relay/upstream_queue", "relay/relays", "relay/messages", "member/member_relays",
    "member/cluster", "member/queue_changes", "member/handovers", "wire/ber", "wire/control")]

PROFILE = {"": [], "write": ["-fprofile-generate"],
           "read": ["-fprofile-use", "-fprofile-partial-training", "-fprofile-correction", "-Wno-missing-profile"]}

extensions = []
if level := os.environ.get("BMQTWIST_COMPILE", "").strip("0"):
    from mypyc.build import mypycify

    extensions = mypycify(["--ignore-missing-imports", *HOT], opt_level=level, debug_level="0")
    if os.name == "posix":
        for extension in extensions:  # its functions are called only from within: direct calls
            extension.extra_compile_args += ["-fvisibility=hidden", "-fno-semantic-interposition"]
            profile = PROFILE[os.environ.get("BMQTWIST_PROFILE", "")]
            extension.extra_compile_args += profile
            extension.extra_link_args += profile[:1]

setup(ext_modules=extensions, cmdclass={"build_py": Build, "egg_info": Metadata, "sdist": SourceDistribution})
