"""The HTTP face: health, readiness, metrics. Reads snapshots only."""
