"""Receivers of the queue source: sessions with their own threads, which receive messages and send confirmations. Independent
of Spark.

Spark calls the reader from the single thread of one process; the receiver handles heartbeats and messages between these
calls. The options maxUnconfirmedMessages and maxUnconfirmedBytes limit the messages in memory.

With option `receivers` above 1 each session is a child process, since one process is limited to one core. The broker
distributes the messages among the children as among any consumers.

    this process                                    child
    pickled SourceOptions                    -->    connects, opens the queues
                                            <--     None = ready; a list of messages; a text = the error that ended the child
    list of keys to confirm                  -->    confirms
    end of the stream                        -->    stops gracefully, also when this process was killed

Started by `engine.py`, and by `source.py` for a batch read; the order of batches is in `plan.py`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any

from bmqtwist.errors import LocalError
from bmqtwist.sdk._adapters.threaded import ThreadedCore
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Credential, QueueOptions, SessionOptions, Subscription
from bmqtwist.sdk.results import EventKind, Result, SdkError, SessionEvent
from bmqtwist.spark.options import BrokerOptions, SourceOptions
from bmqtwist.spark.plan import Key, keys_of

STEP_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 10.0


@dataclass(slots=True)
class ReceivedMessages:
    """Messages of one queue. An empty list reports a lost connection: the broker redelivers unconfirmed messages."""

    queue: int = 0  # number of the queue in the options
    messages: list[Message[bytes]] = field(default_factory=list)
    arrived: float = 0.0  # epoch seconds
    receiver: int = 0  # number of the receiver


def session_options(broker: BrokerOptions, **changes: Any) -> SessionOptions:
    credential = None
    if broker.user:
        with open(broker.password_file, encoding="utf-8") as file:
            credential = Credential.basic(broker.user, file.readline().rstrip("\r\n"))
    return SessionOptions(
        brokers=broker.brokers, connect_timeout_s=broker.timeout_s, open_timeout_s=broker.timeout_s,
        configure_timeout_s=broker.timeout_s, close_timeout_s=min(broker.timeout_s, STOP_SECONDS_MAX),
        disconnect_timeout_s=min(broker.timeout_s, STOP_SECONDS_MAX / 2), credential=credential,
        user_agent="bmqtwist-spark", **changes)


def tls_context(broker: BrokerOptions) -> Any:
    if not broker.tls_ca and not broker.tls_insecure:
        return None
    import ssl

    context = ssl.create_default_context(cafile=broker.tls_ca or None)
    if broker.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def queue_options(options: SourceOptions) -> QueueOptions:
    return QueueOptions(subscriptions=(Subscription(
        options.expression, options.unconfirmed_messages_max, options.unconfirmed_bytes_max, options.consumer_priority),))


class Receiver:
    """A session with a thread; `start` connects. `take_messages` returns the messages since the last call, in order."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._incoming: deque[ReceivedMessages] = deque()
        self._step_messages: dict[int, list[Message[bytes]]] = {}  # of the current step of the thread, by queue
        self._queues: list[Queue] = []
        self._threaded: ThreadedCore | None = None
        self._error: SdkError | None = None

    def start(self) -> None:
        broker, wanted = self._options.broker, queue_options(self._options)
        self._threaded = threaded = ThreadedCore(session_options(broker), self._on_effect, tls_context(broker),
                                                 name="bmq-receiver", on_step=self._publish_step)
        threaded.start()
        try:
            threaded.request(threaded.core.start)
            for uri in self._options.queues:
                threaded.request(partial(self._open, uri, wanted))
            self.raise_error()
        except BaseException:
            self.stop()
            raise

    def _open(self, uri: str, wanted: QueueOptions, token: object, now: float) -> None:
        assert self._threaded is not None
        queue = self._threaded.core.open(uri, token, now, read=True, queue_options=wanted)
        queue.owner = len(self._queues)
        self._queues.append(queue)

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self._threaded is not None and self._threaded.error is not None:
            raise self._threaded.error

    def wait(self, timeout_s: float) -> None:
        if self._threaded is not None:
            self._threaded.wait(lambda: self._incoming or self._error is not None, timeout_s)

    def take_messages(self) -> list[ReceivedMessages]:
        assert self._threaded is not None
        with self._threaded.lock:
            found = list(self._incoming)
            self._incoming.clear()
            self._threaded.core.on_consumed(sum(len(each.messages) for each in found))
        return found

    def confirm(self, keys: list[Key]) -> None:
        """Confirm messages. Without a connection the keys are dropped: the messages are redelivered."""
        assert self._threaded is not None
        with self._threaded.lock:
            known = [(queue, queue.options.effective()[0]) for queue in self._queues]
            for key in keys:
                with contextlib.suppress(SdkError):  # no connection: the message is redelivered, then confirmed
                    self._threaded.core.confirm(Message(*known[key[0]], key[1:], b"", 0, 0))

    def stop(self) -> None:
        """Send confirmations, close the queues, disconnect. Unconfirmed messages return to their queues; their delivery
        attempts are not counted."""
        threaded = self._threaded
        if threaded is None:
            return
        until = time.monotonic() + STOP_SECONDS_MAX
        for queue in self._queues:
            with contextlib.suppress(SdkError):
                threaded.request(partial(threaded.core.close, queue), until - time.monotonic())
        threaded.request(lambda token, now: threaded.core.stop(token, now, False), until - time.monotonic())
        threaded.end_thread()
        threaded.join(until - time.monotonic())

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _on_effect(self, effect: object) -> None:
        if isinstance(effect, Message):
            self._step_messages.setdefault(effect.queue.owner, []).append(effect)
        elif isinstance(effect, SessionEvent):
            if effect.kind is EventKind.CONNECTION_LOST:
                self._publish_step()
                self._incoming.append(ReceivedMessages())
            elif effect.kind is EventKind.QUEUE_REOPEN_RESULT and effect.result is not Result.SUCCESS:
                self._error = SdkError(effect.result, effect.message)

    def _publish_step(self) -> None:
        threaded = self._threaded
        if threaded is not None:
            with threaded.changed:
                now = time.time()
                self._incoming.extend(ReceivedMessages(number, messages, now)
                                      for number, messages in self._step_messages.items())
                self._step_messages = {}
                if self._incoming or self._error is not None:
                    threaded.changed.notify_all()


