"""Limits of failed logins, by address. Pure: time is an argument.

    of a user from one address    FREE_FAILURES, then a delay that doubles up to WAIT_SECONDS_MAX; they no longer count
                                  FAILURES_EXPIRE_S after the last one
    from one address              FAILURES_PER_ADDRESS at once, then one per ADDRESS_REFILL_S

The failures of other addresses do not delay a user. An attempt counts as failed until `on_success`, so that several at
once are not more than several in sequence. Called by `console/server.py` for logins of the console, and by
`authenticators.py` for credentials of clients.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from bmqtwist.link.unauthenticated import network_of

FREE_FAILURES: Final = 3  # failed logins without delay
WAIT_SECONDS_MAX: Final = 60.0
FAILURES_EXPIRE_S: Final = 900.0
FAILURES_PER_ADDRESS: Final = 30
ADDRESS_REFILL_S: Final = 10.0
TRACKED_MAX: Final = 10_000  # addresses, and users at an address; the oldest is dropped


class LoginLimiter:
    """Failed logins. `address` is without a port; a network of IPv6 counts as one address."""

    def __init__(self) -> None:
        self._users: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()  # failures, time of the last one
        self._addresses: OrderedDict[str, tuple[float, float]] = OrderedDict()  # failures left, time of the last one

    def wait_seconds(self, address: str, name: str, now: float) -> float:
        """Return the seconds until the next attempt is accepted."""
        count, last = self._users.get(_key(address, name), (0, now))
        wait = last + min(WAIT_SECONDS_MAX, 2.0 ** (count - FREE_FAILURES)) - now if count > FREE_FAILURES else 0.0
        return max(0.0, wait, (1.0 - self._left(network_of(address), now)) * ADDRESS_REFILL_S)

    def on_attempt(self, address: str, name: str, now: float) -> None:
        """Count an attempt, as failed until `on_success`."""
        key, network = _key(address, name), network_of(address)
        count, last = self._users.pop(key, (0, now))
        self._users[key] = (1 if now - last > FAILURES_EXPIRE_S else count + 1), now
        left = self._left(network, now)
        self._addresses.pop(network, None)
        self._addresses[network] = left - 1.0, now
        for known in (self._users, self._addresses):
            while len(known) > TRACKED_MAX:
                known.popitem(last=False)

    def on_success(self, address: str, name: str) -> None:
        """Reset the failures of the user at this address."""
        self._users.pop(_key(address, name), None)
        network = network_of(address)
        if network in self._addresses:
            left, last = self._addresses[network]
            self._addresses[network] = left + 1.0, last

    def _left(self, network: str, now: float) -> float:
        left, last = self._addresses.get(network, (float(FAILURES_PER_ADDRESS), now))
        return min(FAILURES_PER_ADDRESS, left + (now - last) / ADDRESS_REFILL_S)


def _key(address: str, name: str) -> tuple[str, str]:
    return network_of(address), name[:64]
