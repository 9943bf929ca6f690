"""What a queue decides: who gets which message, when it is gone, and what the producer is told. Pure."""
