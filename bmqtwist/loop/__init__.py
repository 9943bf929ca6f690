"""The event loop without its reactor: scheduler, timers, error isolation, and the interface of its performer."""
