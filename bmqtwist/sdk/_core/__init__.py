"""One session as values in and values out: no socket, clock, thread or chance. Start at `session.py`, where all parts are
made and connected, and whose table says what is done with which input in which state.

| part | what it does |
|---|---|
| `connection` | connects, keeps the connection, comes back, ends; `negotiation` is its helper |
| `posts` | posts and their acknowledgements; `unacked` keeps each post until it is acknowledged |
| `deliveries` | messages for consumers, and their confirmations |
| `queues` | what is asked of queues; `queue_machine` opens and closes them, `queue_settings` configures them |
| `requests` | requests under way and who hears their answers |
| `outbox` | everything that comes out: effects and bytes |
"""
