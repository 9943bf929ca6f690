"""The event loop without its reactor: scheduler, timers, error isolation, and what a broker asks of whoever runs it."""
