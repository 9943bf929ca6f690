"""A configuration directory for tests: that of `bmqtwist.testing`, under the name the scenarios know."""

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
