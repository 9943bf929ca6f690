"""Generator of the API reference, docs/api/*.md, from the docstrings: python docs/make_api.py

The pages are not in the repository: `make docs` and the build of a source distribution write them.

The sources are parsed, not imported, so optional packages need not be there. A name that a module only imports is documented
where it is named in `__all__`. Comments behind members of dataclasses and enumerations are their description. `make docs`
and `setup.py` (source distribution) call it; pages that also have hand-written text are changed by `make_pictures.py`,
`make_alarms.py` and `make_configuration.py`.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "docs" / "api"
# One page a module, in the order of the index; with the names it documents, where those are not all that are public.
PAGES: dict[str, tuple[str, ...]] = {
    "sdk": (), "sdk.aio": (), "sdk.tx": (), "sdk.simple": (), "sdk.rpc": (), "sdk.blazingmq": (),
    "sdk.counters": ("Counters",), "sdk.tracing": (), "sdk.prometheus": ("Collector",),
    "testing": (), "testing.plugin": ("bmq_broker", "bmq_process", "bmq_url"),
    "kombu": ("LinkLost", "Refused"),  # its classes have kombu's own methods
}
# Between a front and its core: there because of Python's visibility, not for applications. So is what a base of ours
# leaves abstract.
MACHINERY = {"PostGroup", "Session.run", "apply_to", "core", "effective", "fire_all", "report_on_stop", "token", "wait_in"}
# Never made by applications.
GIVEN = {"Ack", "Message", "MessageHandle", "Opening", "PostRefused", "PostsFailed", "Queue", "SessionEvent"}
MACHINERY_SAYS = ("Called by ", "From the ", "From a ")
WIDTH = 100  # signatures longer than that have one argument a line
NOTE = "<!-- Made by docs/make_api.py from the docstrings; do not edit. -->\n\n"

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One parsed source: its definitions, and from where it imports which name."""

    name: str
    tree: ast.Module
    comments: dict[int, str]
    definitions: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]


