"""`bmq cluster unsafe-force`: single-node operation of the remaining node of three."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.cli_kit import Cli

from bmqtwist.sdk import simple
from bmqtwist.testing import ClusterProcess

QUEUE = "bmq://bmq.test.persistent.priority.sc/q"
pytestmark = pytest.mark.process


def test_unsafe_force_lets_the_remaining_node_serve_alone(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path) as cluster:
        left = cluster["n2"]
        with simple.Session(left.url) as session:
            assert session.open(QUEUE, write=True).post(b"before").ok
        cli, etc = Cli(left.url), str(left.config.etc)
        running = cli.run_in_process("cluster", "unsafe-force", etc, "--accept-data-loss")
        assert running.code == 2 and "is used by another broker" in running.err
        for name in cluster.names:
            cluster[name].kill()
        refused = cli.run_in_process("cluster", "unsafe-force", etc)
        assert refused.code == 2 and "--accept-data-loss" in refused.err
        assert cli.run_in_process("cluster", "unsafe-clear", etc).code == 2
        done = cli.run_in_process("cluster", "unsafe-force", etc, "--accept-data-loss")
        assert done.code == 0 and b"n1, n3 cannot join with their present storage" in done.out
        assert cli.run_in_process("cluster", "unsafe-force", etc, "--accept-data-loss").code == 2
        for _ in range(2):
            since = len(left.records)
            left.launch()
            left.expect("UNSAFE: this node runs alone", since=since, deadline=60.0)
            left.expect("Cluster (c3) is available", since=since, deadline=60.0)
            assert "UNSAFE" in left.admin("CLUSTERS CLUSTER c3 STATUS")
            with simple.Session(left.url) as session:
                assert session.open(QUEUE, write=True).post(b"after").ok
            assert left.stop() == 0
        assert cli.run_in_process("cluster", "unsafe-clear", etc).code == 0
        since = len(left.records)
        left.launch()
        left.expect("BMQbrkr started successfully", since=since, deadline=60.0)
        assert not [line for line in left.records[since:] if "UNSAFE" in line]
