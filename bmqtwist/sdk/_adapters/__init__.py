"""Adapters between the session core and the fronts: clocks, sockets, threads and promises."""
