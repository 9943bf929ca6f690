"""Authentication, authorization, passwords and TLS of the broker."""
