"""Key file of the consoles (`http.keyFile`): the secret that signs logins and the tokens of consoles to each other.

Called by `console/service.py`, and by `daemon/preflight.py` before a start. Key files that other users of the machine can
read are found by `security/exposure.py`.
"""

from __future__ import annotations

from bmqtwist.errors import LocalError

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 64 << 10


def read_secret(path: str) -> bytes:
    """Return the content of a key file; empty = no path. Raises LocalError if it is unreadable, too short or too long."""
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise LocalError(f"http.keyFile: '{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise LocalError(f"http.keyFile: '{path}' has {len(secret)} bytes, expected {SECRET_BYTES_MIN} to "
                         f"{SECRET_BYTES_MAX}. Create it with `openssl rand -hex 32`.")
    return secret
