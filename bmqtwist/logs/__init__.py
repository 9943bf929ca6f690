"""Log lines and alarms: their format, and the observer that writes them.

The main module is `observer.py`. The interface that the pure parts call is `bmqtwist/report.py`; alarms are declared in
`bmqtwist/alarms.py`.
"""
