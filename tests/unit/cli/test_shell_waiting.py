"""Input thread of `bmq shell`: its wait for the thread that executes commands."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from bmqtwist.cli.shell.command import run_in_loop

COMMAND_S = 20.0


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
