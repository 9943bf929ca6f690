"""One broker: sessions, domains and clusters, what happens in a turn, local producers, the graceful stop."""
