"""kombu transport over BlazingMQ, for Celery and other programs with kombu (`pip install 'bmqtwist[kombu]'`).

    import bmqtwist.kombu                               # registers bmq:// and bmqs:// with kombu
    app = Celery("shop", broker="bmq://localhost:30114/bmq.test.persistent.priority")

| AMQP | BlazingMQ |
|---|---|
| queue | a queue of a priority domain; mailboxes and similar queues are private to a connection (`transport.is_private`) |
| fanout exchange, events, remote control | a queue of a broadcast domain with the exchange's name |
| ack | CONFIRM |
| reject with requeue | the message is posted again, then confirmed |
| prefetch count | maximum of unconfirmed messages per consumed queue |

docs/celery.md describes its use and the differences from other transports. Start reading with `transport.py`.
"""

from __future__ import annotations

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError as _error:
    raise ImportError("bmqtwist.kombu needs kombu: pip install 'bmqtwist[kombu]'") from _error

from bmqtwist.kombu.link import LinkLost, Refused
from bmqtwist.kombu.transport import Channel, SecureTransport, Transport

TRANSPORT_ALIASES.setdefault("bmq", "bmqtwist.kombu:Transport")
TRANSPORT_ALIASES.setdefault("bmqs", "bmqtwist.kombu:SecureTransport")

__all__ = ["Channel", "LinkLost", "Refused", "SecureTransport", "Transport"]
