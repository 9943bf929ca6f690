"""The shells of the pages: templates, what each of them is given, and the headers that every answer has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from bmqtwist import __version__
from bmqtwist.console.access import OPEN_NONCE, Who, origin_of

# path -> name of the page and of its template
PAGES = {"/": "overview", "/shards": "shards", "/queues": "queues", "/queue": "queue", "/nodes": "nodes", "/node": "node",
         "/elections": "elections", "/topology": "topology", "/clients": "clients",
         "/domains": "domains", "/storage": "storage", "/alarms": "alarms", "/audit": "audit"}
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
           "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
           "Permissions-Policy": "camera=(), geolocation=(), microphone=()"}
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"  # of what is no page
# Of the report of bmqtwist.spark: styles and pictures are inside of it, and it needs nothing else.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"


def page_policy(others: Iterable[str]) -> str:
    """The Content-Security-Policy of a page, which goes on with the consoles at `others` when this node is gone."""
    origins = sorted({origin for url in others if (origin := _source(url))})
    sources = " ".join([each for origin in origins for each in (origin, "ws" + origin.removeprefix("http"))])
    return ("default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; img-src 'self' data:; "
            f"object-src 'none'; connect-src 'self'{' ' if sources else ''}{sources}")


def _source(url: str) -> str:
    """An origin that can stand in a policy; "" = it cannot."""
    origin = origin_of(url)
    return origin if origin.startswith("http") and not set(origin) & set(" ;,'\"\\") and origin.isascii() else ""


@dataclass(frozen=True, slots=True)
class Shell:
    """What a page is given. `data`: JSON that can stand in a script; `notice`: told on each page."""

    page: str
    prefix: str
    csrf: str = ""
    who: Who | None = None
    notice: str = ""
    cluster_name: str = ""
    data: str = "null"
    next: str = ""
    error: str = ""
    title: str = ""
    text: str = ""


class PageWriter:
    """Fills templates; every value is escaped."""

    def __init__(self, folder: Path, report: bool = False) -> None:
        self._environment = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True,
                                        lstrip_blocks=True)
        self._environment.globals["report"] = report  # is there a link to one?

    def write(self, shell: Shell) -> str:
        """The text of a page."""
        who = shell.who
        logged_in = who is not None and who.nonce != OPEN_NONCE
        return self._environment.get_template(f"{shell.page}.html").render(
            page=shell.page, prefix=shell.prefix, csrf=shell.csrf, user=who.user if who is not None and logged_in else "",
            role=who.role.word if who is not None else "", notice=shell.notice, cluster_name=shell.cluster_name,
            data=shell.data, next=shell.next, error=shell.error, title=shell.title, text=shell.text, version=__version__)
