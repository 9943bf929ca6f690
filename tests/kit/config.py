"""Configuration directories for tests: `bmqtwist.testing.config`, re-exported for scenarios.

Used by scenarios and the fuzz tests; the generator is `bmqtwist/testing/config.py`.
"""

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
