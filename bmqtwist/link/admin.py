"""The session of an administrator: commands, and nothing else."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bmqtwist.link.session import Session, SessionKind, serving
from bmqtwist.link.states import State
from bmqtwist.machine import to
from bmqtwist.wire.schema import AdminCommandResponse


class AdminAnswer(NamedTuple):
    """What a command printed; `failed`: it was not carried out."""

    text: str
    failed: bool


class CommandContext(Protocol):
    """What the session of an administrator asks of the broker."""

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        """Run a command; the answer comes back as admin.answer(r_id, text)."""


class AdminSession(SessionKind):
    """An administrator."""

    __slots__ = ("_commands",)

    def __init__(self, session: Session, commands: CommandContext) -> None:
        super().__init__(session, LIFECYCLE, "#ADMCLIENT_UNEXPECTED_EVENT")
        self._commands = commands

    def on_control(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A command."""
        message = self.decode_control(buffer, specific, start, end)
        if message is None:
            return
        if message.choice == "adminCommand":
            self._commands.run_admin(self, message.r_id or 0, message.value.command)
        else:
            self.context.report.error(f"#ADMCLIENT_IMPROPER_BEHAVIOR {self.session.description}: unexpected control message "
                                      f"'{message.choice}'")

    def answer(self, r_id: int, text: str) -> None:
        """What a command printed."""
        if self.session.state is State.SERVING:
            self.session.answer(r_id, "adminCommandResponse", AdminCommandResponse(text))


LIFECYCLE = serving(AdminSession, {"CONTROL": to(AdminSession.on_control)}, leaving=False)
