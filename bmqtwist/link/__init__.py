"""Connections: the pure session core and the Twisted protocol around it."""
