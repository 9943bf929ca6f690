"""Class decorator with hints for mypyc, which compiles the hot modules (`setup.py`); without mypyc it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    def mypyc_attr(**_):
        """`acyclic`: no reference cycle contains an instance that is no longer used, so that the cyclic garbage collector
        need not track instances."""
        return lambda cls: cls

__all__ = ["mypyc_attr"]
