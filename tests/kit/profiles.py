"""Times of the profile `fast` of `bmq cluster up`, for clusters whose configuration the tests write.

Used by `sim/test_failover_time.py` and `soak/cluster_load.py`; the profiles are in `bmqtwist/config/sample.py`.
"""

from __future__ import annotations

import json
from typing import Any

from bmqtwist.config.load import BROKER_FILE
from bmqtwist.config.sample import SAMPLE_CLUSTER, cluster_files

_INTERFACES = json.loads(cluster_files(SAMPLE_CLUSTER, "fast")["n1"][BROKER_FILE])["appConfig"]["networkInterfaces"]
FAST_APP: dict[str, Any] = {"heartbeats": _INTERFACES["heartbeats"],
                            "tcp": {"heartbeatIntervalMs": _INTERFACES["tcpInterface"]["heartbeatIntervalMs"]}}
