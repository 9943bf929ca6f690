"""Everything that can be observed of a broker, as plain immutable data: state, events, alarms, statistics, metrics."""
