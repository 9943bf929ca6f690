"""Storage tool `bmq storage`: reads storage files for search, summaries, ledgers, verification and comparison."""
