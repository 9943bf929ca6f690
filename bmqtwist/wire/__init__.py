"""Wire protocol: encoding and decoding of events, messages and their properties. Pure, without clock and sockets.

Vocabulary: a connection carries *events* (frames); an event carries either one *schema message* (negotiation, control,
authentication, elector) or *messages* of one type (PUT, PUSH, ACK, CONFIRM, ...). Application data is a *properties
area* and a payload.

Start at `layout.py` (every header), then `frames.py` (chunks to events), `control.py` (schema messages in either
encoding; `schema.py`, `cluster_schema.py` and `fields.py` declare them, `ber.py` and `jsoncodec.py` read the
declarations), `events.py` (data events as objects), `fast.py` (the same bytes for the hot path).

Invariants: any bytes give values or a PeerError, and decoding an encoded value gives the same value.
"""
