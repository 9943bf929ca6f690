"""One broker: its turn, the walls around its parts, its clusters and their metadata, timers, the graceful stop. Pure."""
