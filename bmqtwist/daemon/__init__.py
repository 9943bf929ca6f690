"""Assembly of a node, and its process: Twisted service, control pipe, housekeeping, checks before a start."""
