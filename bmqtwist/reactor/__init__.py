"""The event loop on Twisted: connections, worker threads and the clock joined to one broker."""
