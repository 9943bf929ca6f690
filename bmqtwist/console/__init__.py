"""The HTTP face: health, metrics (pages later). Reads snapshots only."""
