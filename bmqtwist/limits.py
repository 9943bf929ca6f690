"""Every ceiling, with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

EVENT_BYTES_MAX: Final = 512 << 20  # one event; the C++ builders' soft limit
NEGOTIATION_BYTES_MAX: Final = 64 << 10  # all that a connection sends until it is negotiated
NEWCOMERS_BYTES_MAX: Final = 64 << 20  # all that connections that are not negotiated have sent
CONTROL_BYTES_MAX: Final = 256 << 10  # one control message of a client
CONTROL_VALUES_MAX: Final = 24 << 10  # in it, as of wire/ber.py: 1024 subscriptions have 21 Ki; each takes about 2 us
NEGOTIATION_VALUES_MAX: Final = 256  # in an introduction or a credential: the largest known has 40
PUT_MESSAGE_BYTES_MAX: Final = 66 << 20  # one PUT message with header and options
APPLICATION_DATA_BYTES_MAX: Final = 64 << 20  # properties and payload of one message, as sent
INFLATED_BYTES_MAX: Final = APPLICATION_DATA_BYTES_MAX  # what one zlib stream may grow to: the data of one message
DEFLATE_RATIO_MAX: Final = 1032  # no zlib stream grows by more than this factor
PUT_OPTIONS_BYTES_MAX: Final = 1 << 10  # of one message: SDKs send a group id of 31 bytes or none
PROPERTIES_MAX: Final = 255  # properties of one message
PROPERTY_NAME_BYTES_MAX: Final = 4095  # 12-bit length field
QUEUE_NAME_CHARS_MAX: Final = 64
DOMAIN_NAME_CHARS_MAX: Final = 250  # with its tier; a file system takes 255 for the name of its file
BER_DEPTH_MAX: Final = 32  # nesting of a control message
RESERVED_ID_MIN: Final = 0xFFFFFFF6  # queue and sub-queue ids from here on are reserved (-10..-1)
DELIVERY_ATTEMPTS_MAX: Final = 63  # six bits on the wire between brokers
OUT_EVENT_BYTES_MAX: Final = 1 << 20  # a batch of PUSH or ACK messages is cut into events of about this size
TURN_PUSH_BYTES_MAX: Final = 4 << 20  # delivered to one client in one turn; the rest waits for the next
LAGGING_BYTES: Final = 16 << 20  # output a client has not taken; beyond it nothing more is delivered to it
UNREAD_SECONDS_MAX: Final = 60  # in which a client with so much unread output has to take some of it
MESSAGES_AT_ONCE: Final = 512  # of a queue that is purged, or of a lost consumer, before the time is looked at: about 1 ms
RESTORED_AT_ONCE: Final = 4096  # messages of queues that come to life, before the time is looked at: about 1 ms
RESTORED_QUEUE: Final = 512  # messages that a queue counts as, beside those that it has
MOVED_AT_ONCE: Final = 256  # PUTs of queues that have another primary, before the time is looked at: about 1 ms
REOPENING_MAX: Final = 128  # streams whose answers a node waits for when it opens its queues at another primary: about 20 ms
MOVED_QUEUE: Final = 32  # PUTs that such a queue counts as, beside those that it has
LET_GO_AT_ONCE: Final = 4096  # of what is freed, before the time is looked at: about 1 ms
TURN_MESSAGES_MAX: Final = 2048  # of one queue in one turn, shared by its apps; the rest waits for the next
TURN_WRITE_S: Final = 0.006  # the same of what other sessions would be written
TURN_EVALUATIONS_MAX: Final = 4096  # of expressions for one app in one turn, about 1 us each; the rest waits for the next
SLICE_BYTES: Final = 8 << 10  # of the events of a connection, dealt with before the time is looked at: 18 small PUTs
SLICE_EVENT_BYTES: Final = 256  # that an event counts more than its size; a control message eight times as much
REACH_MAX: Final = 4096  # apps or consumers that PUTs of a connection go to before the time is looked at, about 1 us each
INFLATE_STEP_BYTES: Final = 256 << 10  # of messages at a time, about 0.5 ms
TRANSPORT_BYTES_MAX: Final = 128 << 10  # given to a transport at a time; what one call to the kernel takes of it
PEER_OUTPUT_BYTES_MAX: Final = 256 << 20  # output another broker has not taken; beyond it the connection is closed
EARLY_PUT_BYTES_MAX: Final = 4 << 20  # of PUTs of one session for queues whose open is not answered yet
PENDING_REQUESTS_MAX: Final = 1 << 14  # unanswered opens, configures and closes of one session; about 1 kB each
CLOSED_IDS_MAX: Final = 1 << 16  # closed queue ids a session remembers, oldest forgotten
HELD_ACK_EVENTS_MAX: Final = 1 << 16  # of one partition, whose records are not here yet; then the connection is closed
RELAY_WAITING_PUSHES_MAX: Final = 1 << 16  # of one queue, whose records are not here yet; then the connection is closed
HELD_CONFIRMS_MAX: Final = 1 << 16  # CONFIRMs of one app that wait for the next upstream, 16 bytes each; oldest forgotten
SENT_CONFIRMS_MAX: Final = 100_000  # of one connection until they are safe above; the oldest goes if there are more
SUBSCRIPTIONS_MAX: Final = 1024  # of one consumer of one app; every message that matches none is tried against all of them
EXPRESSION_CHARS_MAX: Final = 128
EXPRESSION_OPERATORS_MAX: Final = 10
EXPRESSION_PROPERTIES_MAX: Final = 10
