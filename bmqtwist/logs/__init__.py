"""Log lines and alarms: their format, and the observer that writes them."""
