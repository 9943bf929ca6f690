"""What is said to the compiler of the hot modules (`setup.py`). It means nothing where they are not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    def mypyc_attr(**_):
        """`acyclic`: nothing that an object holds leads back to it once it is done with, so that the cyclic collector need
        not know of it."""
        return lambda cls: cls

__all__ = ["mypyc_attr"]
