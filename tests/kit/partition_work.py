"""Operations of queues on a partition, by name, for random schedules.

Used by `property/test_replica.py` and `property/test_replicated_partition.py`.
"""

from __future__ import annotations

from bmqtwist.steps import at_once
from bmqtwist.storage.partition import Partition
from kit.storage_kit import WALL, make_message

KEYS = [b"aaaaa", b"bbbbb"]  # keys of the two possible queues


def work(partition: Partition, name: str, value: int, number: int) -> None:
    """Perform an operation by name, if it is possible; `number`: number of a new message or app."""
    key = KEYS[value % 2]
    queue = partition.state.queues.get(key)
    if queue is None:
        partition.queues.create(key, f"bmq://d/{key.decode()}", [("foo", b"fooo" + key[:1]), ("bar", b"barr" + key[:1])],
                               WALL)
        return
    apps, messages = list(queue.apps.values()), [each for each in queue.messages.values() if each.pending]
    app = apps[value % len(apps)] if apps else None
    message = messages[value // 2 % len(messages)] if messages else None
    if name in ("put", "half put") and app is not None:
        new = make_message(number, bytes([number % 256]) * (value % 200 + 1))
        wanted = apps if value % 3 else apps[:1]
        new.ref_count = len(wanted)
        for each in apps:
            if each not in wanted:
                partition.append_auto_confirm(key, each.key, new.guid, WALL)
        if name == "put":
            partition.append_message(key, new, WALL)
    elif name == "confirm" and message is not None:
        waiting = [each for each in apps if message.pending & each.bit]
        if len(waiting) > 1:
            partition.append_confirm(key, waiting[value % len(waiting)].key, message, 0, WALL)
        else:
            partition.append_deletion(key, message, 0, WALL)
    elif name == "delete" and message is not None:
        partition.append_deletion(key, message, 2, WALL)
    elif name == "purge":
        at_once(partition.queues.purge(key, None, None, WALL))
    elif name in ("purge app", "remove app") and app is not None and messages:
        at_once(partition.queues.purge(key, app.key, messages[0], WALL))
        if name == "remove app":
            at_once(partition.queues.delete_app(key, app.key, WALL))
        for finished in [each for each in queue.messages.values() if not each.pending]:
            partition.append_deletion(key, finished, 0, WALL)
    elif name == "add app" and len(apps) < 4:
        partition.queues.add_apps(key, queue.uri, [(f"app{number}", number.to_bytes(5, "big"))], WALL)
    elif name == "drop queue":
        partition.queues.delete(key, WALL)
