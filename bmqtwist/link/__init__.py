"""Connections: sessions and their kinds, requests, authentication, output. Free of I/O."""
