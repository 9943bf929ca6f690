"""What can be seen of a broker: plain immutable snapshots, statistics, tables, metrics."""
