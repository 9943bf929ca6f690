"""`HostHealth`, the health monitor's name in the official library's test module.

The monitor itself is `BasicHealthMonitor` in `values.py`.
"""

from bmqtwist.sdk.blazingmq.values import BasicHealthMonitor

HostHealth = BasicHealthMonitor
