"""Distribution of tests to workers in units with an estimated duration."""

from __future__ import annotations

from kit.schedule import Units

LONG = "tests/sim/test_a.py::test_long[1]"


def test_a_long_test_is_its_own_unit_and_not_counted_with_its_file() -> None:
    units = Units({"tests/sim/test_a.py": 12.0, LONG: 9.0, "tests/sim/test_a.py::test_short": 2.0})
    assert units.unit(LONG) == LONG and units.unit("tests/sim/test_a.py::test_short") == "tests/sim/test_a.py"
    assert units.seconds == {LONG: 9.0, "tests/sim/test_a.py": 3.0}


def test_tests_that_share_a_browser_or_jvm_are_one_unit() -> None:
    units = Units({"tests/spark/test_a.py": 12.0, "tests/spark/test_a.py::test_long": 9.0, "tests/spark/test_b.py": 1.0})
    assert units.unit("tests/spark/test_a.py::test_long") == units.unit("tests/spark/test_b.py::test") == "tests/spark/"
    assert units.seconds == {"tests/spark/": 13.0}
