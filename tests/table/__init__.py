"""Tests of the state tables: the expected effect of every cell is listed a second time, independently of the code.

The tables are made with `bmqtwist/machine.py`; random sequences of events are in `tests/property/`.
"""
