"""A browser for tests: Chromium of the system, driven by playwright-core through a child process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(os.environ.get("BMQ_BROWSER", ROOT / ".venv" / "browser"))


class BrowserError(Exception):
    """What the browser could not do."""


def missing() -> str:
    """What must be installed before a browser can be driven; empty = nothing."""
    if not shutil.which("node"):
        return "Node.js is needed to drive the browser: apt-get install nodejs npm"
    if not (MODULES / "node_modules" / "playwright-core").is_dir():
        return f"playwright-core is not in {MODULES}: run `make browser`"
    if not executable():
        return "Chromium is needed: apt-get install chromium"
    return ""


def executable() -> str:
    """The browser of the system; empty = there is none."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), "")


class Chromium:
    """One browser."""

    def __init__(self) -> None:
        if missing():
            raise BrowserError(missing())
        self._child = subprocess.Popen(
            ["node", str(Path(__file__).with_name("driver.mjs")), str(MODULES), executable()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def send(self, order: dict[str, Any]) -> Any:
        """Ask for one thing, and wait for the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order) + "\n")
        self._child.stdin.flush()
        return self._answer().get("result")

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise BrowserError("the browser ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BrowserError(answer["error"])
        return answer

    def open(self, width: int = 1280, height: int = 900, **options: Any) -> Tab:
        """A page in a context of its own; options are those of Playwright's newContext."""
        return Tab(
            self,
            self.send(
                {
                    "open": {
                        "viewport": {"width": width, "height": height},
                        "reducedMotion": "reduce",
                        "timezoneId": "Europe/Berlin",
                        **options,
                    }
                }
            ),
        )

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Tab:
    """Playwright's Page with its own names: tab.click("#x"), tab.keyboard.press("Tab"), tab.evaluate("() => 1")."""

    def __init__(self, browser: Chromium, number: int) -> None:
        self._browser, self._number = browser, number

    def __getattr__(self, name: str) -> Method:
        return Method(self._browser, self._number, [name])

    def texts(self, selector: str) -> list[str]:
        """The text of each element, its white space as one blank."""
        found: list[str] = self.evaluate(
            "(selector) => [...document.querySelectorAll(selector)]"
            ".map((one) => one.textContent.replace(/\\s+/g, ' ').trim())",
            selector,
        )
        return found

    def until(self, function: str, argument: Any = None) -> None:
        """Wait until this JavaScript function says true."""
        self.waitForFunction(function, argument)

    def until_text(self, selector: str, text: str) -> None:
        """Wait until an element that the selector finds has this text in it."""
        self.until(
            "([selector, text]) => [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))",
            [selector, text],
        )

    def visit(self, url: str) -> None:
        """Load the page and wait until it lives."""
        self.goto(url)
        self.until("() => document.body.dataset.ready === '1' && document.body.dataset.live === 'live'")

    def axe(self) -> list[dict[str, Any]]:
        """What axe finds wrong."""
        found: list[dict[str, Any]] = self._browser.send({"axe": self._number})
        return found

    def problems(self) -> list[str]:
        """Errors and warnings of the browser's console since the last call."""
        found: list[str] = self._browser.send({"problems": self._number})
        return found

    def end(self) -> None:
        """Close it."""
        self._browser.send({"close": self._number})


class Method:
    """A method of the page, or of something in it."""

    def __init__(self, browser: Chromium, number: int, path: list[str]) -> None:
        self._browser, self._number, self._path = browser, number, path

    def __getattr__(self, name: str) -> Method:
        return Method(self._browser, self._number, [*self._path, name])

    def __call__(self, *args: Any) -> Any:
        return self._browser.send({"page": self._number, "call": self._path, "args": list(args)})
