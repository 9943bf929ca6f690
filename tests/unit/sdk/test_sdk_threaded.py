"""ThreadedCore: waiting calls end with the thread, and its exception is available."""

from __future__ import annotations

import ssl
import threading

import pytest

from bmqtwist.sdk import Result, SdkError, SessionOptions, parse_brokers
from bmqtwist.sdk._adapters.threaded import ThreadedCore
from bmqtwist.sdk.pump import Dispatch, SocketPump


class Broken(SocketPump):
    """Fails at its first step."""

    def step(self, timeout_s: float | None = None) -> None:
        raise OSError("no more descriptors")


def made(options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None) -> Broken:
    return Broken(options, dispatch, tls)


NOBODY = SessionOptions(brokers=parse_brokers("tcp://127.0.0.1:1"), connect_rounds_max=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_waits_ends_with_the_thread_and_the_error_is_kept() -> None:
    threaded = ThreadedCore(NOBODY, lambda effect: None, make_transport=made)
    threaded.start()
    assert not threaded.request(threaded.core.start, 10.0)
    threaded.join(10.0)
    assert isinstance(threaded.error, OSError)


def test_a_request_that_fails_raises_and_effects_for_nobody_go_to_the_owner() -> None:
    heard: list[object] = []
    threads: set[str] = set()

    def hear(effect: object) -> None:
        heard.append(effect)
        threads.add(threading.current_thread().name)
    threaded = ThreadedCore(NOBODY, hear, name="its own")
    threaded.start()
    try:
        with pytest.raises(SdkError) as caught:
            threaded.request(threaded.core.start)
        assert caught.value.result is Result.NOT_CONNECTED and threads == {"its own"} and heard
    finally:
        threaded.end_thread()
        threaded.join(10.0)
    assert threaded.error is None
