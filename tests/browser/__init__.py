"""The console's pages in a real browser: against a scripted cluster that shows every state, and against real nodes.

`chromium.py` drives the browser, `fake_console.py` is the scripted cluster; requests without a browser are tested in
tests/unit/console.
"""
