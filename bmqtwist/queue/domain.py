"""Settings of a domain in terms of the queue engine, and the state that its queues share: quota, compiled conditions.

`config/engine_settings.py` makes `DomainSettings` from the domain configuration, whose members and defaults are
declared in `config/domain.py`. `DomainRules` is a domain at a relay; `root.Domain` extends it at primaries. The limits
are applied by `Meter` (messages, bytes) and by `handles.open_queue` (producers, consumers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bmqtwist.queue.expression import CompiledExpression, compile_expression
from bmqtwist.queue.meter import Meter
from bmqtwist.queue.mode import QueueMode
from bmqtwist.storage.gate import Copies


class MeterLimits(NamedTuple):
    """Limits of a meter: messages and bytes, with the ratios of their high watermarks."""

    messages: int
    bytes: int
    messages_watermark_ratio: float = 0.8
    bytes_watermark_ratio: float = 0.8


@dataclass(frozen=True, slots=True)
class Throttle:
    """Minimum interval between redeliveries of possibly poisonous messages to one consumer (messageThrottleConfig)."""

    low_threshold: int = 2
    high_threshold: int = 4
    low_interval_s: float = 1.0
    high_interval_s: float = 3.0


@dataclass(frozen=True, slots=True)
class DomainSettings:
    """Domain configuration in terms of the queue engine. Names contain the unit of times; 0 = unlimited."""

    mode: QueueMode
    in_memory: bool
    domain_limits: MeterLimits
    queue_limits: MeterLimits
    ttl_s: int
    app_ids: tuple[str, ...] = ()
    max_consumers: int = 0
    max_producers: int = 0
    max_queues: int = 0
    max_idle_s: int = 0
    max_attempts: int = 0
    deduplication_ms: int = 300_000
    copies: Copies = Copies.NONE
    publish_app_metrics: bool = True
    conditions: Mapping[str, str] = field(default_factory=dict)  # application subscriptions: appId ("" = default) -> text


class DomainRules:
    """A domain at a relay, and the base of a domain at primaries (`root.Domain`). Mode and storage type never change; other
    settings may. `source`: name of the domain whose configuration it has; `opening`: number of opens in progress."""

    def __init__(self, name: str, source: str, cluster: str, settings: DomainSettings, throttle: Throttle) -> None:
        self.name, self.source, self.cluster, self.throttle = name, source, cluster, throttle
        self.mode, self.in_memory = settings.mode, settings.in_memory
        self.meter = Meter(f"domain [bmq://{name}]")
        if self.mode == QueueMode.BROADCAST:
            self.meter.disabled = True
        self.opening = 0
        self.apply_settings(settings)

    def apply_settings(self, settings: DomainSettings) -> None:
        """Set the limits and compile the application subscriptions; mode and storage type stay."""
        self.settings = settings
        self.ttl_s, self.max_attempts = settings.ttl_s, settings.max_attempts
        self.max_consumers, self.max_producers = settings.max_consumers, settings.max_producers
        self.max_queues, self.max_idle_s = settings.max_queues, settings.max_idle_s
        self.conditions: dict[str, CompiledExpression] = {
            app_id: compile_expression(text) for app_id, text in settings.conditions.items() if text}
        self.meter.reconfigure(*settings.domain_limits)
