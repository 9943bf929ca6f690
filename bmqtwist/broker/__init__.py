"""One broker: sessions, domains and clusters, the work of a turn, the local producer, the graceful stop."""
