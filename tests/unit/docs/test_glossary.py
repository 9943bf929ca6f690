"""Glossary: every named file exists, and the terms are in alphabetical order."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_every_file_of_the_glossary_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", GLOSSARY))
    assert named and {path for path in named if not (ROOT / "bmqtwist" / path).exists()} == set()


def test_glossary_terms_are_in_alphabetical_order_and_defined_once() -> None:
    seen: set[str] = set()
    for table in GLOSSARY.split("\n## ")[1:]:
        terms = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")][1:]
        assert all(one.lower() < other.lower() for one, other in pairwise(terms)), terms
        assert not seen & set(terms)
        seen.update(terms)
    assert len(seen) > 60
