"""Accessibility of every page: axe in both themes, keyboard navigation, layout at widths from 360 to 1920 pixels.

Values and actions of pages are tested in `test_pages.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from browser.chromium import Chromium, Tab
from browser.conftest import FakeCluster

Clusters = Callable[..., FakeCluster]
PAGES = [
    "/",
    "/partitions",
    "/queues",
    "/queue?uri=bmq%3A%2F%2Fbmq.test%2Fqueue-1",
    "/nodes",
    "/node?name=n1",
    "/elections",
    "/topology",
    "/clients",
    "/domains?name=bmq.test",
    "/storage",
    "/alarms",
    "/audit",
]
# Pairs of elements with text of their own whose boxes overlap by more than 2 pixels, though neither holds the other.
OVERLAPS = """() => {
  const visible = (one) => one.checkVisibility() && !one.closest('.visually-hidden, .skip, option, #toasts');
  const own = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const clipped = (one, box) => {
    for (let parent = one.parentElement; parent; parent = parent.parentElement) {
      if (getComputedStyle(parent).overflow === 'visible') continue;
      const outer = parent.getBoundingClientRect();
      box = { left: Math.max(box.left, outer.left), right: Math.min(box.right, outer.right),
        top: Math.max(box.top, outer.top), bottom: Math.min(box.bottom, outer.bottom) };
    }
    return box;
  };
  const sticky = (one) => one.closest('thead, .top, nav');
  const column = (one) => { // covers the columns below it
    const cell = one.closest('.actions');
    return cell !== null && getComputedStyle(cell).position === 'sticky';
  };
  const all = [...document.querySelectorAll('body *')]
    .filter((one) => visible(one) && (own(one) || ['INPUT', 'SELECT', 'BUTTON'].includes(one.tagName)))
    .map((one) => [one, clipped(one, one.getBoundingClientRect())])
    .filter(([, box]) => box.right - box.left > 1 && box.bottom - box.top > 1);
  const found = [];
  for (let i = 0; i < all.length; i++) for (let j = i + 1; j < all.length; j++) {
    const [[a, p], [b, q]] = [all[i], all[j]];
    if (a.contains(b) || b.contains(a) || Boolean(sticky(a)) !== Boolean(sticky(b)) || column(a) !== column(b)) continue;
    if (a.closest('svg') || b.closest('svg')) continue;
    const width = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const height = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (width > 2 && height > 2) {
      found.push(`${a.tagName} "${a.textContent.slice(0, 40)}" and ${b.tagName} "${b.textContent.slice(0, 40)}"`);
    }
  }
  return found.slice(0, 10);
}"""
EXCESS_WIDTH = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def visit_filled(tab: Tab, url: str) -> None:
    """Load the page and wait for its first rows."""
    tab.visit(url)
    tab.until(
        "() => document.querySelectorAll('main tbody tr').length > 0"
        " || document.querySelector('main .empty-state:not([hidden])') || document.querySelector('main .empty')"
    )


THEMES = ("light", "dark")
WIDTHS = (360, 800, 1280, 1920)
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


@pytest.mark.parametrize("scene", ["good", "bad"])
def test_axe_reports_no_violation_on_any_page_in_both_themes(tab: Tab, scenes: Clusters, scene: str) -> None:
    found: dict[str, Any] = {}
    for path in (*PAGES, "/login"):
        if path == "/login":
            tab.goto(scenes(scene).url + path)
        else:
            visit_filled(tab, scenes(scene).url + path)
        for theme in THEMES:
            tab.emulateMedia({"colorScheme": theme})
            assert tab.evaluate("(theme) => matchMedia(`(prefers-color-scheme: ${theme})`).matches", theme)
            if violations := tab.axe():
                found[f"{path} {theme}"] = violations
    assert not found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_reports_no_violation_in_dialogs_and_the_palette(chromium: Chromium, scenes: Clusters, theme: str) -> None:
    tab = chromium.open(colorScheme=theme)
    try:
        visit_filled(tab, f"{scenes('good').url}/node?name=n2&stop=1")
        tab.until_text("dialog h2", "Stop n2 gracefully")
        tab.click("dialog button[type=submit]")
        assert tab.axe() == []
        tab.keyboard.press("Escape")
        tab.keyboard.press("Control+k")
        tab.until_text("dialog li", "Overview")
        assert tab.axe() == []
    finally:
        tab.end()


@pytest.mark.parametrize("scene", ["bad", "hostile"])
def test_no_texts_overlap_and_no_page_scrolls_sideways_at_any_width(tab: Tab, scenes: Clusters, scene: str) -> None:
    found: dict[str, Any] = {}
    for path in PAGES:
        visit_filled(tab, scenes(scene).url + path)
        for width in WIDTHS:
            tab.setViewportSize({"width": width, "height": 900})
            tab.evaluate(DRAWN)
            if overlaps := tab.evaluate(OVERLAPS):
                found[f"{path} {width}"] = overlaps
            if (wider := tab.evaluate(EXCESS_WIDTH)) > 0:
                found[f"{path} {width} wider"] = wider
    assert not found


@pytest.mark.parametrize("path", PAGES)
def test_the_tab_key_reaches_every_control_of_a_page(tab: Tab, scenes: Clusters, path: str) -> None:
    """Tab reaches each control; each shows its focus and has a name; after the last one the focus leaves the page."""
    visit_filled(tab, scenes("bad").url + path)
    wanted = tab.evaluate(
        "() => { const wanted = 'a[href], button:not(:disabled), input, select, textarea, summary';"
        " const all = [...document.querySelectorAll(wanted)].filter((one) => one.checkVisibility() && one.tabIndex >= 0);"
        " all.forEach((one, n) => { one.dataset.n = n; });"
        " return all.length; }"
    )
    seen: set[str] = set()
    for _ in range(4 * wanted + 60):
        tab.keyboard.press("Tab")
        focus = tab.evaluate(
            "() => { const one = document.activeElement; const style = getComputedStyle(one);"
            " return [one.tagName, one.dataset.n ?? '',"
            " style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1,"
            " (one.ariaLabel || one.textContent || one.labels?.[0]?.textContent || '').trim() !== '']; }"
        )
        if focus[0] == "BODY":
            break
        assert focus[2], f"{focus[0]} {focus[1]} shows no focus"
        assert focus[3], f"{focus[0]} {focus[1]} has no name"
        seen.add(focus[1])
    assert len(seen - {""}) >= wanted * 0.95, f"{len(seen - {''})} of {wanted} were reached"


def test_the_skip_link_the_palette_and_a_stop_work_with_the_keyboard(tab: Tab, clusters: Clusters) -> None:
    cluster = clusters("good")
    tab.visit(f"{cluster.url}/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("() => document.activeElement.textContent") == "Skip to content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("() => document.activeElement.id") == "page"
    tab.keyboard.press("Control+k")
    tab.keyboard.type("stop n2")
    tab.until_text("dialog [aria-selected=true]", "Stop n2 gracefully")
    tab.keyboard.press("Enter")
    tab.until_text("dialog h2", "Stop n2 gracefully")
    assert tab.evaluate("() => document.activeElement.closest('dialog') !== null")
    for text in ("new kernel", "0", "n2"):  # reason, delay, name of the node
        tab.until("() => document.activeElement.tagName === 'INPUT'")
        tab.keyboard.press("Control+a")
        tab.keyboard.type(text)
        tab.keyboard.press("Tab")
    assert tab.evaluate("() => document.activeElement.textContent") == "Cancel"
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.until_text("#stop-report", "Duration3 s")


def test_the_palette_finds_queues_by_a_part_of_their_name(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/partitions")
    tab.keyboard.press("Control+k")
    tab.keyboard.type("queue-39")
    tab.until_text("dialog li", "Find queues matching “queue-39”")
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    tab.until("() => location.pathname === '/queues' && location.search === '?filter=queue-39'")
    tab.until_text("#total", "1 queue matching “queue-39”")


def test_closing_a_dialog_returns_the_focus_to_its_button(tab: Tab, scenes: Clusters) -> None:
    visit_filled(tab, f"{scenes('good').url}/partitions")
    tab.focus("#grid tbody button")
    tab.keyboard.press("Enter")
    tab.until("() => document.querySelector('dialog')")
    tab.keyboard.press("Escape")
    tab.until("() => document.activeElement.textContent === 'Move …'")


def test_no_element_is_animated_if_the_user_prefers_reduced_motion(tab: Tab, scenes: Clusters) -> None:
    tab.visit(f"{scenes('good').url}/")
    moving = tab.evaluate(
        "() => [...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).transitionDuration !== '0s'"
        " || getComputedStyle(one).animationName !== 'none').length"
    )
    assert moving == 0
