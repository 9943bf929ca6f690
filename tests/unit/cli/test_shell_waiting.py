"""Waits of `bmq shell`: of the input thread for the thread that executes commands, and of posts for room."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time

import pytest

from bmqtwist.cli.shell.command import run_in_loop
from bmqtwist.cli.shell.commands import Flags
from bmqtwist.cli.shell.interactive import Shell, _OpenedQueue
from bmqtwist.cli.shell.log_output import EventFile
from bmqtwist.cli.shell.message_series import SeriesParameters, SeriesPoster
from bmqtwist.cli.shell.settings import ShellSettings
from bmqtwist.sdk.results import Result, SdkError
from bmqtwist.testing import Broker, run

COMMAND_S = 20.0
URI = "bmq://bmq.test.mem.priority/q"
WRITE = Flags(write=True, ack=True)


def test_a_ctrl_c_during_a_command_is_handled_although_it_does_not_end_the_wait() -> None:
    """A signal does not end the wait if it arrives as the wait begins, or interrupts another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def command() -> None:
        loop.call_later(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
        await asyncio.sleep(COMMAND_S)

    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_loop(loop, command())
        assert time.monotonic() - began < COMMAND_S / 2
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(COMMAND_S)
        loop.close()


def test_a_post_without_room_fails_after_five_seconds() -> None:
    with Broker() as broker:
        async def scenario() -> float:
            async with broker.session(unacked_bytes_max=1000) as session:
                shell, entry = Shell(ShellSettings(), logging.getLogger("test"), EventFile("")), _OpenedQueue(URI, WRITE)
                entry.queue = await session.open(URI, write=True)
                with broker.faults.stall("post"):
                    await shell._post_one(entry, b"x" * 1000, {}, {}, False)
                    begun = session.loop.time()
                    with pytest.raises(SdkError) as raised:
                        await shell._post_one(entry, b"x" * 1000, {}, {}, False)
                    waited_s = session.loop.time() - begun
                assert raised.value.result is Result.BW_LIMIT
                return waited_s
        assert run(scenario()) == pytest.approx(5.0, abs=0.1)


def test_a_series_posts_a_message_when_there_is_room_for_its_size() -> None:
    """Room for a smaller message does not end the wait."""
    with Broker() as broker:
        async def scenario() -> None:
            async with broker.session(unacked_bytes_max=1000) as session:
                queue = await session.open(URI, write=True)
                stall = broker.faults.stall("post")
                session.loop.call_later(3.0, stall.end)
                await SeriesPoster(SeriesParameters(events=2, msg_size=800, post_interval_ms=0), queue, lambda ack: None,
                                   EventFile("")).run(lambda: True, lambda: True)
                assert session.loop.time() >= 3.0
        run(scenario())
        assert len(broker.messages(URI)) == 2
