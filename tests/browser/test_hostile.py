"""Markup in names and payloads of clients and other brokers is displayed as text on every page.

Escaping without a browser is tested in `unit/console/test_escaping.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from browser.chromium import Tab
from browser.conftest import FakeCluster
from browser.scripted import HOSTILE, HOSTILE_URI

WEB = Path(__file__).resolve().parents[2] / "web"
PAGES = [
    "/",
    "/partitions",
    "/queues",
    f"/queue?uri={quote(HOSTILE_URI, safe='')}",
    "/nodes",
    f"/node?name={quote('<b>n4</b>', safe='')}",
    "/elections",
    "/topology",
    "/clients",
    "/domains",
    "/storage",
    "/alarms",
    "/audit",
    f"/queues?filter={quote(HOSTILE, safe='')}",
]
MARKED = (
    "() => document.querySelectorAll('main img, main script, main b, dialog img, dialog script, [onerror],"
    " [style]:not(.spacer td)').length"
)


@pytest.mark.parametrize("path", PAGES)
def test_markup_in_names_is_displayed_as_text(tab: Tab, scenes: Callable[..., FakeCluster], path: str) -> None:
    tab.visit(scenes("hostile").url + path)
    tab.until("() => document.body.textContent.includes('onerror')")
    assert tab.evaluate(MARKED) == 0
    assert tab.title() != "owned"
    assert tab.problems() == []


def test_markup_in_a_message_is_displayed_as_text(tab: Tab, scenes: Callable[..., FakeCluster]) -> None:
    tab.visit(f"{scenes('hostile').url}/queue?uri={quote(HOSTILE_URI, safe='')}")
    tab.until_text("#messages", "50 messages")
    tab.click("#messages tbody button")
    tab.until_text("dialog pre", HOSTILE)
    assert tab.evaluate(MARKED) == 0
    assert tab.title() != "owned"
    assert tab.problems() == []


def test_no_script_uses_functions_that_parse_markup() -> None:
    for path in WEB.rglob("*.js"):
        for word in (
            "innerHTML =",
            "outerHTML =",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
        ):
            assert word not in path.read_text(encoding="utf-8"), f"{path.name} has {word}"


def test_no_page_has_an_inline_script_or_style() -> None:
    for path in (WEB.parent / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "style=" not in text and "<style" not in text and "onclick" not in text
        assert all("src=" in tag or "application/json" in tag for tag in text.split("<script")[1:])
