"""Exit codes of `bmq`, and the errors with an exit code. `bmq --help` prints the table `EXIT_CODES`, which docs/cli.md
repeats.

`main.py` exits with `exit_code(error)` when a command raises.
"""

from __future__ import annotations

from bmqtwist.errors import BmqError, LocalError, PeerError

EXIT_GOOD = 0
EXIT_NOT_ALL = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_ALLOWED = 4
EXIT_OUTPUT = 5
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141
EXIT_TERMINATED = 143

EXIT_CODES = {
    EXIT_GOOD: "success",
    EXIT_NOT_ALL: "partial success: posts were refused, fewer messages arrived than requested, an admin command "
                  "answered with an error, damage or differences were found",
    EXIT_USAGE: "invalid command line, URI, expression, input or configuration",
    EXIT_UNREACHABLE: "no broker reachable, or a lost connection was not restored in time",
    EXIT_NOT_ALLOWED: "the broker refused the connection, the credential or the queue",
    EXIT_OUTPUT: "the output could not be written (disk full)",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C), after cleanup",
    EXIT_CLOSED_PIPE: "the reader of the output closed the pipe, as in `| head`",
    EXIT_TERMINATED: "terminated (SIGTERM), after cleanup",
}


class CommandFailed(LocalError):
    """Failure of a command: the message for standard error and the exit code."""

    CODE = EXIT_USAGE

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code or self.CODE


class Unreachable(CommandFailed):
    """No broker is reachable, or the connection is lost."""

    CODE = EXIT_UNREACHABLE


class NotAllowed(CommandFailed):
    """The broker refused the connection, the credential or the queue."""

    CODE = EXIT_NOT_ALLOWED


def exit_code(error: BmqError) -> int:
    """Return the exit code of an error that no command converted to CommandFailed."""
    if isinstance(error, CommandFailed):
        return error.code
    if isinstance(error, PeerError):
        return EXIT_UNREACHABLE
    if isinstance(error, LocalError):
        return EXIT_USAGE
    from bmqtwist.sdk.results import Result, SdkError

    if isinstance(error, SdkError):
        if error.result in (Result.TIMEOUT, Result.NOT_CONNECTED, Result.CANCELED):
            return EXIT_UNREACHABLE
        if error.result in (Result.INVALID_ARGUMENT, Result.PAYLOAD_EMPTY, Result.PAYLOAD_TOO_BIG):
            return EXIT_USAGE
    return EXIT_NOT_ALLOWED
