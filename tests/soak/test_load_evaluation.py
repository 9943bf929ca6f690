"""Distribution of the times without acknowledgements (`load_evaluation.py`)."""

from __future__ import annotations

from soak.load_evaluation import distribution, table, titles


def test_the_histogram_counts_each_time_once_below_its_bound() -> None:
    waits = [0.0, 0.099, 0.1, 0.3, 0.99, 2.5, 9.99, 10.0, 60.0]
    found = distribution(waits)
    assert found["histogram"] == {"<0.1": 2, "<0.25": 1, "<0.5": 1, "<1": 1, "<2.5": 0, "<5": 1, "<10": 1, ">=10": 2}
    assert (found["faults"], found["p50"], found["p99"], found["max"]) == (9, 0.99, 60.0, 60.0)
    assert list(found["histogram"]) == titles()


def test_the_table_has_a_row_for_each_fault() -> None:
    rows = table({"delay": distribution([0.2, 3.0]), "kill of the primary": distribution([0.4])}).splitlines()
    assert len(rows) == 4 and len({row.count("|") for row in rows}) == 1
    assert rows[2] == "| delay | 2 | 0 | 1 | 0 | 0 | 0 | 1 | 0 | 0 | 3.0 | 3.0 | 3.0 |"
