"""Names of features beyond BlazingMQ's protocol, which bmqtwist brokers announce to each other during negotiation.

`peers/handshake.py` announces and compares them; `relay/` and `link/peer.py` use a feature if the peer has announced it.
docs/protocol-extensions.md describes the messages.
"""

from __future__ import annotations

RELAY_EXTENSION = "BMQTWIST_RELAY"  # the group of these features
RETURNED_MESSAGES = "RETURNED_MESSAGES"  # the upstream accepts returned messages, for which downstream has no consumer
CONFIRM_RECEIPTS = "CONFIRM_RECEIPTS"  # the upstream reports committed CONFIRMs
PLACES = "PLACES"  # a PUSH contains the message's PSN, by which late messages of an earlier primary are recognized
QUOTA_ADVISORIES = "QUOTA_ADVISORIES"  # the downstream delays CONFIRMs only while the upstream reports ample free quota
CONTROL_FIRST = "CONTROL_FIRST"  # accepts data in fragments with control events between them, and `renewal` messages
RELAY_FEATURES = RETURNED_MESSAGES, CONFIRM_RECEIPTS, PLACES, QUOTA_ADVISORIES, CONTROL_FIRST
