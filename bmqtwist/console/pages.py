"""Pages and static files of the console: templates, files below /static/, headers of every answer.

In a checkout the files are in `templates/` and `web/` next to the package, in an installed package inside it. Called by
`server.py`; the API is in `operation.py`. Scripts of a page are in `web/pages/`, its documents are the topics of
`topics.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from msgspec import Struct

from bmqtwist import __version__
from bmqtwist.console.access import OPEN_NONCE, Caller, origin_of

# path -> name of the page and its template
PAGES = {"/": "overview", "/partitions": "partitions", "/queues": "queues", "/queue": "queue", "/nodes": "nodes",
         "/node": "node", "/elections": "elections", "/topology": "topology", "/clients": "clients",
         "/domains": "domains", "/storage": "storage", "/alarms": "alarms", "/audit": "audit"}
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
           "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
           "Permissions-Policy": "camera=(), geolocation=(), microphone=()"}
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"  # of all answers except pages
# Of the report of bmqtwist.spark, which contains its styles and pictures.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
HERE = Path(__file__).resolve().parent
REPORT, REPORT_BYTES_MAX = "report.html", 16 << 20
TYPES = {".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon",
         ".woff2": "font/woff2", ".json": "application/json", ".map": "application/json",
         ".txt": "text/plain; charset=utf-8",
         ".md": "text/plain; charset=utf-8", "": "text/plain; charset=utf-8"}


def page_policy(others: Iterable[str]) -> str:
    """Return the Content-Security-Policy of a page. The page reconnects to the consoles at `others` when this node stops."""
    origins = sorted({origin for url in others if (origin := _source(url))})
    sources = " ".join([each for origin in origins for each in (origin, "ws" + origin.removeprefix("http"))])
    return ("default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; img-src 'self' data:; "
            f"object-src 'none'; connect-src 'self'{' ' if sources else ''}{sources}")


def _source(url: str) -> str:
    """Return the origin of a URL for a policy; "" = it is not valid there."""
    origin = origin_of(url)
    return origin if origin.startswith("http") and not set(origin) & set(" ;,'\"\\") and origin.isascii() else ""


class PageWriter:
    """Renders templates; every value is escaped."""

    def __init__(self, folder: Path, report: bool = False) -> None:
        self._environment = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True,
                                        lstrip_blocks=True)
        self._environment.globals["report"] = report  # whether pages link to one

    def write(self, page: str, prefix: str, caller: Caller | None = None, **values: str) -> str:
        """Return a page with the values of its template; `data`: JSON that is safe in a script."""
        logged_in = caller is not None and caller.nonce != OPEN_NONCE
        return self._environment.get_template(f"{page}.html").render(
            page=page, prefix=prefix, user=caller.user if caller is not None and logged_in else "",
            role=caller.role.label if caller is not None else "", version=__version__, **values)


def find_directory(name: str) -> Path:
    """Return the directory `templates` or `web`."""
    installed = HERE / name
    return installed if installed.is_dir() else HERE.parent.parent / name


class StaticFile(Struct, frozen=True):
    """Static file. `tag`: changes with the content."""

    content: bytes
    content_type: str
    tag: str
    modified: int


class StaticFiles:
    """Files of a directory tree. Names are looked up in a table, never joined to a path."""

    def __init__(self, root: Path) -> None:
        self._paths = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*"))
                       if path.is_file() and path.suffix in TYPES and not any(
                           part.startswith((".", "__")) for part in path.relative_to(root).parts)}
        self._known: dict[str, StaticFile] = {}

    def find(self, name: str) -> StaticFile | None:
        """Return the present content of a file; None = unknown name."""
        path = self._paths.get(name)
        if path is None:
            return None
        try:
            modified = path.stat().st_mtime_ns
            known = self._known.get(name)
            if known is None or known.modified != modified:
                content = path.read_bytes()
                known = self._known[name] = StaticFile(content, TYPES[path.suffix], f'"{sha256(content).hexdigest()[:24]}"',
                                                       modified)
        except OSError:
            return None
        return known


def read_report(directory: str) -> bytes | None:
    """Return the page of `bmq pipeline report`; None = there is none, or it is too long."""
    if not directory:
        return None
    try:
        path = Path(directory) / REPORT
        return path.read_bytes() if path.stat().st_size <= REPORT_BYTES_MAX else None
    except OSError:
        return None
