"""The name under which tests written for the official library find the health monitor."""

from bmqtwist.sdk.blazingmq.values import BasicHealthMonitor

HostHealth = BasicHealthMonitor
