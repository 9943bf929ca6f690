"""Configuration files: declaration of all members, decoding, validation, composition.

Read `broker.py`, `clusters.py` and `domain.py` for the members, `declare.py` for their declaration, `load.py` for the start.
"""
