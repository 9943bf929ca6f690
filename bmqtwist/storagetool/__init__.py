"""Storage tool `bmq storage`: reads storage files for search, summaries, ledgers, verification and comparison.

`cli/storage.py` has the command line; records are decoded in `journalview.py` and `datafile.py`. A broker reads its own
files in `storage/`.
"""
