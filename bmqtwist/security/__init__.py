"""Who may connect and what they may do: authenticators, authorizers, passwords, TLS."""
