"""Tests of the state tables: the expected effect of every cell is listed a second time, independently of the code."""
