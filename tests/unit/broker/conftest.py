"""Fixtures of the tests of brokers."""

from kit.paced import memory

__all__ = ["memory"]
