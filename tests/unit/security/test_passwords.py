"""Stored passwords: hash lines and plain text."""

from __future__ import annotations

import pytest

from bmqtwist.errors import LocalError
from bmqtwist.security.passwords import PASSWORD_BYTES_MAX, StoredPassword, make_hash

SALT = bytes(range(16))


def test_a_hash_matches_its_password_and_no_other() -> None:
    """Other passwords must be rejected."""
    stored = StoredPassword(make_hash("s3cret", SALT))
    assert stored.is_hash
    assert stored.matches(b"s3cret")
    assert not stored.matches(b"s3cret ")
    assert not stored.matches(b"")


def test_the_same_password_with_another_salt_has_another_hash() -> None:
    """Equal passwords of two users must not be recognizable."""
    assert make_hash("same", SALT) != make_hash("same", SALT[::-1])


def test_a_plain_text_password_is_compared_literally() -> None:
    """Configurations of the original contain plain-text passwords."""
    stored = StoredPassword("pässword")
    assert not stored.is_hash
    assert stored.matches("pässword".encode())
    assert not stored.matches(b"password")


def test_a_hash_line_is_not_accepted_as_a_password() -> None:
    """A leaked configuration must not permit a login."""
    line = make_hash("s3cret", SALT)
    assert not StoredPassword(line).matches(line.encode())


SALT_TEXT, HASH_TEXT = "AAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize("line", [
    "$scrypt$", f"$scrypt$ln=14,r=8,p=1${SALT_TEXT}", f"$scrypt$ln=x,r=8,p=1${SALT_TEXT}${HASH_TEXT}",
    "$scrypt$ln=14,r=8,p=1$*$AAAA", f"$scrypt$ln=30,r=8,p=1${SALT_TEXT}${HASH_TEXT}",
    f"$scrypt$ln=14,r=8,p=1$AAAA${HASH_TEXT}", f"$scrypt$ln=14,r=8,p=1${SALT_TEXT}$AAAA",
    f"$scrypt$ln=0,r=8,p=1${SALT_TEXT}${HASH_TEXT}"])
def test_a_malformed_or_too_expensive_hash_line_is_refused_at_the_start(line: str) -> None:
    """The error is detected at the start, not at the first login, and no login may use gigabytes."""
    with pytest.raises(LocalError, match="bmq password"):
        StoredPassword(line)


def test_an_overlong_password_is_refused_without_being_hashed() -> None:
    """The length of a client's password is checked before the expensive hash."""
    assert not StoredPassword("x").matches(b"x" * (PASSWORD_BYTES_MAX + 1))
    with pytest.raises(LocalError):
        make_hash("x" * (PASSWORD_BYTES_MAX + 1), SALT)


@pytest.mark.parametrize(("password", "salt"), [("", SALT), ("x", b"short")])
def test_an_empty_password_or_a_short_salt_is_refused(password: str, salt: bytes) -> None:
    """Both would create an insecure hash."""
    with pytest.raises(LocalError):
        make_hash(password, salt)
