"""The performer on Twisted: connections, worker threads, clock, and the rounds of the reactor."""
