"""Files of the pages: templates, and what is served below /static/.

In a checkout they are in `templates/` and `web/` beside the package, in an installed package inside of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT, REPORT_BYTES_MAX = "report.html", 16 << 20
TYPES = {".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon",
         ".woff2": "font/woff2", ".json": "application/json", ".map": "application/json",
         ".txt": "text/plain; charset=utf-8",
         ".md": "text/plain; charset=utf-8", "": "text/plain; charset=utf-8"}


def folder(name: str) -> Path:
    """`templates` or `web`."""
    inside = HERE / name
    return inside if inside.is_dir() else HERE.parent.parent / name


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it is sent. `tag`: changes with its content."""

    content: bytes
    content_type: str
    tag: str
    modified: int


class StaticFiles:
    """The files of one folder and those below. Names are looked up, never joined to a path."""

    def __init__(self, root: Path) -> None:
        self._paths = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*"))
                       if path.is_file() and path.suffix in TYPES and not any(
                           part.startswith((".", "__")) for part in path.relative_to(root).parts)}
        self._known: dict[str, StaticFile] = {}

    @property
    def names(self) -> list[str]:
        """All of them, with slashes."""
        return list(self._paths)

    def find(self, name: str) -> StaticFile | None:
        """A file as it is now; None = there is none of that name."""
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
    """The page of `bmq pipeline report`; None = there is none, or it is longer than any that was made for people."""
    if not directory:
        return None
    try:
        path = Path(directory) / REPORT
        return path.read_bytes() if path.stat().st_size <= REPORT_BYTES_MAX else None
    except OSError:
        return None
