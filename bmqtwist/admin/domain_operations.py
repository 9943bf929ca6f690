"""Admin operations on domains and queues: purge, list, reconfigure, remove. A refusal is a LocalError or Refused whose text
is for the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.admin.commands import ListedMessage, Purged, PurgeReport, QueueContents, Transitions
from bmqtwist.errors import LocalError, Refused
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.steps import Steps
from bmqtwist.view import cluster_facts, queue_facts, snapshots
from bmqtwist.view.snapshot import DomainState, QueueState

if TYPE_CHECKING:
    from bmqtwist.admin.context import AdminContext
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.root import Domain, RootQueue
    from bmqtwist.storage.message import Message
    from bmqtwist.storage.state import StoredQueue

WHOLE_QUEUE = "*"
_NOT_LOCAL = "Not purging queue '{}' [reason: queue is NOT local]"


def find_domain(broker: Broker, name: str) -> Domain:
    """A domain, loaded if need be."""
    try:
        return broker.domains.domain(name)
    except Refused:
        raise LocalError(f"Domain '{name}' doesn't exist") from None


def _active_queue(broker: Broker, domain_name: str, name: str) -> RootQueue:
    queue = find_domain(broker, domain_name).queues.get(name)
    if queue is None or not queue_facts.is_active(queue):
        raise LocalError(f"Queue '{name}' was not found on domain '{domain_name}'")
    return queue


def _stored_elsewhere(broker: Broker, domain_name: str, name: str) -> StoredQueue | None:
    """The local copy of a queue whose primary is another node."""
    domain = find_domain(broker, domain_name)
    cluster, uri = broker.clusters[domain.cluster], f"bmq://{domain.name}/{name}"
    record = next((each for each in cluster.led_elsewhere(domain.name) if each.uri == uri), None)
    return cluster.partitions[record.partition_id].state.queues.get(record.key) if record is not None else None


def show_domain(context: AdminContext, name: str) -> Steps[DomainState]:
    return snapshots.domain_in_steps(context.broker, find_domain(context.broker, name))


def purge_domain(context: AdminContext, name: str) -> Steps[PurgeReport]:
    return (yield from _purge_all(context.broker, find_domain(context.broker, name)))


def _purge_all(broker: Broker, domain: Domain) -> Steps[PurgeReport]:
    elsewhere = broker.clusters[domain.cluster].led_elsewhere(domain.name)
    purged = []
    for queue in list(domain.queues.values()):
        if queue.name in domain.queues:  # not deleted since the last pause
            purged.append((yield from _purge(broker, queue)))
    return PurgeReport(tuple(purged), tuple(_NOT_LOCAL.format(record.uri) for record in elsewhere))


def _purge(broker: Broker, queue: RootQueue) -> Steps[Purged]:
    count, size = yield from queue.purge(None, broker.loop.wall(broker.loop.now))
    broker.deliveries.metered(queue)
    broker.report.note("queue", f"{queue.uri} is purged: {count} messages", uri=queue.uri, messages=count, state="purged")
    return Purged(queue.uri, count, size)


def purge_queue(context: AdminContext, domain: str, name: str, app_id: str) -> Steps[PurgeReport]:
    """Drop the messages of a queue, or those of one of its apps; `app_id` "*" = the whole queue."""
    if not app_id:
        raise LocalError("Queue Purge requires a non-empty appId (Specify '*' to purge the entire queue).")
    broker = context.broker
    try:
        uri = parse_uri(f"bmq://{domain}/{name}").canonical
    except InvalidUri as error:
        raise LocalError(f"Unable to build queue uri with error '{error}'") from None
    queue = find_domain(broker, domain).queues.get(name)
    if queue is None and _stored_elsewhere(broker, domain, name) is not None:
        return PurgeReport((), (_NOT_LOCAL.format(uri),))
    if queue is None:
        raise LocalError(f"Queue was not found in a storage '{uri}'")
    if app_id == WHOLE_QUEUE:
        return PurgeReport(((yield from _purge(broker, queue)),))
    app = queue.apps.get(app_id)
    if app is None or not app.registered:
        return PurgeReport((), (f"Specified appId '{app_id}' not found in the storage of queue '{uri}'.",))
    count, size = yield from queue.purge(app, broker.loop.wall(broker.loop.now))
    broker.deliveries.metered(queue)
    broker.report.note("queue", f"{uri} is purged for app '{app.app_id}': {count} messages", uri=uri, app=app.app_id,
                       messages=count, state="purged")
    return PurgeReport((Purged(uri, count, size, app.app_id, queue_facts.hexadecimal(app.key)),))


def show_queue(context: AdminContext, domain: str, name: str) -> QueueState:
    opened = queue_facts.relayed_queue(context.broker, domain, name)
    if opened is not None and opened.relay is not None:
        return queue_facts.relay_state(context.broker, opened, opened.relay)
    return queue_facts.queue_state(_active_queue(context.broker, domain, name))


def show_queue_history(context: AdminContext, domain: str, name: str) -> Transitions:
    opened = queue_facts.relayed_queue(context.broker, domain, name)
    if opened is None:
        raise LocalError(f"Queue '{name}' of domain '{domain}' is not open here on the way to a primary elsewhere")
    return Transitions(context.broker.loop.now, opened.story.transitions)


def list_messages(context: AdminContext, domain: str, name: str, app_id: str | None, offset: int, count: int
                  ) -> QueueContents:
    """Stored messages; `offset` < 0 counts from the end; `count` 0 = all, < 0 = that many before the position."""
    broker = context.broker
    stored, bits = _listable(broker, domain, name)
    if app_id:
        if app_id not in bits:
            raise LocalError("Invalid 'LIST' command: invalid APPID")
        stored = [message for message in stored if message.pending & bits[app_id]]
    first, last = list_slice(len(stored), offset, count)
    wall_offset = cluster_facts.wall_offset(broker)
    return QueueContents(tuple(listed(message, wall_offset) for message in stored[first:last]), first, len(stored))


def _listable(broker: Broker, domain_name: str, name: str) -> tuple[list[Message], dict[str, int]]:
    """The messages of a queue at this node, be it primary, replica or proxy, and the bits of its apps."""
    uri = f"bmq://{domain_name}/{name}"
    for proxy in broker.proxies.values():
        if uri in proxy.queues:
            relay = proxy.queues[uri]
            return list(relay.messages.values()), {app.app_id: app.bit for app in relay.apps.values()}
    replica = _stored_elsewhere(broker, domain_name, name)
    if replica is not None:
        return list(replica.messages.values()), {app.app_id: app.bit for app in replica.apps.values()}
    queue = _active_queue(broker, domain_name, name)
    return list(queue.messages.values()), {app.app_id: app.bit for app in queue.apps.values() if app.registered}


def listed(message: Message, wall_offset: float) -> ListedMessage:
    return ListedMessage(queue_facts.hexadecimal(message.guid), message.size, message.arrived + wall_offset)


def list_slice(total: int, offset: int, count: int) -> tuple[int, int]:
    """The part [first, last) of `total` messages that LIST asks for.

    A negative offset counts from just past the last one; a negative count takes what precedes the position; 0 = all.
    """
    position = min(max(offset + total if offset < 0 else offset, 0), total)
    if count < 0:
        return max(position + count, 0), position
    return position, total if count == 0 else min(position + count, total)


def reconfigure_domain(context: AdminContext, name: str) -> None:
    context.broker.domains.reconfigure(name)
    context.broker.loop.performer.turn_due()


def clear_resolver(context: AdminContext, domain: str | None) -> None:
    """Forget how a domain was resolved; None = all."""
    context.broker.domains.provider.clear_resolver(domain)


def clear_files(context: AdminContext, domain: str | None) -> None:
    """Forget the file of a domain; None = all."""
    context.broker.domains.provider.clear_files(domain)


def remove_domain(context: AdminContext, name: str, finalize: bool) -> Steps[PurgeReport | None]:
    """First phase: refuse new opens, purge, delete the queues. `finalize`: forget the domain, so that its name can be used
    again."""
    broker = context.broker
    if finalize:
        broker.domains.forget(name)
        return None
    domain = find_domain(broker, name)
    if domain.opening:
        raise LocalError(f"Trying to remove the domain '{name}' while there are open queue requests on the fly or the"
                         " domain is shutting down")
    if any(queue.handles for queue in domain.queues.values()):
        raise LocalError(f"Trying to remove the domain '{name}' while there are queues opened or opening")
    domain.removing = True
    purged = yield from _purge_all(broker, domain)
    for queue in list(domain.queues.values()):
        broker.clusters[domain.cluster].changes.delete_queue(queue, broker.loop.wall(broker.loop.now))
    return purged
