"""Guessed passwords: 18 logins of the user at once, again and again, and logins with names that do not exist.

The number of passwords that the console verifies is limited by user and by address. Afterwards the user must be able to log
in from another address.
"""

from __future__ import annotations

import http.client
import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bmqtwist.security.login_limiter import ADDRESS_REFILL_S, FAILURES_PER_ADDRESS, FREE_FAILURES
from soak.security.target import READ_SECONDS_MAX, Target, rounds

AT_ONCE, PERIOD_S, USER, PASSWORD = 18, 0.5, "ada", "x"
VERIFIED = 403
_CSRF = re.compile(rb'name="csrf" value="([^"]+)"')


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Guess; return the statuses of the answers by kind of user."""
    known, unknown = Counter[int](), Counter[int]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number in rounds(seconds, PERIOD_S):
            known.update(threads.map(lambda guess: login(target, USER, f"guess{guess}"), range(AT_ONCE)))
            unknown[login(target, f"user{number}", "guess")] += 1
    wanted = FREE_FAILURES + 2 + math.log2(seconds + 1)
    total = FAILURES_PER_ADDRESS + 1 + seconds / ADDRESS_REFILL_S
    found = []
    if known[VERIFIED] > wanted:
        found.append(f"{known[VERIFIED]} guesses of one user were verified, expected at most {wanted:.0f}")
    if known[VERIFIED] + unknown[VERIFIED] > total:
        found.append(f"{known[VERIFIED] + unknown[VERIFIED]} guesses were verified, expected at most {total:.0f}")
    if (status := login(target, USER, PASSWORD, "127.0.0.2")) != 303:
        found.append(f"the user cannot log in from another address: {status}")
    return {"known user": dict(known), "unknown users": dict(unknown), "violations": found}


def login(target: Target, user: str, password: str, address: str = "127.0.0.1") -> int:
    """Return the status of a login; 0 = no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", target.http, READ_SECONDS_MAX, (address, 0))
    try:
        connection.request("GET", "/login")
        form = connection.getresponse()
        csrf = _CSRF.search(form.read())
        if csrf is None:
            return form.status
        cookie = (form.getheader("Set-Cookie") or "").partition(";")[0]
        connection.request("POST", "/login", f"user={user}&password={password}&csrf={csrf[1].decode()}&next=",
                           {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded",
                            "Origin": f"http://127.0.0.1:{target.http}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
