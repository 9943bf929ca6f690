"""Language of the repository: spelling, and terms that have a better word in docs/glossary.md.

`python tests/unit/docs/test_language.py` prints the occurrences per 1,000 lines of each area and its allowance; with paths
as arguments it prints each occurrence there with file, line and the right term. `codespell` checks the spelling; its options
are in setup.cfg.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import codespell_lib
import pytest

ROOT = Path(__file__).resolve().parents[3]
# Recorded bytes, measured times, the license; the changelog and this file quote the terms.
EXCLUDED = re.compile(r"tests/vectors/|tests/durations\.json$|LICENSE$|CHANGELOG\.md$|tests/unit/docs/test_language\.py$")
BINARY = re.compile(r"\.(?:bin|bmq_\w+|svg|png|ico|woff2?)$")
# Terms to avoid, each with the right one. A term is a word or a part of a name, in lower case or capitalized: `told` is also
# found in `_told` and `Told`, but not in `STORY` (a command) or `untold`.
TERMS = {
    r"told|tells?(?!\()|telling": "notifies, reports, receives (who reports what to whom)",
    r"heard|hears?|hearing": "received, receives",
    r"strangers?|newcomers?": "unauthenticated (not yet negotiated) connection",
    r"(?<![pP]ut[-_ ])aside": "deferred (put-aside list: messages that no consumer matches)",
    r"wakes|awake|woken|sleepers?|comes? to life": "activates, activation",
    r"calm|hush|quietly|at rest|rests": "idle, without events",
    r"paces?": "batching, delayed ACK, read pause, rate",
    r"chores?": "background job",
    r"under way|goes on|go on|going on|went on|go_on": "in progress, continues",
    r"walls(?= )|containment": "error isolation",
    r"look(?:s|ed|ing)?(?: again)?(?= (?:at|for|into|through)\b)": "inspects, reads, searches, evaluates",
    r"life|lives": "lifecycle, lifetime, run of a process",
    r"born|asker|askers": "creation, requester",
    r"story|stories": "transition history",
    r"settles?|settled|settling": "completes, stabilizes, releases (say which)",
    r"nudges?|nudged": "schedules, requests",
    r"finds? out|found out|of no account": "detects, is ignored",
    r"whoever|nobody|somebody|anybody|someone|anyone|no one|everybody": "the client, consumer, node, operator (say which)",
    r"elsewhere": "at another node, in another module",
    r"(?:of|from|to|by) others": "the other nodes, the other consumers",
    r"those (?:that|who|which)": "the (noun) that",
    r"remembers?|forgets?|forgotten|forgot": "stores, removes",
    r"believes?|knows better|of its own accord": "assumes, automatically",
    r"nothing (?:else )?but|no more of|by now": "only, at most (state the rule)",
    r"what (?:becomes|became|has become) of": "the state of, the result of",
}
LINES = {  # regular expressions at any place of a line
    r'(?:"""|^ *# |^ *// |^\| )W(?:hat|ho) (?!.*\?)': "a noun phrase instead of 'What ... is' as a subject",
    r'"""(?:The same|See |As above|As in |Like )[^"\n]{0,40}"""': "state the effect instead of pointing to another place",
}
# Occurrences per 1,000 lines that an area may still have: these numbers only shrink. All other areas may have 1, those in
# ZERO none.
ZERO = ("docs", "templates", "web", "etc", "examples", ".ci", "/")
ALLOWANCE = {"bmqtwist/admin": 1.5, "web": 0.5}


def compiled(terms: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for these terms, with the first letter of each alternative in either case."""
    either = (re.sub(r"(?:(?<=\|)|^)([a-z])", lambda m: f"[{m[1]}{m[1].upper()}]", term) for term in terms)
    return re.compile(rf"(?<![A-Za-z])(?:{'|'.join(either)})(?![a-z])")


ANY_TERM, ANY_LINE = compiled(TERMS), re.compile("|".join(LINES), re.MULTILINE)
RIGHT = {**{compiled([term]): right for term, right in TERMS.items()},
         **{re.compile(line, re.MULTILINE): right for line, right in LINES.items()}}


def texts() -> list[Path]:
    """Return the tracked text files to check."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name and not EXCLUDED.search(name) and not BINARY.search(name)]
    return [path for path in paths if (ROOT / path).is_file()]


def area_of(path: Path) -> str:
    """Return the area of a file: a package of bmqtwist, a folder of tests, a top-level folder, or `/`."""
    depth = 2 if path.parts[0] in ("bmqtwist", "tests") else 1
    return "/".join(path.parts[:-1][:depth]) or "/"


def occurrences(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the terms to avoid in a file: line number, text found, right term."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for match in (*ANY_TERM.finditer(text), *ANY_LINE.finditer(text)):
        right = next(right for pattern, right in RIGHT.items() if pattern.match(text, match.start()))
        yield text.count("\n", 0, match.end()) + 1, match[0].strip(' "'), right


def report(paths: list[Path]) -> list[str]:
    return [f"{path}:{number}: '{found}' -> {right}" for path in paths
            for number, found, right in sorted(occurrences(path))]


def counts() -> tuple[Counter[str], Counter[str]]:
    """Return the occurrences and the lines of each area."""
    found: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in texts():
        found[area_of(path)] += sum(1 for _ in occurrences(path))
        lines[area_of(path)] += (ROOT / path).read_bytes().count(b"\n")
    return found, lines


def allowance(area: str) -> float:
    return ALLOWANCE.get(area, 0.0 if area in ZERO else 1.0)


def test_terms_to_avoid_are_within_the_allowance_of_their_area() -> None:
    found, lines = counts()
    over = {area: allowance(area) for area in sorted(lines) if found[area] * 1000 > allowance(area) * lines[area]}
    assert not over, "\n".join([f"above the allowance per 1,000 lines: {over}",
                                *report([path for path in texts() if area_of(path) in over])])


@pytest.mark.parametrize("line, right", [
    ("self._told = 1", "reports"), ("class Told:", "reports"), ("Nobody waits.", "consumer"), ("put-aside list", ""),
    ("STORY", ""), ("untold", ""), ('"""What waits for a sync."""', "noun phrase"), ("# What is it?", ""),
    ("a lifecycle", ""), ('"""The same of a proxy."""', "state the effect")])
def test_terms_are_found_as_words_and_as_parts_of_names(line: str, right: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(line)
    found = [each for _, _, each in occurrences(tmp_path / "x.py")]
    assert right in found[0] if right else not found


def test_the_spelling_is_correct(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ignored words are in setup.cfg."""
    monkeypatch.chdir(ROOT)
    mistakes = codespell_lib.main(*map(str, texts()))
    assert mistakes == 0, capsys.readouterr().out


def main(arguments: list[str]) -> None:
    if arguments:
        print("\n".join(report([path for path in texts() if any(path.is_relative_to(each) for each in arguments)])))
        return
    found, lines = counts()
    rows = [(area, lines[area], found[area], f"{allowance(area):.1f}") for area in sorted(lines)]
    print(f"{'area':<24}{'lines':>8}{'found':>7}{'per 1,000':>11}{'allowance':>11}")
    for area, count, occurring, allowed in [*rows, ("all", lines.total(), found.total(), "")]:
        print(f"{area:<24}{count:>8}{occurring:>7}{occurring * 1000 / max(1, count):>11.1f}{allowed:>11}")


if __name__ == "__main__":
    main(sys.argv[1:])
