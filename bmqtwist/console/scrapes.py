"""Responses of `/metrics`: one compressed text for all requests, sent while their clients read.

    creation   a job; requests during it, and for TEXT_AGE_S_MAX after it, share the text
    memory     the text in gzip form, one part of it for each response, and for clients that do not accept gzip a
               decompressor
    limits     METRICS_RESPONSES_MAX at a time, METRICS_RESPONSES_PER_ADDRESS_MAX of them from one address; 503 beyond

`http.py` creates one for each port; the text is written by `view/metrics.py`.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from bmqtwist.limits import METRICS_RESPONSES_MAX, METRICS_RESPONSES_PER_ADDRESS_MAX
from bmqtwist.steps import Steps
from bmqtwist.view.metrics import WriteText

TEXT_AGE_S_MAX = 1.0
PART_BYTES = 16 << 10
_GZIP = zlib.MAX_WBITS | 16
_FASTEST = 1


class CompressedText:
    """A text in gzip form."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_FASTEST, zlib.DEFLATED, _GZIP)
        self._parts: list[bytes] = []

    def write(self, text: str) -> None:
        """Append to the text."""
        self._add(self._compressor.compress(text.encode()))

    def close(self) -> None:
        """End the text."""
        self._add(self._compressor.flush())

    def _add(self, data: bytes) -> None:
        self._parts += [data[start:start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]

    def compressed(self) -> Iterator[bytes]:
        return iter(self._parts)

    def plain(self) -> Iterator[bytes]:
        """Decompress the text in parts of up to PART_BYTES."""
        decompressor = zlib.decompressobj(_GZIP)
        for part in self._parts:
            while part:
                text = decompressor.decompress(part, PART_BYTES)
                if text:
                    yield text
                part = decompressor.unconsumed_tail


class Scrapes:
    """Responses of one port. `make(write)` creates the text in steps, `run` runs a job, `clock` returns monotonic
    seconds."""

    def __init__(self, make: Callable[[WriteText], Steps[None]], run: Callable[[Steps[Any]], Deferred[Any]],
                 clock: Callable[[], float]) -> None:
        self._make, self._run, self._clock = make, run, clock
        self._text: CompressedText | None = None
        self._until = float("-inf")
        self._waiting: list[Deferred[CompressedText]] = []
        self._responses = Counter[str]()  # by address

    def answer(self, request: Any) -> Deferred[Resource] | None:
        """Return the resource that sends the text; None = too many responses are in progress."""
        address = request.getClientAddress().host
        if (self._responses.total() >= METRICS_RESPONSES_MAX
                or self._responses[address] >= METRICS_RESPONSES_PER_ADDRESS_MAX):
            return None
        self._responses[address] += 1

        def on_end(ignored: object) -> None:
            self._responses[address] -= 1
            if not self._responses[address]:
                del self._responses[address]
        request.notifyFinish().addBoth(on_end)
        return self._get_text().addCallback(_Response)

    def _get_text(self) -> Deferred[CompressedText]:
        text: Deferred[CompressedText] = Deferred()
        self._waiting.append(text)
        if self._text is not None and self._clock() < self._until:
            self._on_made(self._text)
        elif len(self._waiting) == 1:
            made = CompressedText()
            self._text = None
            self._run(self._write(made)).addBoth(self._on_made)
        return text

    def _write(self, made: CompressedText) -> Steps[CompressedText]:
        yield from self._make(made.write)
        made.close()
        self._text, self._until = made, self._clock() + TEXT_AGE_S_MAX
        return made

    def _on_made(self, result: CompressedText | Failure) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(result)


class _Response(Resource):
    """Sends a text."""

    isLeaf = True

    def __init__(self, text: CompressedText) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._text = text

    def render(self, request: Any) -> int:
        """Called by twisted.web."""
        request.setHeader("Vary", "Accept-Encoding")
        compressed = _accepts_gzip(request.getHeader("Accept-Encoding") or "")
        if compressed:
            request.setHeader("Content-Encoding", "gzip")
        request.channel.stream(self._text.compressed() if compressed else self._text.plain())
        return NOT_DONE_YET


def _accepts_gzip(header: str) -> bool:
    """Return whether a header Accept-Encoding includes gzip.

    >>> _accepts_gzip("deflate, GZIP;q=0.5"), _accepts_gzip("gzip; q=0"), _accepts_gzip("")
    (True, False, False)
    """
    for part in header.lower().split(","):
        name, _, weight = part.replace(" ", "").partition(";")
        if name == "gzip":
            return weight.removeprefix("q=").strip("0.") != "" or not weight
    return False
