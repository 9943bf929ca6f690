"""A session with the broker in a thread of its own: takes messages, sends confirmations. No Spark here.

The source runner of Spark is one process with one thread that asks questions; between them heartbeats are to be answered
and messages taken. The thread lives in `Session.step`; other threads put confirmations into a list and end its waiting.
What has come and was not taken is bounded by the window that the broker was told (maxUnconfirmedMessages and -Bytes).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Credential, QueueOptions, SessionOptions, Subscription
from bmqtwist.sdk.pump import Dispatch, SocketPump
from bmqtwist.sdk.results import EventKind, SdkError, SessionEvent
from bmqtwist.sdk.simple import Queue, Session
from bmqtwist.spark.options import BrokerOptions, SourceOptions
from bmqtwist.spark.plan import Key

STEP_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 10.0


@dataclass(slots=True)
class Delivered:
    """Messages of the queue of that number."""

    queue: int
    messages: list[Message[bytes]]
    arrived: float  # epoch seconds
    receiver: int = 0  # which of several has them


@dataclass(slots=True)
class Lost:
    """In place of a message: the connection was lost, what came before it will come again."""

    receiver: int = 0


News = Delivered | Lost


def session_options(broker: BrokerOptions, **changes: Any) -> SessionOptions:
    """Options of a session."""
    credential = None
    if broker.user:
        with open(broker.password_file, encoding="utf-8") as file:
            credential = Credential.basic(broker.user, file.readline().rstrip("\r\n"))
    return SessionOptions(
        brokers=broker.brokers, connect_timeout_s=broker.timeout_s, open_timeout_s=broker.timeout_s,
        configure_timeout_s=broker.timeout_s, close_timeout_s=min(broker.timeout_s, STOP_SECONDS_MAX),
        disconnect_timeout_s=min(broker.timeout_s, STOP_SECONDS_MAX / 2), credential=credential,
        user_agent="bmqtwist-spark", **changes)


def tls_of(broker: BrokerOptions) -> Any:
    """The TLS context, None where the system's is right."""
    if not broker.tls_ca and not broker.tls_insecure:
        return None
    import ssl

    context = ssl.create_default_context(cafile=broker.tls_ca or None)
    if broker.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def queue_options(options: SourceOptions) -> QueueOptions:
    """How each queue of a source is read."""
    return QueueOptions(subscriptions=(Subscription(
        options.expression, options.unconfirmed_messages_max, options.unconfirmed_bytes_max, options.consumer_priority),))


class Receiver:
    """Not started when made. `take` gives what has come since, in order."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._news = threading.Condition()
        self._incoming: deque[News] = deque()
        self._fresh: list[News] = []  # of the thread alone, until the end of its turn
        self._confirms: deque[Key] = deque()
        self._queues: list[Queue[bytes]] = []
        self._pump: SocketPump | None = None
        self._thread = threading.Thread(target=self._run, name="bmq-receiver", daemon=True)
        self._stopping = self._ready = False
        self._error: BaseException | None = None

    # -- for the thread that asks ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and open the queues; SdkError if that fails."""
        self._thread.start()
        with self._news:
            while not self._ready and self._error is None:
                self._news.wait()
        self.check()

    def check(self) -> None:
        """Raise what has ended the thread, if anything has."""
        if self._error is not None:
            raise self._error

    def wait(self, timeout_s: float) -> None:
        """Return when something has come, or after that time."""
        until = time.monotonic() + timeout_s
        with self._news:
            while not self._incoming and self._error is None:
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._news.wait(left)

    def take(self) -> list[News]:
        """What has come since the last time."""
        with self._news:
            found = list(self._incoming)
            self._incoming.clear()
        return found

    def confirm(self, keys: list[Key]) -> None:
        """Have these confirmed soon. Without a connection they are forgotten: the messages come again."""
        self._confirms.extend(keys)
        self._poke()

    def stop(self) -> None:
        """Send what is to be confirmed, close the queues, disconnect: what is not confirmed goes back as never tried."""
        self._stopping = True
        self._poke()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def _poke(self) -> None:
        pump = self._pump
        if pump is not None:
            pump.poke()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _make_pump(self, options: SessionOptions, dispatch: Dispatch, tls: Any = None) -> SocketPump:
        self._pump = SocketPump(options, dispatch, tls)
        return self._pump

    def _run(self) -> None:
        try:
            broker = self._options.broker
            session = Session(options=session_options(broker), tls=tls_of(broker), on_event=self._on_event,
                              pump=self._make_pump)
            try:
                wanted = queue_options(self._options)
                queues = self._queues
                for uri in self._options.queues:
                    queues.append(session.open(uri, read=True, options=wanted))
                with self._news:
                    self._ready = True
                    self._news.notify_all()
                while not self._stopping:
                    self._send_confirms(session)
                    session.step(STEP_SECONDS_MAX)
                    self._collect()
                    self._publish()
                    for queue in queues:
                        if queue.ended:
                            raise queue.error or SdkError(*_closed(queue))
                self._send_confirms(session)
                for queue in queues:
                    queue.close()
            finally:
                session.stop(False)
        except BaseException as error:  # noqa: BLE001 - whoever asks next is told
            if not self._stopping:
                self._error = error
        with self._news:
            self._news.notify_all()

    def _collect(self) -> None:
        """Take what the session has for each queue."""
        now = time.time()
        for number, queue in enumerate(self._queues):
            messages = queue.get_all_nowait()
            if messages:
                self._fresh.append(Delivered(number, messages, now))

    def _on_event(self, event: SessionEvent) -> None:
        if event.kind is EventKind.CONNECTION_LOST:
            self._collect()
            self._fresh.append(Lost())

    def _publish(self) -> None:
        if self._fresh:
            with self._news:
                self._incoming.extend(self._fresh)
                self._news.notify_all()
            self._fresh.clear()

    def _send_confirms(self, session: Session) -> None:
        confirms = self._confirms
        if not confirms:
            return
        cores = [(queue.core, queue.core.options.effective()[0]) for queue in self._queues]
        while confirms:
            key = confirms.popleft()
            try:
                session.core.confirm(Message(*cores[key[0]], key[1:], b"", 0, 0))
            except SdkError:  # no connection: it comes again, and is confirmed then
                continue


def _closed(queue: Queue[bytes]) -> tuple[Any, str]:
    from bmqtwist.sdk.results import Result

    return Result.INVALID_QUEUE, f"{queue.uri} was closed"
