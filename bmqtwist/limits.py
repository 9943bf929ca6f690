"""Limits of the broker and the SDK. Each name ends with the unit; the comment gives the reason.

Each limit is enforced by the modules that import it, most of them in `link/` and `queue/`. Limits that an operator sets are
members of the configuration (`config/broker.py`), quotas of queues are in `queue/meter.py`.
"""

from __future__ import annotations

from typing import Final

EVENT_BYTES_MAX: Final = 512 << 20  # one event; the C++ builders' soft limit
NEGOTIATION_BYTES_MAX: Final = 64 << 10  # input of one unauthenticated connection
UNAUTHENTICATED_BYTES_MAX: Final = 64 << 20  # input of all unauthenticated connections
CONTROL_BYTES_MAX: Final = 256 << 10  # one control message of a client
CONTROL_VALUES_MAX: Final = 24 << 10  # BER values in it: 1024 subscriptions have 21 Ki; each takes about 2 us
NEGOTIATION_VALUES_MAX: Final = 256  # BER values in a negotiation or authentication message: the largest known has 40
PUT_MESSAGE_BYTES_MAX: Final = 66 << 20  # one PUT message with header and options
APPLICATION_DATA_BYTES_MAX: Final = 64 << 20  # properties and payload of one message, as sent
INFLATED_BYTES_MAX: Final = APPLICATION_DATA_BYTES_MAX  # one decompressed zlib stream: the data of one message
DEFLATE_RATIO_MAX: Final = 1032  # largest compression ratio of zlib
PUT_OPTIONS_BYTES_MAX: Final = 1 << 10  # of one message: SDKs send a group id of 31 bytes or none
PROPERTIES_MAX: Final = 255  # properties of one message
PROPERTY_NAME_BYTES_MAX: Final = 4095  # 12-bit length field
QUEUE_NAME_CHARS_MAX: Final = 64
DOMAIN_NAME_CHARS_MAX: Final = 250  # with its tier; file names have at most 255
BER_DEPTH_MAX: Final = 32  # nesting of a control message
RESERVED_ID_MIN: Final = 0xFFFFFFF6  # queue and sub-queue ids from here on are reserved (-10..-1)
DELIVERY_ATTEMPTS_MAX: Final = 63  # six bits on the wire between brokers
OUT_EVENT_BYTES_MAX: Final = 1 << 20  # approximate size at which a batch of PUSH or ACK messages is split into events
TURN_PUSH_BYTES_MAX: Final = 4 << 20  # delivered to one client in one turn; further messages follow in the next
LAGGING_BYTES: Final = 16 << 20  # unsent output of a client above which its deliveries stop
UNREAD_SECONDS_MAX: Final = 60  # a client above LAGGING_BYTES that reads nothing for so long is disconnected
MESSAGES_AT_ONCE: Final = 512  # slice of a purge or of a lost consumer: about 1 ms
RESTORED_AT_ONCE: Final = 4096  # slice of an activation: messages, about 1 ms
RESTORED_QUEUE: Final = 512  # added to the number of messages for each queue of such a slice
MOVED_AT_ONCE: Final = 256  # slice of queues whose primary changes: PUTs, about 1 ms
REOPENING_MAX: Final = 128  # unanswered opens when a node opens its queues at another primary: about 20 ms
MOVED_QUEUE: Final = 32  # added to the number of PUTs for each queue of such a slice
FREED_AT_ONCE: Final = 4096  # slice of memory to free: entries, about 1 ms
TURN_MESSAGES_MAX: Final = 2048  # of one queue in one turn, for all its apps; further ones follow in the next
TURN_WRITE_S: Final = 0.006  # writes of one turn; the remaining sessions are written in the next
TURN_EVALUATIONS_MAX: Final = 4096  # of expressions for one app in one turn, about 1 us each; further ones in the next
SLICE_BYTES: Final = 8 << 10  # slice of the events of a connection: 18 small PUTs
SLICE_EVENT_BYTES: Final = 256  # added to the size for each event of such a slice, for a control message eight times
REACH_MAX: Final = 4096  # slice of PUTs of a connection: apps or consumers that receive them, about 1 us each
INFLATE_STEP_BYTES: Final = 256 << 10  # slice of a decompression: about 0.5 ms
TRANSPORT_BYTES_MAX: Final = 128 << 10  # given to a transport at a time: the size that one call to the kernel sends
LINK_WRITE_BYTES: Final = 256 << 10  # data given to a connection with another broker at a time: 50 ms at 5 MB/s
UNSENT_KERNEL_BYTES: Final = 128 << 10  # data of such a connection that its kernel holds before it is first sent
PEER_OUTPUT_BYTES_MAX: Final = 256 << 20  # unsent output of another broker above which the connection is closed
EARLY_PUT_BYTES_MAX: Final = 4 << 20  # PUTs of one session for queues whose open is not answered yet
PENDING_REQUESTS_MAX: Final = 1 << 14  # unanswered opens, configures and closes of one session; about 1 kB each
QUEUE_CREATIONS_AT_ONCE: Final = 10_000  # of one principal, then a number per second; about 2 MB of QLIST
RESERVED_CONNECTIONS: Final = 64  # of maxConnections, for other nodes and reserved addresses; at most a tenth of it
QLIST_SHARE: Final = 4  # a domain may use as many times the free bytes of QLIST: 80 % if it is alone
CLOSED_IDS_MAX: Final = 1 << 16  # closed queue ids that a session stores; the oldest is dropped
HELD_ACK_EVENTS_MAX: Final = 1 << 16  # ACK events of one partition that precede their records; then the connection is closed
RELAY_WAITING_PUSHES_MAX: Final = 1 << 16  # PUSHes of one queue that precede their records; then the connection is closed
HELD_CONFIRMS_MAX: Final = 1 << 16  # CONFIRMs of one app for the next upstream node, 16 bytes each; the oldest is dropped
SENT_CONFIRMS_MAX: Final = 100_000  # CONFIRMs of one connection that are not stored upstream; the oldest is dropped
SUBSCRIPTIONS_MAX: Final = 1024  # of one consumer of one app: a message that matches none is evaluated against all
EXPRESSION_CHARS_MAX: Final = 128
EXPRESSION_OPERATORS_MAX: Final = 10
EXPRESSION_PROPERTIES_MAX: Final = 10
PROXIES_ASKED_MAX: Final = 200  # consoles of proxies that one document queries, over all levels
PROXY_REQUESTS_AT_ONCE: Final = 8  # open requests to consoles of proxies: their answers may arrive in one turn, 1 ms each
PROXY_REQUESTS_PER_SECOND: Final = 50  # to consoles of proxies; after an idle time PROXIES_ASKED_MAX at once
LOGIN_GENERATION_MAX: Final = 1 << 53  # logouts of one user of the console
AUDIT_BURST: Final = 20  # refusals, logins and logouts of one principal at once in the audit log of the console
AUDIT_INTERVAL_S: Final = 30.0  # between further ones; those between are counted
PROXY_ANSWER_BYTES_MAX: Final = 2 << 20  # answer of the console of a proxy: 2,000 rows of 1 kB
HTTP_CONNECTIONS_MAX: Final = 192  # of one HTTP port, WebSockets included; a browser opens up to 6 besides its WebSocket
HTTP_CONNECTION_SECONDS_MAX: Final = 120  # duration of a connection, WebSockets excepted
HTTP_REQUEST_SECONDS_MAX: Final = 15  # until a request is complete, since the connection or the previous response
HTTP_SLICE_BYTES: Final = 1 << 10  # input of a connection that is parsed in one step: at most 0.5 ms
HTTP_INPUT_BYTES_MAX: Final = 16 << 10  # unparsed input of a connection above which it is not read
HTTP_URI_BYTES_MAX: Final = 4 << 10  # path and query of a request: at most 1,000 fields, 2 ms
HTTP_BODY_BYTES_MAX: Final = 4 << 10  # of a request without a token, such as a login
HTTP_ACTION_BYTES_MAX: Final = 64 << 10  # of a request with the token of a page or of another node
METRICS_RESPONSES_MAX: Final = 16  # responses of /metrics in progress at one port
METRICS_RESPONSES_PER_ADDRESS_MAX: Final = 4  # of them to one address
PROXY_ANSWERS_WEIGHT_PER_SECOND: Final = 16 << 20  # memory of parsed answers of all proxies: a large one takes 2 MiB
