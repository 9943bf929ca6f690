"""Login generations: a logout increments the generation of its user, durably and at all nodes.

A login contains the generation of its user at that time, and is valid while the generation is not higher. The file
`console-logouts.json` in the directory of the log contains the generations, so that a restart does not revive a login.

`access.Cookies` checks logins with it, `service.py` creates it, and `exchange.py` exchanges generations with other
nodes. LOGIN_GENERATION_MAX is in `bmqtwist/limits.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from bmqtwist.console.documents import compact
from bmqtwist.limits import LOGIN_GENERATION_MAX
from bmqtwist.report import FailedFiles

FILE = "console-logouts.json"
FILE_BYTES_MAX = 1 << 20


class LoginGenerations:
    """Generations of all users. `folder`: "" = no file; `failed` is called if it cannot be read, `failed_files` contains it
    while it cannot be written; `is_complete`: no logout from before the start can be missing."""

    def __init__(self, users: Collection[str] = (), folder: str = "",
                 failed: Callable[[str], None] | None = None, failed_files: FailedFiles | None = None) -> None:
        self._failed_files = failed_files or FailedFiles()
        self._users, self._failed = frozenset(users), failed or (lambda reason: None)
        self._path = Path(folder) / FILE if folder else None
        self.numbers: dict[str, int] = {}
        self.has_file = self._path is not None and self._read(self._path)
        self.is_complete = False

    def of(self, user: str) -> int:
        """Return the generation of a user."""
        return self.numbers.get(user, 0)

    def end(self, user: str) -> None:
        """End all logins of a user."""
        self.numbers[user] = self.of(user) + 1
        self._write()

    def merge(self, numbers: object) -> None:
        """Keep the higher number of each user; unknown users and other values are ignored."""
        if not isinstance(numbers, Mapping):
            return
        newer = {user: number for user, number in numbers.items() if user in self._users and isinstance(number, int)
                 and not isinstance(number, bool) and self.of(user) < number <= LOGIN_GENERATION_MAX}
        if newer:
            self.numbers.update(newer)
            self._write()

    def _read(self, path: Path) -> bool:
        """Read the file; False = logouts may be missing, because the file is damaged or unreadable."""
        try:
            with open(path, "rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return True
        except (OSError, ValueError, RecursionError) as error:
            self._failed(f"The logouts '{path}' cannot be read: {error}. Users must log in again.")
            return False
        self.numbers = {user: number for user, number in found.items() if isinstance(number, int)
                        } if isinstance(found, dict) else {}
        return isinstance(found, dict)

    def _write(self) -> None:
        """Write and sync the file and its directory."""
        if self._path is None:
            return
        new = self._path.with_name(f"{FILE}.new")
        try:
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, compact(self.numbers).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(new, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._failed_files.discard(str(self._path))
        except OSError as error:
            self._failed_files.add(str(self._path), f"the logouts cannot be written: {error.strerror or error}. A restart "
                                   "of this node revives ended logins", self._write)
