"""The session of an administrator: commands, and nothing else."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from bmqtwist.link.session import Session, SessionKind
from bmqtwist.link.states import State, row
from bmqtwist.wire.schema import AdminCommandResponse

ANSWERS = {
    State.SERVING: row("on_unexpected", CONTROL="on_control", HEARTBEAT_REQ="on_heartbeat", HEARTBEAT_RSP="on_ignored",
                       AUTHENTICATION="on_authentication"),
}


class AdminAnswer(NamedTuple):
    """What a command printed; `failed`: it was not carried out."""

    text: str
    failed: bool


AdminWork = Generator[None, None, AdminAnswer]  # a command that may take long pauses now and then before it is answered


class AdminSession(SessionKind):
    """An administrator."""

    __slots__ = ()

    def __init__(self, session: Session) -> None:
        super().__init__(session, ANSWERS, "#ADMCLIENT_UNEXPECTED_EVENT")

    def on_control(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A command."""
        message = self.decode_control(buffer, specific, start, end)
        if message is None:
            return
        if message.choice == "adminCommand":
            self.context.run_admin(self, message.r_id or 0, message.value.command)
        else:
            self.context.report.error(f"#ADMCLIENT_IMPROPER_BEHAVIOR {self.session.description}: unexpected control message "
                                      f"'{message.choice}'")

    def answer(self, r_id: int, text: str) -> None:
        """What a command printed."""
        if self.session.state is State.SERVING:
            self.session.answer(r_id, "adminCommandResponse", AdminCommandResponse(text))
