"""Members of `domains/<name>.json`: a redirect, or a definition with location and parameters.

`provider.py` loads them and has the validation rules; `engine_settings.py` converts them to `DomainSettings`
(`queue/domain.py`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from bmqtwist.config.declare import Int32, Int64, Natural, Natural64, Section, member
from bmqtwist.queue.mode import QueueMode


class Fanout(Section):
    """mode.fanout"""

    app_ids: tuple[str, ...] = member("the apps; each receives every message", (), name="appIDs")
    publish_app_id_metrics: bool = member("publish metrics per app", True)


class Priority(Section):
    """mode.priority"""


class Broadcast(Section):
    """mode.broadcast"""


class Mode(Section, choice=True):
    """mode"""

    fanout: Fanout | None = member("each app receives every message", None)
    priority: Priority | None = member("one consumer with the highest priority receives a message", None)
    broadcast: Broadcast | None = member("each connected consumer receives every message; messages are not stored", None)

    @property
    def kind(self) -> QueueMode:
        if self.fanout is not None:
            return QueueMode.FANOUT
        return QueueMode.PRIORITY if self.priority is not None else QueueMode.BROADCAST


class InMemory(Section):
    """storage.config.inMemory"""


class FileBacked(Section):
    """storage.config.fileBacked"""


class StorageKind(Section, choice=True):
    """storage.config"""

    in_memory: InMemory | None = member("messages are stored in memory, and lost when the node ends", None)
    file_backed: FileBacked | None = member("messages are stored in files", None)


class LimitsConfig(Section):
    """storage.domainLimits, storage.queueLimits"""

    messages: Int64 = member("quota of messages; one more is accepted")
    messages_watermark_ratio: float = member("high watermark, as a ratio of the quota from 0 to 1", 0.8)
    bytes: Int64 = member("quota of payloads; exceeded by at most one message", unit="B")
    bytes_watermark_ratio: float = member("high watermark, as a ratio of the quota from 0 to 1", 0.8)


class Storage(Section):
    """storage"""

    domain_limits: LimitsConfig = member("total quota of the queues of the domain")
    queue_limits: LimitsConfig = member("quota of each queue")
    config: StorageKind = member("kind of storage")


class MessageGroups(Section):
    """msgGroupIdConfig"""

    rebalance: bool = member("move groups when consumers connect and disconnect", False)
    max_groups: Int32 = member("maximum number of groups", 2147483647)
    ttl_seconds: Int64 = member("lifetime of a group", 0, unit="s")


class Eventual(Section):
    """consistency.eventual"""


class Strong(Section):
    """consistency.strong"""


class Consistency(Section, choice=True):
    """consistency"""

    eventual: Eventual | None = member("ACK when the primary has stored the message", None)
    strong: Strong | None = member("ACK and delivery when a majority has stored the message", None)


class ExpressionConfig(Section):
    """subscriptions[].expression"""

    version: Literal["E_UNDEFINED", "E_VERSION_1"] = member("language of the text", "E_UNDEFINED")
    text: str = member("condition on message properties; empty = always true", "")


class SubscriptionConfig(Section):
    """subscriptions[]"""

    app_id: str = member("the app of a fanout domain; without effect in a priority or broadcast domain", "")
    expression: ExpressionConfig = member("condition of its messages")


AckCopies: TypeAlias = Literal["none", "one", "majority", "all"]


class DomainConfig(Section):
    """definition.parameters"""

    name: str = member("informational; the name of the file is used", "")
    mode: Mode = member("distribution of messages to consumers")
    storage: Storage = member("storage and quotas")
    max_consumers: Natural = member("maximum number of consumers per queue; 0 = no limit", 0)
    max_producers: Natural = member("maximum number of producers per queue; 0 = no limit", 0)
    max_queues: Natural = member("maximum number of queues of the domain; 0 = bmqtwist.queuesPerDomainMax of the broker", 0)
    msg_group_id_config: MessageGroups | None = member("message groups", None,
                                                       ignored="message groups are implemented in no broker")
    max_idle_time: Natural = member("time that a message is undelivered before an alarm; 0 = off; deletes no message", 0,
                                    unit="s")
    message_ttl: Natural64 = member("time to live of a message", unit="s")
    max_delivery_attempts: Natural = member("delivery attempts before a message is removed as poison; 0 = no limit; at most "
                                            "63", 0)
    deduplication_time_ms: Natural = member("time in which a repeated GUID is detected", 300000, unit="ms")
    consistency: Consistency = member("when a PUT is acknowledged", Consistency(eventual=Eventual()))
    ack_copies: AckCopies | None = member(
        "other nodes that must have stored a message before its ACK and delivery: `none` or `one` with eventual "
        "consistency; `majority`, including this node, or `all` available nodes, but at least a majority, with strong "
        "consistency; absent = `none` or `majority` (BlazingMQ does not have this member)", None)
    subscriptions: tuple[SubscriptionConfig, ...] = member("conditions of the apps", ())

    @property
    def copies(self) -> AckCopies:
        """The value of `ack_copies`, by default derived from the consistency."""
        return self.ack_copies or ("majority" if self.strong else "none")

    @property
    def in_memory(self) -> bool:
        return self.storage.config.in_memory is not None

    @property
    def strong(self) -> bool:
        return self.consistency.strong is not None

    @property
    def app_ids(self) -> tuple[str, ...]:
        """The configured apps of a fanout domain; empty in other modes."""
        return self.mode.fanout.app_ids if self.mode.fanout is not None else ()


class DomainDefinition(Section):
    """definition"""

    location: str = member("name of the cluster")
    parameters: DomainConfig = member("the domain")


class DomainVariant(Section, choice=True):
    """domains/<name>.json"""

    definition: DomainDefinition | None = member("the domain", None)
    redirect: str | None = member("name of the domain to use instead, which must not be a redirect", None)
