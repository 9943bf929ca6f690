"""A node put together from its parts, and run as a process: the service, the reactor, the control pipe, housekeeping."""
