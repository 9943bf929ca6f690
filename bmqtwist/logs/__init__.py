"""Log lines and alarms: how they look, and the observer that writes them."""
