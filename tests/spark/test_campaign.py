"""Short fault campaign: query, broker and connections are killed during processing.

The long campaign is `soak/spark.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.spark import Campaign


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark_is_there")
def test_no_message_is_lost_or_duplicated_when_query_broker_and_connections_are_killed(tmp_path: Path) -> None:
    """Uses two separate Spark sessions."""
    numbers = Campaign(tmp_path, 400, kills=1, broker_kills=1, drops=1, executor_kills=0, sink="parquet", seed=5).run()
    assert (numbers["lost"], numbers["twice"], numbers["left in the queue"]) == (0, 0, 0)
    assert numbers["killed queries"] == 1 and numbers["killed brokers"] == 1