class ReceiverFailed(LocalError):
    """A child process has ended; the text is its error."""


class Receivers:
    """Several receivers, each in a child process, with the methods of Receiver."""

    def __init__(self, options: SourceOptions) -> None:
        self._changed = threading.Condition()
        self._incoming: deque[ReceivedMessages] = deque()
        self._children: list[_Child] = []
        self._owners: dict[Key, int] = {}  # number of the child that received it last
        self._error = ""
        self._count = options.receivers
        # Each child has an equal share of the limits.
        self._options = replace(options, receivers=1,
                                unconfirmed_messages_max=-(-options.unconfirmed_messages_max // self._count),
                                unconfirmed_bytes_max=-(-options.unconfirmed_bytes_max // self._count))

    def start(self) -> None:
        self._children = [_Child(self, number, self._options) for number in range(self._count)]
        with self._changed:
            while not all(child.ready for child in self._children) and not self._error:
                self._changed.wait()
        self.raise_error()

    def raise_error(self) -> None:
        if self._error:
            raise ReceiverFailed(self._error)

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            if not self._incoming and not self._error:
                self._changed.wait(timeout_s)

    def take_messages(self) -> list[ReceivedMessages]:
        with self._changed:
            found = list(self._incoming)
            self._incoming.clear()
        for each in found:
            if each.messages:
                self._owners.update(dict.fromkeys(keys_of(each.queue, each.messages), each.receiver))
            else:
                self._owners = {key: owner for key, owner in self._owners.items() if owner != each.receiver}
        return found

    def confirm(self, keys: list[Key]) -> None:
        """Confirm each message at the child that received it last. Unknown messages are confirmed after their redelivery."""
        shares: dict[int, list[Key]] = {}
        for key in keys:
            shares.setdefault(self._owners.pop(key, 0), []).append(key)
        for number, share in shares.items():
            self._children[number].send(share)

    def stop(self) -> None:
        for child in self._children:
            child.request_stop()
        for child in self._children:
            child.join()

    def on_message(self, child: _Child, found: Any) -> None:
        with self._changed:
            if found is None:
                child.ready = True
            elif isinstance(found, str):
                self._error = self._error or found
            else:
                no_queue: Any = None  # messages of a child are confirmed by GUID
                for queue, messages, arrived in found:
                    rebuilt = [Message(no_queue, no_queue, *each) for each in messages]
                    self._incoming.append(ReceivedMessages(queue, rebuilt, arrived, child.number))
            self._changed.notify_all()


class _Child:
    """Child process with one receiver, and the thread that reads its messages."""

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
                self._owner.on_message(self, pickle.load(self._process.stdout))
        except (EOFError, OSError, pickle.UnpicklingError) as found:
            error = f"a receiver has ended: {found}"
        if not self._closing:
            self._owner.on_message(self, error)

    def send(self, value: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()

    def request_stop(self) -> None:
        self._closing = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def join(self) -> None:
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run_child(source: IO[bytes], target: IO[bytes]) -> None:
    """Run a receiver in a child process; both pipes lead to its parent."""
    receiver = Receiver(pickle.load(source))

    def read_confirmations() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                receiver.confirm(pickle.load(source))
        receiver.stop()
        os._exit(0)

    def send(value: object) -> None:
        pickle.dump(value, target, pickle.HIGHEST_PROTOCOL)
        target.flush()

    try:
        receiver.start()
        send(None)
        threading.Thread(target=read_confirmations, daemon=True).start()
        while True:
            receiver.wait(STEP_SECONDS_MAX)
            receiver.raise_error()
            rows = [(each.queue, [(message.guid, message._data, message._flags, message._form) for message in each.messages],
                     each.arrived) for each in receiver.take_messages()]
            if rows:
                send(rows)
    except (SdkError, LocalError, OSError) as error:
        with contextlib.suppress(OSError):
            send(str(error))
        receiver.stop()


if __name__ == "__main__":
    run_child(sys.stdin.buffer, sys.stdout.buffer)
