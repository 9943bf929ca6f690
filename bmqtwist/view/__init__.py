"""Observation of a broker as plain immutable data: state, events, alarms, statistics, metrics."""
