"""The HTTP face: health, readiness, metrics; the web console of the whole cluster. Looks at the broker, never in its way."""
