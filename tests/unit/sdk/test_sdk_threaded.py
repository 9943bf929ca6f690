"""Threaded session core: waiting calls end with the thread, and its exception is available."""

from __future__ import annotations

import ssl
import threading

import pytest

from bmqtwist.sdk import Result, SdkError, SessionOptions, parse_brokers
from bmqtwist.sdk._adapters.threaded import ThreadedCore
from bmqtwist.sdk.pump import Dispatch, SocketPump


class FailingPump(SocketPump):
    """Fails at its first step."""

    def step(self, timeout_s: float | None = None) -> None:
        raise OSError("no more descriptors")


def make_failing_pump(options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None) -> FailingPump:
    return FailingPump(options, dispatch, tls)


NO_BROKER = SessionOptions(brokers=parse_brokers("tcp://127.0.0.1:1"), connect_rounds_max=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_waiting_call_ends_when_the_thread_fails_and_the_exception_is_available() -> None:
    threaded = ThreadedCore(NO_BROKER, lambda effect: None, make_transport=make_failing_pump)
    threaded.start()
    assert not threaded.request(threaded.core.start, 10.0)
    threaded.join(10.0)
    assert isinstance(threaded.error, OSError)


def test_a_failed_request_raises_and_other_effects_go_to_the_dispatcher() -> None:
    effects: list[object] = []
    threads: set[str] = set()

    def record_effect(effect: object) -> None:
        effects.append(effect)
        threads.add(threading.current_thread().name)
    threaded = ThreadedCore(NO_BROKER, record_effect, name="its own")
    threaded.start()
    try:
        with pytest.raises(SdkError) as caught:
            threaded.request(threaded.core.start)
        assert caught.value.result is Result.NOT_CONNECTED and threads == {"its own"} and effects
    finally:
        threaded.end_thread()
        threaded.join(10.0)
    assert threaded.error is None
