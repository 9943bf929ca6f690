"""One broker: configuration, the turn, administration, statistics, security, the service that runs it."""
