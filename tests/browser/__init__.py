"""The console's pages in a real browser: against a scripted cluster that shows every state, and against real nodes."""
