"""HTTP service of a broker: health, readiness, metrics, and the web console of the whole cluster."""
