"""Sessions of administrators: admin commands and their answers.

A kind of session (`session.py`), set by `negotiation.py` for a client that negotiates as administrator. `broker/commands.py`
runs the commands; they are declared in `admin/table.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bmqtwist.link.session import Session, SessionKind, negotiated_lifecycle
from bmqtwist.link.states import ConnectionState
from bmqtwist.machine import to
from bmqtwist.wire.schema import AdminCommandResponse


class AdminAnswer(NamedTuple):
    """Output of a command; `failed`: it was not executed."""

    text: str
    failed: bool


class CommandContext(Protocol):
    """Services of the broker for sessions of administrators."""

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        """Run a command, then call `admin.answer(r_id, text)`."""


class AdminSession(SessionKind):
    """Kind of an administrator's session."""

    __slots__ = ("_commands",)

    def __init__(self, session: Session, commands: CommandContext) -> None:
        super().__init__(session, LIFECYCLE, "#ADMCLIENT_UNEXPECTED_EVENT")
        self._commands = commands

    def on_control(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle a control message; only admin commands are accepted."""
        message = self.decode_control(buffer, specific, start, end)
        if message is None:
            return
        if message.choice == "adminCommand":
            self._commands.run_admin(self, message.r_id or 0, message.value.command)
        else:
            self.context.report.error(f"#ADMCLIENT_IMPROPER_BEHAVIOR {self.session.description}: unexpected control message "
                                      f"'{message.choice}'")

    def answer(self, r_id: int, text: str) -> None:
        """Send the output of a command."""
        if self.session.state is ConnectionState.SERVING:
            self.session.answer(r_id, "adminCommandResponse", AdminCommandResponse(text))


LIFECYCLE = negotiated_lifecycle(AdminSession, {"CONTROL": to(AdminSession.on_control)}, disconnects=False)
