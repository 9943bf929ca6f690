"""Configuration directories for tests: `bmqtwist.testing.config`, re-exported for scenarios."""

from bmqtwist.testing.config import (
    APPS,
    CLUSTER,
    NODE,
    ConfigDirectory,
    app_subscription,
    broker_config,
    clusters_config,
    domain_config,
)

__all__ = ["APPS", "CLUSTER", "NODE", "ConfigDirectory", "app_subscription", "broker_config", "clusters_config",
           "domain_config"]