def source_of(name: str) -> Path | None:
    """The file of a module below bmqtwist, if there is one."""
    base = ROOT.joinpath("bmqtwist", *name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@cache
def module(name: str) -> Module | None:
    """Parse `sdk.aio` and the like."""
    path = source_of(name)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT and token.line.lstrip()[:1] != "#"}
    found = Module(name, tree, comments, {}, {})
    for node in tree.body:
        if isinstance(node, Definition):
            found.definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.definitions[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.definitions[node.target.id] = node
    for inner in ast.walk(tree):  # below `try` and `if TYPE_CHECKING`, too
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("bmqtwist."):
            for alias in inner.names:
                where = (inner.module or "").removeprefix("bmqtwist.")
                found.imported[alias.asname or alias.name] = where, alias.name
    return found


def find(name: str, symbol: str) -> tuple[Module, ast.stmt] | None:
    """Where a name is defined that a module has or imports; None if that is no definition of ours."""
    here = module(name)
    if here is None:
        return None
    if symbol in here.definitions:
        return here, here.definitions[symbol]
    where, original = here.imported.get(symbol, ("", ""))
    return find(where, original) if where and where != name else None


def submodule(name: str, symbol: str) -> str:
    """The module that a name of a package stands for, or nothing."""
    inner = f"{name}.{symbol}"
    return inner if source_of(inner) is not None and find(name, symbol) is None else ""


def names(name: str) -> Iterator[tuple[str, Module, ast.stmt]]:
    """The names on a page, with the names of exported modules: (name as written, where it is defined, its definition)."""
    here = module(name)
    assert here is not None, name
    for symbol in exported(here):
        inner = submodule(name, symbol)
        if inner:
            yield from ((f"{symbol}.{below}", where, node) for below, where, node in names(inner))
        elif symbol not in MACHINERY and (found := find(name, symbol)) is not None:
            yield symbol, *found


def exported(here: Module) -> list[str]:
    """The public names of a module: those chosen above, `__all__`, or what it defines without underscore."""
    if PAGES.get(here.name):
        return list(PAGES[here.name])
    listed = here.definitions.get("__all__")
    if isinstance(listed, ast.Assign):
        return [str(name) for name in ast.literal_eval(listed.value)]
    return [name for name, node in here.definitions.items() if name[:1] != "_" and isinstance(node, Definition)]


def bases(here: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Classes of ours that this one is derived from, the farthest first."""
    for base in reversed(node.bases):
        base = base.value if isinstance(base, ast.Subscript) else base
        inherited = find(here.name, base.id) if isinstance(base, ast.Name) else None
        if inherited is not None and isinstance(inherited[1], ast.ClassDef):
            yield from bases(inherited[0], inherited[1])
            yield inherited[0], inherited[1]


def members(here: Module, node: ast.ClassDef) -> dict[str, tuple[Module, ast.stmt]]:
    """Public methods, those of bases of ours included; one without a docstring has that of the base."""
    found: dict[str, tuple[Module, ast.stmt]] = {}
    hidden = set(MACHINERY)
    for where, each in [*bases(here, node), (here, node)]:
        for inner in each.body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                former = found.pop(inner.name, None)
                if former is not None and not doc(inner) and doc(former[1]):
                    inner.body.insert(0, former[1].body[0])  # type: ignore[attr-defined]
                found[inner.name] = where, inner
                if each is not node and "abstractmethod" in decorators(inner):
                    hidden.add(inner.name)
    return {name: each for name, each in found.items()
            if name == "__init__" or name[:1] != "_" and name not in hidden and f"{node.name}.{name}" not in hidden
            and not (doc(each[1]) or "").startswith(MACHINERY_SAYS)}


def doc(node: ast.stmt | ast.Module) -> str | None:
    """The docstring."""
    if isinstance(node, ast.Module):
        return (ast.get_docstring(node, clean=False) or "").strip()
    return ast.get_docstring(node) if isinstance(node, Definition) else None


def decorators(node: ast.stmt) -> set[str]:
    """Names of the decorators, without their arguments."""
    found = getattr(node, "decorator_list", [])
    return {ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2] for each in found}


def signature(here: Module, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, method: bool) -> str:
    """How it is called."""
    parts = list(_arguments(here, node.args))
    if method and "staticmethod" not in decorators(node):
        parts = parts[2 if parts[1:2] == ["/"] else 1:]
    head = ("await " if isinstance(node, ast.AsyncFunctionDef) else "") + name
    tail = f" -> {ast.unparse(node.returns)}" if node.returns and name.rpartition(".")[2] == node.name else ""
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    return f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"


def _arguments(here: Module, arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (each, default) in enumerate(zip(plain, defaults, strict=True), 1):
        yield _argument(here, each, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield "*" + _argument(here, arguments.vararg, None)
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(here, each, default)
    if arguments.kwarg:
        yield "**" + _argument(here, arguments.kwarg, None)


def _argument(here: Module, each: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(each.annotation)}" if each.annotation else ""
    value = "" if default is None else f"{' = ' if kind else '='}{constant(here, default)}"
    return f"{each.arg}{kind}{value}"


def constant(here: Module, value: ast.expr) -> str:
    """A default as it is written; that of a public constant's name is its value."""
    if isinstance(value, ast.Name) and value.id[:1] != "_":
        found = find(here.name, value.id)
        if found is not None and isinstance(found[1], ast.Assign):
            return constant(found[0], found[1].value)
    return "..." if isinstance(value, ast.Name) and value.id[:1] == "_" else ast.unparse(value)


def fenced(text: str) -> str:
    """A signature."""
    return f"```python\n{text}\n```\n\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table, without columns at its end that are empty."""
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ("---",) * len(head), *escaped]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def values(here: Module, node: ast.ClassDef) -> str:
    """Members of an enumeration, or fields of a dataclass."""
    rows: list[tuple[str, ...]] = []
    if any("Enum" in ast.unparse(base) or ast.unparse(base) == "IntFlag" for base in node.bases):
        for each in node.body:
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                rows.append((f"`{each.targets[0].id}`", f"`{ast.unparse(each.value)}`",
                             here.comments.get(each.lineno, "")))
        if any("." in value for _, value, _ in rows):  # computed from something else
            rows = [(name, meaning) for name, _, meaning in rows]
            return table(("member", "meaning"), rows)
        return table(("member", "value", "meaning"), rows) if rows else ""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[:1] != "_":
            if each.target.id in MACHINERY:
                continue
            default = _default(here, each.value) if each.value is not None else ""
            rows.append((f"`{each.target.id}`", f"`{ast.unparse(each.annotation)}`", default,
                         here.comments.get(each.lineno, "")))
    return table(("attribute", "type", "default", "meaning"), rows) if rows else ""


def _default(here: Module, value: ast.expr) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {each.arg: each.value for each in value.keywords}
        return f"`{constant(here, given['default'])}`" if "default" in given else ""
    return f"`{constant(here, value)}`"


def render(here: Module, node: ast.stmt, name: str) -> str:
    """One entry of a page."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"## {name}\n\n" + fenced(signature(here, node, name, False)) + f"{doc(node) or ''}\n\n"
    if not isinstance(node, ast.ClassDef):
        value = getattr(node, "value", None)
        return f"## {name}\n\n" + fenced(f"{name} = {ast.unparse(value) if value else ''}")
    text = f"## class {name}\n\n"
    shown = [base for each in node.bases if (base := ast.unparse(each)).partition("[")[0] in exported(here)
             or isinstance(each, ast.Name) and base[-8:] != "Protocol" and find(here.name, base) is None]
    if shown:
        text += f"A kind of {', '.join(f'`{base}`' for base in shown)}.\n\n"
    found = members(here, node)
    made = found.pop("__init__", None)
    if name not in GIVEN and made is not None and isinstance(made[1], ast.FunctionDef):
        text += fenced(signature(made[0], made[1], name, True))
    text += f"{doc(node) or ''}\n\n" + values(here, node)
    for member, (where, each) in found.items():
        assert isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        said = doc(each) or ""
        if decorators(each) & {"property", "cached_property"}:
            kind = f": {ast.unparse(each.returns)}" if each.returns else ""
            text += f"### {name}.{member}\n\n" + fenced(member + kind) + f"{said}\n\n"
        elif not decorators(each) & {"setter", "overload"}:
            text += f"### {name}.{member}\n\n" + fenced(signature(where, each, member, True)) + f"{said}\n\n"
    return text


def page(name: str) -> str:
    """The page of a module."""
    here = module(name)
    assert here is not None, name
    text = NOTE + f"# bmqtwist.{name}\n\n{doc(here.tree) or ''}\n\n"
    for symbol, where, node in names(name):
        text += render(where, node, symbol)
    return text.rstrip() + "\n"


def index() -> str:
    """The page that lists the others."""
    rows: list[tuple[str, ...]] = []
    for name in present():
        here = module(name)
        assert here is not None
        first = inspect.cleandoc(doc(here.tree) or "").partition("\n\n")[0].replace("\n", " ")
        rows.append((f"[`bmqtwist.{name}`]({name}.md)", first))
    return (NOTE + "# API reference\n\nThe public names of the client library and the test kit; [the guide](../guide.md) "
            "explains their use. All "
            "other names are\ninternal.\n\n" + table(("module", "purpose"), rows))


def present() -> list[str]:
    """The modules that have a page."""
    return [name for name in PAGES if module(name) is not None]


def pages() -> dict[str, str]:
    """All pages by file name."""
    return {"README.md": index()} | {f"{name}.md": page(name) for name in present()}


def undocumented() -> list[str]:
    """Public names without a docstring."""
    silent = []
    for name in present():
        here = module(name)
        assert here is not None
        silent += [] if doc(here.tree) else [name]
        for symbol, where, node in names(name):
            if isinstance(node, Definition) and not doc(node):
                silent.append(f"{name}.{symbol}")
            if isinstance(node, ast.ClassDef):
                silent += [f"{name}.{symbol}.{member}" for member, (_, each) in members(where, node).items()
                           if member != "__init__" and not doc(each)]
    return silent


def main() -> None:
    """Write changed pages, and delete pages without a module."""
    API.mkdir(exist_ok=True)
    made = pages()
    for path in API.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        path = API / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/api/{name}")


if __name__ == "__main__":
    main()
