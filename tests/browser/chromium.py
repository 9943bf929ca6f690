"""Browser for tests: the system's Chromium, driven by playwright-core in a child process (`driver.mjs`)."""

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
    """Error that Playwright or the driver reported."""


def missing_requirement() -> str:
    """Return what must be installed before a browser can be driven; empty = all is installed."""
    if not shutil.which("node"):
        return "Node.js is needed to drive the browser: apt-get install nodejs npm"
    if not (MODULES / "node_modules" / "playwright-core").is_dir():
        return f"playwright-core is not in {MODULES}: run `make browser`"
    if not executable():
        return "Chromium is needed: apt-get install chromium"
    return ""


def executable() -> str:
    """Return the path of the system's browser; empty = not installed."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), "")


class Chromium:
    """Browser process, controlled by JSON lines through the driver."""

    def __init__(self) -> None:
        if missing_requirement():
            raise BrowserError(missing_requirement())
        self._child = subprocess.Popen(
            ["node", str(Path(__file__).with_name("driver.mjs")), str(MODULES), executable()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def send(self, command: dict[str, Any]) -> Any:
        """Send a command to the driver and return its result. Raises BrowserError."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        return self._answer().get("result")

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise BrowserError("the driver has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BrowserError(answer["error"])
        return answer

    def open(self, width: int = 1280, height: int = 900, **options: Any) -> Tab:
        """Open a page in a new context; the options are those of Playwright's newContext."""
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
        """Close the browser; kill the driver if it does not end within 20 s."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Tab:
    """Page of the browser; methods of Playwright's Page are available by their names: tab.click("#x"),
    tab.keyboard.press("Tab"), tab.evaluate("() => 1")."""

    def __init__(self, browser: Chromium, number: int) -> None:
        self._browser, self._number = browser, number

    def __getattr__(self, name: str) -> Method:
        return Method(self._browser, self._number, [name])

    def texts(self, selector: str) -> list[str]:
        """Return the text of each matching element, with white space collapsed."""
        found: list[str] = self.evaluate(
            "(selector) => [...document.querySelectorAll(selector)]"
            ".map((one) => one.textContent.replace(/\\s+/g, ' ').trim())",
            selector,
        )
        return found

    def until(self, function: str, argument: Any = None) -> None:
        """Wait until a JavaScript function returns true."""
        self.waitForFunction(function, argument)

    def until_text(self, selector: str, text: str) -> None:
        """Wait until a matching element contains the text."""
        self.until(
            "([selector, text]) => [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))",
            [selector, text],
        )

    def visit(self, url: str) -> None:
        """Load a page and wait until it receives live documents."""
        self.goto(url)
        self.until("() => document.body.dataset.ready === '1' && document.body.dataset.live === 'live'")

    def axe(self) -> list[dict[str, Any]]:
        """Return the accessibility violations that axe reports."""
        found: list[dict[str, Any]] = self._browser.send({"axe": self._number})
        return found

    def problems(self) -> list[str]:
        """Return the errors and warnings of the browser's console since the last call."""
        found: list[str] = self._browser.send({"problems": self._number})
        return found

    def end(self) -> None:
        """Close the page and its context."""
        self._browser.send({"close": self._number})


class Method:
    """Method of the page, or of one of its members, such as tab.keyboard.press."""

    def __init__(self, browser: Chromium, number: int, path: list[str]) -> None:
        self._browser, self._number, self._path = browser, number, path

    def __getattr__(self, name: str) -> Method:
        return Method(self._browser, self._number, [*self._path, name])

    def __call__(self, *args: Any) -> Any:
        return self._browser.send({"page": self._number, "call": self._path, "args": list(args)})
