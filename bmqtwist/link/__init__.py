"""One connection: a session and its kinds, requests that are answered later, output; the Twisted protocol around it."""
