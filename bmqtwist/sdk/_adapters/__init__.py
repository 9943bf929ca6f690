"""What the kinds of sessions share around a session core: clocks, sockets, threads and promises."""
