"""Several sessions with the broker, each in a process of its own: what one process can take from a queue is bounded by one
core. Option `receivers` says how many; the queue's messages are shared among them as among any consumers.

    this process                                    child
    pickled SourceOptions                    -->    connects, opens the queues
                                            <--     None: ready; a list of messages; a text: the error that has ended it
    a list of keys to be confirmed           -->
    the end of the stream                    -->    leaves gracefully, also when this process was killed
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from dataclasses import replace
from typing import IO, Any

from bmqtwist.errors import LocalError
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import SdkError
from bmqtwist.spark.options import SourceOptions
from bmqtwist.spark.plan import Key, keys_of
from bmqtwist.spark.receiver import STEP_SECONDS_MAX, STOP_SECONDS_MAX, Delivered, Lost, News, Receiver

# Messages of a queue on their way from a child: what makes each of them, and when they came. An empty one stands for a lost
# connection.
Row = tuple[int, list[tuple[bytes, bytes, int, int]], float] | tuple[()]


class ReceiverFailed(LocalError):
    """A child has ended: what it said."""


class Receivers:
    """As a Receiver, over several children."""

    def __init__(self, options: SourceOptions) -> None:
        self._news = threading.Condition()
        self._incoming: deque[News] = deque()
        self._children: list[_Child] = []
        self._owners: dict[Key, int] = {}  # who was given it last
        self._error = ""
        self._count = options.receivers
        # The window is that of all together.
        self._options = replace(options, receivers=1,
                                unconfirmed_messages_max=-(-options.unconfirmed_messages_max // self._count),
                                unconfirmed_bytes_max=-(-options.unconfirmed_bytes_max // self._count))

    def start(self) -> None:
        """Connect all of them; ReceiverFailed if one cannot."""
        self._children = [_Child(self, number, self._options) for number in range(self._count)]
        with self._news:
            while not all(child.ready for child in self._children) and not self._error:
                self._news.wait()
        self.check()

    def check(self) -> None:
        """Raise what has ended a child, if anything has."""
        if self._error:
            raise ReceiverFailed(self._error)

    def wait(self, timeout_s: float) -> None:
        """Return when something has come, or after that time."""
        with self._news:
            if not self._incoming and not self._error:
                self._news.wait(timeout_s)

    def take(self) -> list[News]:
        """What has come since the last time."""
        with self._news:
            found = list(self._incoming)
            self._incoming.clear()
        for each in found:
            if isinstance(each, Delivered):
                self._owners.update(dict.fromkeys(keys_of(each.queue, each.messages), each.receiver))
            else:
                self._owners = {key: owner for key, owner in self._owners.items() if owner != each.receiver}
        return found

    def confirm(self, keys: list[Key]) -> None:
        """Each by who was given it; what nobody was given here comes again, and is confirmed then."""
        shares: dict[int, list[Key]] = {}
        for key in keys:
            shares.setdefault(self._owners.pop(key, 0), []).append(key)
        for number, share in shares.items():
            self._children[number].send(share)

    def stop(self) -> None:
        """All of them leave gracefully."""
        for child in self._children:
            child.close()
        for child in self._children:
            child.end()

    def came(self, child: _Child, found: Any) -> None:
        """From the thread of a child."""
        with self._news:
            if found is None:
                child.ready = True
            elif isinstance(found, str):
                self._error = self._error or found
            else:
                for row in found:
                    self._incoming.append(_delivered(row, child.number) if row else Lost(child.number))
            self._news.notify_all()


class _Child:
    """One process."""

    def __init__(self, owner: Receivers, number: int, options: SourceOptions) -> None:
        self.number, self.ready, self._owner, self._closing = number, False, owner, False
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen([sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, env=environment)
        self.send(options)
        threading.Thread(target=self._read, name=f"bmq-receiver-{number}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        error = ""
        try:
            while True:
                self._owner.came(self, pickle.load(self._process.stdout))
        except (EOFError, OSError, pickle.UnpicklingError) as found:
            error = f"a receiver has ended: {found}"
        if not self._closing:
            self._owner.came(self, error)

    def send(self, value: object) -> None:
        """To the process; if it has ended its thread says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()

    def close(self) -> None:
        """Have it leave."""
        self._closing = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        """Wait until it is gone."""
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _delivered(row: Any, receiver: int) -> Delivered:
    queue, messages, arrived = row
    nowhere: Any = None  # they are confirmed by their GUIDs
    return Delivered(queue, [Message(nowhere, nowhere, *each) for each in messages], arrived, receiver)


def _row(each: News) -> Row:
    if not isinstance(each, Delivered):
        return ()
    messages = [(message.guid, message._data, message._flags, message._form) for message in each.messages]
    return each.queue, messages, each.arrived


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """A child: what is on the other side of the pipes."""
    receiver = Receiver(pickle.load(source))

    def obey() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                receiver.confirm(pickle.load(source))
        receiver.stop()
        os._exit(0)

    def tell(value: object) -> None:
        pickle.dump(value, target, pickle.HIGHEST_PROTOCOL)
        target.flush()

    try:
        receiver.start()
        tell(None)
        threading.Thread(target=obey, daemon=True).start()
        while True:
            receiver.wait(STEP_SECONDS_MAX)
            receiver.check()
            rows = [_row(each) for each in receiver.take()]
            if rows:
                tell(rows)
    except (SdkError, LocalError, OSError) as error:
        with contextlib.suppress(OSError):
            tell(str(error))
        receiver.stop()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
