"""Looks at storage files without changing them: search, summaries, ledgers, checks and comparisons."""
