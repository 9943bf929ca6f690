"""Configuration of the console: paths, addresses, users, and warnings at the start."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from bmqtwist.cli.main import main
from bmqtwist.config.broker import AppConfig, BrokerConfig
from bmqtwist.config.compose import console_problems
from bmqtwist.config.declare import ConfigError, decode_text
from bmqtwist.config.text import pretty_json
from bmqtwist.errors import LocalError
from bmqtwist.security.passwords import hash_for_console
from bmqtwist.security.passwords import matches_console_hash as matches

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"
ADA = {"name": "ada", "passwordHash": HASH, "role": "admin"}


def decode_http(http: dict[str, Any]) -> AppConfig:
    return decode_text(BrokerConfig, json.dumps({"appConfig": {"bmqtwist": {"http": http}}}), "f", []).app_config


def problems(http: dict[str, Any]) -> list[str]:
    return [" ".join(each) for each in console_problems(decode_http(http))]


@pytest.mark.parametrize("http", [
    {}, {"prefix": "/bmq"}, {"prefix": "/a/b-c_d.e~f"}, {"url": "https://ops.example"}, {"url": "http://[::1]:80/a/b"},
    {"url": "http://n1:8080"}, {"users": [ADA, {**ADA, "name": "bob", "role": "viewer"}]}])
def test_a_valid_console_configuration_is_accepted(http: dict[str, Any]) -> None:
    assert problems(http) == []


@pytest.mark.parametrize("http, words", [
    ({"prefix": "bmq"}, "http.prefix"), ({"prefix": "/bmq/"}, "http.prefix"), ({"prefix": "/"}, "http.prefix"),
    ({"prefix": '/"><script>'}, "http.prefix"), ({"prefix": "//evil"}, "http.prefix"), ({"url": "ops.example"}, "http.url"),
    ({"url": "https://ops.example/"}, "http.url"), ({"url": "javascript:x"}, "http.url"),
    ({"url": "http://a b"}, "http.url"),
    ({"url": "http://user:pass@host"}, "http.url"), ({"url": "http://h?x"}, "http.url"),
    ({"users": [{**ADA, "passwordHash": "secret"}]}, "users[0].passwordHash is not an argon2 hash"),
    ({"users": [{**ADA, "passwordHash": "$scrypt$ln=14,r=8,p=1$x$y"}]}, "users[0].passwordHash"),
    ({"users": [{**ADA, "name": ""}]}, "users[0].name"), ({"users": [{**ADA, "name": "a\nb"}]}, "users[0].name"),
    ({"users": [ADA, ADA]}, 'users[1].name found "ada" again')])
def test_an_invalid_console_configuration_is_refused_with_its_path(http: dict[str, Any], words: str) -> None:
    (found,) = problems(http)
    assert words in found


@pytest.mark.parametrize("user", [{"name": "ada", "passwordHash": HASH, "roles": "admin"}, {"name": "ada"},
                                  {"name": "ada", "passwordHash": HASH, "role": "root"}])
def test_a_user_with_a_misspelt_member_is_refused(user: dict[str, str]) -> None:
    """The misspelt member could be the intended role."""
    with pytest.raises(ConfigError):
        decode_http({"users": [user]})


def test_password_hashes_are_not_printed() -> None:
    assert HASH not in pretty_json(decode_http({"users": [ADA]})) and "***" in pretty_json(decode_http({"users": [ADA]}))


def test_a_password_matches_only_its_console_hash() -> None:
    hashed = hash_for_console("correct horse")
    assert matches(hashed, "correct horse") and not matches(hashed, "wrong") and not matches(hashed, "")
    assert not matches("nonsense", "x") and not matches(hashed, "x" * 5000) and not matches(hashed, "\ud800")
    for wrong in ("", "x" * 1025):
        with pytest.raises(LocalError):
            hash_for_console(wrong)


def test_bmq_password_prints_a_hash_that_the_console_configuration_accepts() -> None:
    result = CliRunner().invoke(main, ["password", "--stdin", "--console"], input="correct horse\n")
    hashed = result.output.strip()
    assert result.exit_code == 0 and matches(hashed, "correct horse")
    assert problems({"users": [{**ADA, "passwordHash": hashed}]}) == []
