"""Rules of the source tree: layering, purity, docstrings, packaging and declared dependencies."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from kit.layers import MODULES, PACKAGE, RANKS, ROOT, circles, dotted, graph, imports, is_pure, rank, summary

CLIENT_MAY_IMPORT = ("sdk", "wire", "ids", "addresses", "dialing", "errors", "limits", "machine", "queue.expression",
                     "__version__")
FORBIDDEN_IN_PURE = ("twisted.internet.", "time.", "random.", "os.", "socket.", "klein.")


def tracked_files() -> list[str]:
    """Return the files under version control; without git, the whole tree."""
    try:
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts]
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def forbidden_imports(forbidden: Callable[[Path, str], bool], modules: Iterable[Path] = MODULES) -> list[str]:
    """Return the imports that a rule forbids, by module and imported name."""
    return [f"{path.relative_to(ROOT)}:{line}: imports {name}" for path in modules for line, name in imports(path)
            if forbidden(path, name)]


def is_of_higher_rank(path: Path, name: str) -> bool:
    """Return whether a module of a higher rank, or without a rank, is imported."""
    if not name.startswith("bmqtwist.") or name == "bmqtwist.__version__":
        return False
    own, imported = rank(dotted(path)), rank(name.removeprefix("bmqtwist."))
    return own is None or imported is None or imported > own


def test_a_module_imports_only_from_its_own_rank_or_below() -> None:
    """Layering keeps modules that decide testable without modules that perform effects."""
    assert forbidden_imports(is_of_higher_rank) == []


def test_imports_have_no_cycle() -> None:
    """Imports for type checkers are included: modules that import each other cannot be changed separately."""
    assert circles(graph()) == []


def test_every_package_has_a_rank() -> None:
    assert {dotted(path).split(".")[0] for path in MODULES} - {"", "__version__"} == RANKS.keys()


def test_the_client_library_does_not_import_the_broker() -> None:
    """An application that only posts does not load a broker."""
    library = [path for path in MODULES if dotted(path).startswith("sdk")]
    assert library and forbidden_imports(lambda _, name: name.startswith("bmqtwist.")
                                         and not name.removeprefix("bmqtwist.").startswith(CLIENT_MAY_IMPORT), library) == []


def test_a_pure_module_imports_no_clock_socket_file_or_reactor() -> None:
    """A pure module receives time, randomness and input as arguments."""
    pure = [path for path in MODULES if is_pure(dotted(path))]
    assert pure and forbidden_imports(lambda _, name: f"{name}.".startswith(FORBIDDEN_IN_PURE), pure) == []


def test_only_the_composition_root_imports_the_reactor() -> None:
    """All other modules receive the reactor as an argument."""
    assert forbidden_imports(lambda path, name: name == "twisted.internet.reactor" and dotted(path) != "tap") == []


def test_no_test_module_imports_another() -> None:
    """Test doubles and helpers that several test modules share are in tests/kit, or in a module beside them."""
    tests = list((ROOT / "tests").rglob("*.py"))
    assert len(tests) > 100
    assert forbidden_imports(lambda _, name: any(part.startswith("test_") for part in name.split(".")), tests) == []


def test_every_public_module_has_a_docstring() -> None:
    """Its first line names the module."""
    without_docstring = [dotted(p) for p in MODULES if not summary(p).docstring]
    assert not without_docstring


def test_the_plugin_directory_is_not_a_package() -> None:
    """An `__init__.py` there would hide the plugins of Twisted."""
    assert not list((ROOT / "twisted").rglob("__init__.py"))


def test_the_tree_has_no_reminders_stubs_or_machine_paths() -> None:
    """Reminders belong in the tracker; an absolute path works on one machine only."""
    reminder = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b|Not"
                          + "ImplementedError")
    machine = re.compile(r"(?<![\w.~])/(home/\w|wo" + r"rk/|Users/\w|root/)")
    found = []
    for name in tracked_files():
        if name.startswith("tests/vectors/") or name == "LICENSE":
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{number}: {line.strip()[:100]}" for number, line in enumerate(text.splitlines(), 1)
                              if reminder.search(line) or machine.search(line)]
    assert not found


def test_setup_cfg_lists_all_packages() -> None:
    """A package that setup.cfg does not list is missing in the wheel; a checkout does not show the error."""
    listed = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    packages = [".".join(p.parent.relative_to(ROOT).parts) for p in PACKAGE.rglob("__init__.py")]
    assert not [name for name in packages if not re.search(rf"^ +{re.escape(name)}$", listed, re.MULTILINE)]


# Import names of distributions that differ from their own; empty: a command, or a plug-in.
IMPORTED_AS = {"pyopenssl": "OpenSSL", "argon2-cffi": "argon2", "zope-interface": "zope",
               "opentelemetry-api": "opentelemetry", "codespell": "codespell_lib",
               "prometheus-client": "prometheus_client", "typing-extensions": "typing_extensions",
               "pytest-xdist": "xdist", "pytest-timeout": "", "mypy": "", "ruff": "", "pyright": "", "pip-audit": ""}
# Modules that require an extra; they are imported only by users of the extra.
NEEDS_EXTRA = {"kombu": "kombu", "spark": "spark", "cli.pipeline": "spark", "sdk.prometheus": "prometheus",
               "sdk.tracing": "tracing", "sdk.codecs": "pydantic", "testing.plugin": "test",
               "wire.fast": "compiled", "storage.records": "compiled", "compiled": "compiled"}
OTHER_FOLDERS = ("tests", "bench", "examples", "docs")
OWN_MODULES = {"bmqtwist", *OTHER_FOLDERS,
               *(each.stem for folder in OTHER_FOLDERS for each in (ROOT / folder).rglob("*.py")),
               *(each.parent.name for folder in OTHER_FOLDERS for each in (ROOT / folder).rglob("__init__.py"))}


def declared_libraries() -> dict[str, set[str]]:
    """Return extra ("" for the required libraries) -> import names of its distributions."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lists = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    return {extra: {IMPORTED_AS.get(name, name) for name in
                    (re.split(r"[^\w.-]", line)[0].lower().replace(".", "-") for line in listed.split("\n") if line)} - {""}
            for extra, listed in lists.items()}


