"""What brokers of ours can do for each other beyond the original: features that they tell when they introduce themselves."""

from __future__ import annotations

RELAY_EXTENSION = "BMQTWIST_RELAY"  # the group of these features
RETURNED_MESSAGES = "RETURNED_MESSAGES"  # takes messages back that nobody wants here any more
CONFIRM_RECEIPTS = "CONFIRM_RECEIPTS"  # says which CONFIRMs are safe, or wants to know it
PLACES = "PLACES"  # a PUSH says where the message is stored: what comes late from another primary is known by it
RELAY_FEATURES = RETURNED_MESSAGES, CONFIRM_RECEIPTS, PLACES
