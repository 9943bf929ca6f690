"""`HostHealth`, the health monitor's name in the official library's test module."""

from bmqtwist.sdk.blazingmq.values import BasicHealthMonitor

HostHealth = BasicHealthMonitor