def imported_libraries(path: Path) -> set[str]:
    """Return the top-level names of imported libraries outside the standard library and this tree."""
    asked_for = re.findall(r"_optional\(\"(\w+)\"", path.read_text(encoding="utf-8"))
    return {name.split(".")[0] for _, name in imports(path)} - OWN_MODULES - set(sys.stdlib_module_names) | set(asked_for)


def test_every_imported_library_is_declared() -> None:
    """A library that another library requires today may be absent tomorrow."""
    declared, missing = declared_libraries(), {}
    for path in MODULES:
        extras = next((extras for name, extras in NEEDS_EXTRA.items() if f"{dotted(path)}.".startswith(f"{name}.")), "")
        missing[dotted(path)] = imported_libraries(path) - declared[""].union(*(declared[extra] for extra in extras.split()))
    assert {name: libraries for name, libraries in missing.items() if libraries} == {}


# Required by decision for the console and the data pipeline, imported or not.
PLATFORM = {"autobahn", "jinja2", "treq", "pyspark"}
FLOORS = {"idna"}  # declared for the floor of a library that others require


def test_every_declared_library_is_imported() -> None:
    """An installation contains no unused library."""
    declared = {extra: libraries - PLATFORM - FLOORS for extra, libraries in declared_libraries().items()}
    package = set().union(*map(imported_libraries, MODULES))
    tree = package.union(*(imported_libraries(path) for folder in OTHER_FOLDERS
                           for path in (ROOT / folder).rglob("*.py")))
    assert not declared[""] - package
    assert not set().union(*declared.values()) - tree
    assert not tree - PLATFORM - FLOORS - set().union(*declared.values())


# Packages whose class names must be unique: the broker and its files. The client packages have their own namespace.
UNIQUE_PACKAGES = {"config", "wire", "storage", "queue", "cluster", "link", "security", "node", "monitor", "admin", "daemon",
                   "storagetool", "logs"}
DUPLICATES_ALLOWED: dict[str, str] = {}  # class name -> reason


def test_class_names_of_the_broker_are_unique() -> None:
    """A class name in a traceback identifies one class."""
    modules_by_name = defaultdict(list)
    for path in MODULES:
        if dotted(path).split(".")[0] in UNIQUE_PACKAGES:
            for name in summary(path).classes:
                modules_by_name[name].append(dotted(path))
    found = {name: modules for name, modules in modules_by_name.items() if len(modules) > 1}
    assert found.keys() == DUPLICATES_ALLOWED.keys(), found
    assert all(len(modules) == 2 for modules in found.values())
