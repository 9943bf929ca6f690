"""Exit codes of `bmq`, and the error that carries one. docs/cli.md and `bmq --help` show the same table."""

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
    EXIT_GOOD: "done",
    EXIT_NOT_ALL: "done, but not all is well: posts were refused, fewer messages came than asked for, an admin command "
                  "answered with an error, damage or differences were found",
    EXIT_USAGE: "a bad command line, URI, expression, input or configuration",
    EXIT_UNREACHABLE: "no broker there, or it went away and did not come back in time",
    EXIT_NOT_ALLOWED: "the broker refused the connection, the credential or the queue",
    EXIT_OUTPUT: "the output could not be written (disk full)",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C), after tidying up",
    EXIT_CLOSED_PIPE: "the reader of the output went away, as in `| head`",
    EXIT_TERMINATED: "terminated, after tidying up",
}


class CommandFailed(LocalError):
    """A command ends here: the sentence for standard error and the exit code."""

    CODE = EXIT_USAGE

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code or self.CODE


class Unreachable(CommandFailed):
    """There is no broker, or it went away."""

    CODE = EXIT_UNREACHABLE


class NotAllowed(CommandFailed):
    """The broker is there and does not want us."""

    CODE = EXIT_NOT_ALLOWED


def exit_code(error: BmqError) -> int:
    """The code for an error of this package that no command turned into a better one."""
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
