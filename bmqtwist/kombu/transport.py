"""The transport that kombu is given: one link per connection (shared.py) and its channels (channel.py)."""

from __future__ import annotations

from bmqtwist.kombu.channel import Channel
from bmqtwist.kombu.shared import SharedTransport


class Transport(SharedTransport):
    """bmq://[user:password@]host[:port][/domain]"""

    Channel = Channel


class SecureTransport(Transport):
    """bmqs://...: with TLS."""

    secure = True
