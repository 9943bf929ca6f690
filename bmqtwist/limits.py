"""Every ceiling, with its unit in the name and its reason beside it."""

from __future__ import annotations

EVENT_BYTES_MAX = 512 << 20  # one event; the C++ builders' soft limit
PUT_MESSAGE_BYTES_MAX = 66 << 20  # one PUT message with header and options
APPLICATION_DATA_BYTES_MAX = 64 << 20  # properties and payload of one message, as sent
INFLATED_BYTES_MAX = 512 << 20  # what one zlib stream may grow to
PROPERTIES_MAX = 255  # properties of one message
PROPERTY_NAME_BYTES_MAX = 4095  # 12-bit length field
QUEUE_NAME_CHARS_MAX = 64
BER_DEPTH_MAX = 32  # nesting of a control message
RESERVED_ID_MIN = 0xFFFFFFF6  # queue and sub-queue ids from here on are reserved (-10..-1)
DELIVERY_ATTEMPTS_MAX = 63  # six bits on the wire between brokers
OUT_EVENT_BYTES_MAX = 1 << 20  # a batch of PUSH or ACK messages is cut into events of about this size
TURN_PUSH_BYTES_MAX = 4 << 20  # delivered to one client in one turn; the rest waits for the next
LAGGING_BYTES = 16 << 20  # output a client has not taken; beyond it nothing more is delivered to it
PEER_OUTPUT_BYTES_MAX = 256 << 20  # output another broker has not taken; beyond it the connection is closed
EARLY_PUT_BYTES_MAX = 4 << 20  # of PUTs of one session for queues whose open is not answered yet
PENDING_REQUESTS_MAX = 1 << 14  # unanswered opens, configures and closes of one session; about 1 kB each
CLOSED_IDS_MAX = 1 << 16  # closed queue ids a session remembers, oldest forgotten
EXPRESSION_CHARS_MAX = 128
EXPRESSION_OPERATORS_MAX = 10
EXPRESSION_PROPERTIES_MAX = 10
