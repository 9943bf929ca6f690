"""Metadata is in setup.cfg. BMQTWIST_COMPILE builds the hot modules as C extensions (mypyc, a C compiler needed); it is the
level of optimization: 1 takes two minutes, 3 takes five and gives code that is some per cent faster. BMQTWIST_PROFILE is for
`.ci/compile`: `write`, the broker writes a profile of itself beside the objects; `read`, it is optimized for what is there.

The console's `templates/` and `web/` are installed inside of its package. A mapping of packages to directories would do
that, too, but then an editable install is no path any more, and twistd finds no plugins in it.

A source distribution has the API reference, which `docs/make_api.py` writes from the docstrings.

Spark finds data sources in modules at the top that are named `pyspark_*`: those of `bmqtwist/spark/discovery` are installed
there, too. (In an editable install `bmqtwist.spark.register(spark)` does the same.)
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
    """Copies what the console's pages need, and what Spark looks for."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            for name in CONSOLE_FOLDERS:
                shutil.copytree(HERE / name, Path(self.build_lib) / "bmqtwist" / "console" / name, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns(".*", "__pycache__"))
            for path in (HERE / "bmqtwist" / "spark" / "discovery").glob("pyspark_*.py"):
                shutil.copy(path, Path(self.build_lib))


class Metadata(egg_info):
    """What is compiled needs `librt`, no older than the one it was compiled with."""

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
    "storage/partition", "storage/replica", "storage/replay", "storage/recovery",
    "storage/fileset", "storage/files", "storage/history", "queue/counters", "queue/meter", "queue/window", "queue/queue",
    "queue/restored", "queue/root", "queue/relay", "queue/delivery", "queue/handles", "queue/domain", "loop/scheduler",
    "reactor/incoming", "link/batching", "link/outgoing", "link/outbox", "link/session", "link/states", "link/puts",
    "link/client", "link/receipts", "link/upstream_batch", "link/admin", "link/peer", "link/negotiation",
    "broker/storage_turn", "broker/deliveries", "broker/output", "broker/sessions", "broker/periodic_jobs", "broker/broker",
    "loop/loop", "reactor/performer",
    "reactor/epoll_round",
    "reactor/admission", "reactor/loop_lag", "reactor/disk_threads", "reactor/watchdog", "storage/psn",
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
        for extension in extensions:  # nobody outside calls its functions: it calls them itself without a detour
            extension.extra_compile_args += ["-fvisibility=hidden", "-fno-semantic-interposition"]
            profile = PROFILE[os.environ.get("BMQTWIST_PROFILE", "")]
            extension.extra_compile_args += profile
            extension.extra_link_args += profile[:1]

setup(ext_modules=extensions, cmdclass={"build_py": Build, "egg_info": Metadata, "sdist": SourceDistribution})
