"""Fixtures of scenarios with real processes."""

from kit.secure_broker import secure

__all__ = ["secure"]
