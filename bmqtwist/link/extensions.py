"""Features beyond BlazingMQ's protocol, which bmqtwist brokers announce to each other during negotiation."""

from __future__ import annotations

RELAY_EXTENSION = "BMQTWIST_RELAY"  # the group of these features
RETURNED_MESSAGES = "RETURNED_MESSAGES"  # the upstream accepts returned messages, for which downstream has no consumer
CONFIRM_RECEIPTS = "CONFIRM_RECEIPTS"  # the upstream reports committed CONFIRMs
PLACES = "PLACES"  # a PUSH contains the message's PSN, by which late messages of an earlier primary are recognized
RELAY_FEATURES = RETURNED_MESSAGES, CONFIRM_RECEIPTS, PLACES
