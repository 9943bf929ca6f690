"""Spark jobs over queues and storage files, started by `bmq pipeline NAME ...`."""
