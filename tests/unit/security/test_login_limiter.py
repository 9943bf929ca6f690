"""Limits of failed logins, and their use by the BASIC authenticator."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bmqtwist.link.authentication import Denied, Granted, Outcome
from bmqtwist.security.authenticators import BasicAuthenticator
from bmqtwist.security.login_limiter import (
    ADDRESS_REFILL_S,
    FAILURES_EXPIRE_S,
    FAILURES_PER_ADDRESS,
    FREE_FAILURES,
    TRACKED_MAX,
    WAIT_SECONDS_MAX,
    LoginLimiter,
)
from bmqtwist.security.passwords import LOG2_N, StoredPassword, make_hash

HASH = make_hash("wonder", bytes(16))


class Clock:
    """Clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_after_failed_logins_doubles_up_to_a_limit() -> None:
    limiter, now, waits = LoginLimiter(), 0.0, []
    for _ in range(FREE_FAILURES + 8):
        wait = limiter.wait_seconds("1.2.3.4", "ada", now)
        waits.append(wait)
        now += wait
        limiter.on_attempt("1.2.3.4", "ada", now)
    assert waits[:FREE_FAILURES + 1] == [0.0] * (FREE_FAILURES + 1)
    assert waits[FREE_FAILURES + 1:] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert limiter.wait_seconds("1.2.3.4", "ada", now) == WAIT_SECONDS_MAX
    assert limiter.wait_seconds("1.2.3.4", "other", now) == 0.0 == limiter.wait_seconds("5.6.7.8", "ada", now)
    limiter.on_attempt("1.2.3.4", "ada", now + FAILURES_EXPIRE_S + 1)
    assert limiter.wait_seconds("1.2.3.4", "ada", now + FAILURES_EXPIRE_S + 1) == 0.0


def test_guesses_of_many_user_names_are_limited_by_address() -> None:
    limiter = LoginLimiter()
    for number in range(FAILURES_PER_ADDRESS):
        assert limiter.wait_seconds("2001:db8::1", f"u{number}", 0.0) == 0.0
        limiter.on_attempt("2001:db8::1", f"u{number}", 0.0)
    assert limiter.wait_seconds("2001:db8::2", "ada", 0.0) == ADDRESS_REFILL_S, "the same network"
    assert limiter.wait_seconds("2001:db8:1::1", "ada", 0.0) == 0.0
    assert limiter.wait_seconds("2001:db8::1", "ada", ADDRESS_REFILL_S) == 0.0


def test_a_login_resets_the_delay_of_its_user_but_not_of_its_address() -> None:
    limiter = LoginLimiter()
    for _ in range(9):
        limiter.on_attempt("1.2.3.4", "ada", 0.0)
    limiter.on_success("1.2.3.4", "ada")
    assert limiter.wait_seconds("1.2.3.4", "ada", 0.0) == 0.0
    for number in range(FAILURES_PER_ADDRESS - 8):
        limiter.on_attempt("1.2.3.4", f"u{number}", 0.0)
    assert limiter.wait_seconds("1.2.3.4", "ada", 0.0) > 0.0
    for number in range(TRACKED_MAX + 5):
        limiter.on_attempt(f"10.0.{number >> 8}.{number & 255}", "u", 0.0)
    assert len(limiter._users) == len(limiter._addresses) == TRACKED_MAX


@pytest.mark.parametrize("password", ["wonder", HASH])
def test_wrong_passwords_of_a_user_are_delayed_at_their_address_alone(password: str) -> None:
    clock = Clock()
    basic = BasicAuthenticator({"alice": password}, clock)
    outcomes = [basic.authenticate(b"alice:wrong", "10.0.0.1:99") for _ in range(FREE_FAILURES + 1)]
    assert all(isinstance(each, Denied) and "Invalid" in each.reason for each in outcomes)
    refused = basic.authenticate(b"alice:wonder", "10.0.0.1:98")
    assert isinstance(refused, Denied) and "Too many failed logins of user 'alice'" in refused.reason
    assert isinstance(basic.authenticate(b"alice:wonder", "10.0.0.2:99"), Granted)
    clock.now = 2.0
    assert isinstance(basic.authenticate(b"alice:wonder", "10.0.0.1:98"), Granted)


def test_guesses_on_many_connections_at_once_are_not_more_than_in_sequence() -> None:
    basic, started = BasicAuthenticator({"alice": HASH}, Clock()), threading.Barrier(8)

    def guess(number: int) -> Outcome:
        started.wait(30)
        return basic.authenticate(b"alice:%d" % number, f"10.0.0.1:{number}")

    with ThreadPoolExecutor(8) as pool:
        reasons = [each.reason for each in pool.map(guess, range(8)) if isinstance(each, Denied)]
    assert sum("Invalid" in each for each in reasons) == FREE_FAILURES + 1 and len(reasons) == 8


def test_clients_that_connect_at_once_with_the_right_password_are_not_delayed() -> None:
    basic = BasicAuthenticator({"alice": HASH}, Clock())
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: basic.authenticate(b"alice:wonder", f"10.0.0.1:{number}"), range(64)))
    assert all(isinstance(each, Granted) for each in outcomes)


def test_users_with_plain_text_passwords_take_the_time_of_a_hash_beside_hashed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    work = []
    matches = StoredPassword.matches

    def counted(stored: StoredPassword, password: bytes) -> bool:
        work.append(stored.work if stored.is_hash else 0)
        return matches(stored, password)

    monkeypatch.setattr(StoredPassword, "matches", counted)
    basic = BasicAuthenticator({"alice": HASH, "bob": "plain"}, Clock())
    costs = []
    for user in (b"alice", b"bob", b"carol"):
        work.clear()
        basic.authenticate(user + b":wrong", "10.0.0.1:1")
        costs.append(sum(work))
    assert costs == [40 << LOG2_N] * 3


def test_a_hash_with_the_parameters_of_an_earlier_release_is_reported() -> None:
    weak = "$scrypt$ln=14,r=8,p=1$" + "A" * 22 + "$" + "A" * 43
    assert BasicAuthenticator({"alice": weak, "bob": HASH, "carol": "x"}, Clock()).weak_users == ["alice"]
