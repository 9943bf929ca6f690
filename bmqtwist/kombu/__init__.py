"""A kombu transport over BlazingMQ, for Celery and for programs that use kombu (`pip install 'bmqtwist[kombu]'`).

    import bmqtwist.kombu                               # makes bmq:// and bmqs:// known to kombu
    app = Celery("shop", broker="bmq://localhost:30114/bmq.test.persistent.priority")

| AMQP | here |
|---|---|
| queue | a queue of a priority domain; private to its connection if it is a mailbox or the like (`transport.is_private`) |
| fanout exchange, events, remote control | a queue of a broadcast domain, named like the exchange |
| ack, late or early | CONFIRM |
| reject with requeue | the message is posted again, then confirmed |
| prefetch count | the most unconfirmed messages of each queue that is consumed |

docs/celery.md says how it is used and what differs from other transports. Where to start reading: `transport.py`.
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
