"""Guessed passwords: 18 logins of the user at once, again and again, and logins with names that do not exist.

The number of passwords that the console verifies is limited by user and by address. Afterwards the user must be able to log
in from another address.
"""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kit.console_client import Tab

from bmqtwist.security.login_limiter import ADDRESS_REFILL_S, FAILURES_PER_ADDRESS, FREE_FAILURES
from soak.security.target import Target, rounds

AT_ONCE, PERIOD_S, USER = 18, 0.5, "ada"
VERIFIED = 403


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Guess; return the statuses of the answers by kind of user."""
    known, unknown = Counter[int](), Counter[int]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number in rounds(seconds, PERIOD_S):
            known.update(threads.map(lambda guess: target.tab().log_in(USER, f"guess{guess}"), range(AT_ONCE)))
            unknown[target.tab().log_in(f"user{number}", "guess")] += 1
    wanted = FREE_FAILURES + 2 + math.log2(seconds + 1)
    total = FAILURES_PER_ADDRESS + 1 + seconds / ADDRESS_REFILL_S
    found = []
    if known[VERIFIED] > wanted:
        found.append(f"{known[VERIFIED]} guesses of one user were verified, expected at most {wanted:.0f}")
    if known[VERIFIED] + unknown[VERIFIED] > total:
        found.append(f"{known[VERIFIED] + unknown[VERIFIED]} guesses were verified, expected at most {total:.0f}")
    if (status := Tab(f"http://127.0.0.1:{target.http}", "127.0.0.2").log_in(USER)) != 303:
        found.append(f"the user cannot log in from another address: {status}")
    return {"known user": dict(known), "unknown users": dict(unknown), "violations": found}
