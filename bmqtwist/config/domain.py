"""What `domains/<name>.json` says: a redirect, or a definition with location and parameters."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bmqtwist.config.declare import Int32, Int64, Natural, Natural64, Section, member
from bmqtwist.queue.mode import QueueMode


class Fanout(Section):
    """mode.fanout"""

    app_ids: tuple[str, ...] = member("the apps; each gets every message", (), name="appIDs")
    publish_app_id_metrics: bool = member("publish metrics per app", True)


class Priority(Section):
    """mode.priority"""


class Broadcast(Section):
    """mode.broadcast"""


class Mode(Section, choice=True):
    """mode"""

    fanout: Fanout | None = member("every app gets every message", None)
    priority: Priority | None = member("one consumer gets a message, the highest priority first", None)
    broadcast: Broadcast | None = member("every consumer present gets a message; nothing is kept", None)

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

    in_memory: InMemory | None = member("messages die with the node", None)
    file_backed: FileBacked | None = member("messages are kept in files", None)


class LimitsConfig(Section):
    """storage.domainLimits, storage.queueLimits"""

    messages: Int64 = member("quota of messages; one more is admitted")
    messages_watermark_ratio: float = member("part of the quota that raises an alarm, from 0 to 1", 0.8)
    bytes: Int64 = member("quota of payload; exceeded by one message at most", unit="B")
    bytes_watermark_ratio: float = member("part of the quota that raises an alarm, from 0 to 1", 0.8)


class Storage(Section):
    """storage"""

    domain_limits: LimitsConfig = member("quota of all queues of the domain together")
    queue_limits: LimitsConfig = member("quota of each queue")
    config: StorageKind = member("where messages are kept")


class MessageGroups(Section):
    """msgGroupIdConfig"""

    rebalance: bool = member("move groups when consumers come and go", False)
    max_groups: Int32 = member("number of groups", 2147483647)
    ttl_seconds: Int64 = member("life of a group", 0, unit="s")


class Eventual(Section):
    """consistency.eventual"""


class Strong(Section):
    """consistency.strong"""


class Consistency(Section, choice=True):
    """consistency"""

    eventual: Eventual | None = member("ACK when the primary has the message", None)
    strong: Strong | None = member("ACK and delivery when a majority has the message", None)


class ExpressionConfig(Section):
    """subscriptions[].expression"""

    version: Literal["E_UNDEFINED", "E_VERSION_1"] = member("language of the text", "E_UNDEFINED")
    text: str = member("condition on message properties; empty = always true", "")


class SubscriptionConfig(Section):
    """subscriptions[]"""

    app_id: str = member("which app; empty = the only one of a priority or broadcast domain", "")
    expression: ExpressionConfig = member("which messages")


AckCopies: TypeAlias = Literal["none", "one", "majority", "all"]


class DomainConfig(Section):
    """definition.parameters"""

    name: str = member("for people; the file's name decides", "")
    mode: Mode = member("who gets a message")
    storage: Storage = member("where messages are kept, and how many")
    max_consumers: Natural = member("consumers per queue; 0 = no limit", 0)
    max_producers: Natural = member("producers per queue; 0 = no limit", 0)
    max_queues: Natural = member("queues of the domain; 0 = no limit", 0)
    msg_group_id_config: MessageGroups | None = member("message groups", None,
                                                       ignored="message groups exist in no broker")
    max_idle_time: Natural = member("alarm when a message waits so long undelivered; 0 = off; deletes nothing", 0,
                                    unit="s")
    message_ttl: Natural64 = member("life of a message", unit="s")
    max_delivery_attempts: Natural = member("deliveries of a message before it is dropped as poison; 0 = no limit; "
                                            "at most 63", 0)
    deduplication_time_ms: Natural = member("how long a message's GUID is remembered", 300000, unit="ms")
    consistency: Consistency = member("when a PUT is acknowledged", Consistency(eventual=Eventual()))
    ack_copies: AckCopies | None = member(
        "which other nodes must have a message safe before it is acknowledged and delivered: `none` or `one` of them with "
        "eventual consistency; `majority`, this node counted, or `all` that are available, and a majority in any case, with "
        "strong consistency; absent = `none`, or `majority` (the original does not know it)", None)
    subscriptions: tuple[SubscriptionConfig, ...] = member("conditions of the apps", ())

    @property
    def copies(self) -> AckCopies:
        """Which other nodes must have a message, whether that is said or follows from the consistency."""
        return self.ack_copies or ("majority" if self.strong else "none")

    @property
    def in_memory(self) -> bool:
        return self.storage.config.in_memory is not None

    @property
    def strong(self) -> bool:
        return self.consistency.strong is not None

    @property
    def app_ids(self) -> tuple[str, ...]:
        """The configured apps of a fanout domain; empty for the other modes."""
        return self.mode.fanout.app_ids if self.mode.fanout is not None else ()


class DomainDefinition(Section):
    """definition"""

    location: str = member("name of the cluster")
    parameters: DomainConfig = member("the domain")


class DomainVariant(Section, choice=True):
    """domains/<name>.json"""

    definition: DomainDefinition | None = member("the domain", None)
    redirect: str | None = member("name of another domain that is used instead; that one is no redirect", None)
