"""Conversion of domain configurations to the settings of the queue engine, when a broker or proxy loads a domain.

Called by `broker/access.py` (a broker) and `relay/proxy.py` (a proxy). The settings themselves are declared in
`queue/domain.py`.
"""

from __future__ import annotations

from bmqtwist.config.clusters import MessageThrottle
from bmqtwist.config.domain import DomainConfig, LimitsConfig
from bmqtwist.queue.domain import DomainSettings, MeterLimits, Throttle
from bmqtwist.queue.mode import QueueMode
from bmqtwist.storage.gate import Copies


def domain_settings(config: DomainConfig, queues_max: int) -> DomainSettings:
    """Return the engine's settings of a validated domain. `queues_max`: limit of its queues if it has none of its own."""
    mode = config.mode
    return DomainSettings(
        mode=mode.kind,
        in_memory=config.in_memory,
        domain_limits=_limits(config.storage.domain_limits),
        queue_limits=_limits(config.storage.queue_limits),
        ttl_s=config.message_ttl,
        app_ids=config.app_ids,
        max_consumers=config.max_consumers,
        max_producers=config.max_producers,
        max_queues=config.max_queues or queues_max,
        max_idle_s=config.max_idle_time,
        max_attempts=config.max_delivery_attempts,
        deduplication_ms=config.deduplication_time_ms,
        copies=Copies[config.copies.upper()],
        publish_app_metrics=mode.fanout.publish_app_id_metrics if mode.fanout is not None else True,
        conditions={each.app_id if mode.kind == QueueMode.FANOUT else "": each.expression.text
                    for each in config.subscriptions})


def relayed_settings(mode: QueueMode, deduplication_ms: int) -> DomainSettings:
    """Return the settings of a domain whose primary is another broker: mode and deduplication time from its open response,
    no limits, because the primary enforces them."""
    unlimited = MeterLimits(0, 0)
    return DomainSettings(mode=mode, in_memory=True, domain_limits=unlimited, queue_limits=unlimited, ttl_s=0,
                          deduplication_ms=deduplication_ms)


def _limits(config: LimitsConfig) -> MeterLimits:
    return MeterLimits(config.messages, config.bytes, config.messages_watermark_ratio, config.bytes_watermark_ratio)


def throttle(config: MessageThrottle) -> Throttle:
    """Return thresholds and delays of redelivery, in seconds."""
    return Throttle(config.low_threshold, config.high_threshold, config.low_interval / 1000,
                    config.high_interval / 1000)
