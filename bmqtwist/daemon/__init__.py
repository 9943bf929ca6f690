"""The broker as a process: the service, the reactor, the control pipe, housekeeping."""
