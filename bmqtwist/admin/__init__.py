"""Admin commands: declared, parsed, run, answered as text or JSON.

`executor.py` runs a command, `table.py` lists all of them; connections of administrators are in `link/admin.py`.
"""
