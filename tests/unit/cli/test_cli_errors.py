"""Invalid input of `bmq` ends with a sentence, and credentials stay out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bmqtwist.cli.main import main
from bmqtwist.config.clusters import parse_endpoint
from bmqtwist.errors import LocalError
from bmqtwist.sdk.options import Address, parse_brokers

COMMANDS = (("admin", "HELP"), ("produce", "bmq://d/q", "x"), ("consume", "bmq://d/q"), ("tail", "bmq://d/q"))
UNRESOLVABLE = ("mq..example", ".", f"{'a' * 64}.example", "a" * 300, "a b", "m\udcff", "a\tb")


def bmq(*arguments: str) -> Result:
    return CliRunner().invoke(main, [arguments[0], "--timeout", "0.1", *arguments[1:]], env={"BMQ_PASSWORD": None})


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("host", UNRESOLVABLE)
def test_a_host_that_cannot_be_resolved_is_a_usage_error(command: tuple[str, ...], host: str) -> None:
    """The encoder of host names raises UnicodeError, which is no error of the network."""
    for option, value in (("--broker", f"tcp://{host}:1"), ("--host", host)):
        result = bmq(command[0], option, value, *command[1:])
        assert isinstance(result.exception, SystemExit) and result.exit_code == 2, result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("address", ["tcp://user:secret@localhost:1", "tls://user:secret@localhost",
                                     "user:secret@localhost:1", "tcp://localhost:secret@1", "tcp://user:sec,secret@localhost:1"])
def test_a_credential_in_an_address_is_not_repeated(command: tuple[str, ...], address: str) -> None:
    result = bmq(command[0], "-b", address, *command[1:])
    assert result.exit_code == 2 and "secret" not in result.output and "sec" not in result.output.partition("Error")[2]


def test_a_password_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes("pässword\n".encode("latin-1"))
    result = bmq("admin", "--user", "u", "--password-file", str(path), "HELP")
    assert result.exit_code == 2 and f"{path}: the password file is not UTF-8" in result.output


def test_a_password_on_standard_input_in_another_encoding_is_an_error() -> None:
    result = CliRunner().invoke(main, ["password", "--stdin"], input="p\xe4ss\n".encode("latin-1"))
    assert result.exit_code == 2 and "not UTF-8" in result.output


def test_an_argument_that_is_not_utf_8_is_printed_with_escapes(tmp_path: Path) -> None:
    """A path of bytes that are not UTF-8 may be printed to standard output, whose encoding lacks them."""
    path = f"{tmp_path}/\udcff.zip"
    result = CliRunner().invoke(main, ["pipeline", "package", path])
    assert result.exit_code == 0 and "\\udcff.zip" in result.output and Path(path).exists()


@pytest.mark.parametrize("host", UNRESOLVABLE)
def test_the_client_library_and_the_configuration_refuse_the_same_hosts(host: str) -> None:
    with pytest.raises(LocalError, match="broker host"):
        Address(host)
    assert parse_endpoint(f"tcp://{host}:30114") is None


def test_an_ipv6_address_is_printed_with_brackets() -> None:
    address, = parse_brokers("tcp://[::1]:30114")
    assert (address.host, str(address)) == ("::1", "tcp://[::1]:30114")
    for wrong in ("tcp://[::1", "tcp://[::1]30114", "tcp://\u00b2:\u00b2"):
        with pytest.raises(LocalError):
            parse_brokers(wrong)
