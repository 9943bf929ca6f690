"""`bmq check`: check of a configuration directory with all its domains.

Started by `main.py`, and by `tap.py` for the option `--check` of twistd. The checks are in `daemon/preflight.py` and
`daemon/trial_start.py`; this module prints their findings.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

import click

from bmqtwist.cli.exits import EXIT_GOOD, EXIT_USAGE
from bmqtwist.config.compose import NO_OVERRIDES, Overrides
from bmqtwist.config.load import load
from bmqtwist.daemon.preflight import check as check_directory
from bmqtwist.daemon.trial_start import trial_start


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def check(directory: str, strict: bool, as_json: bool) -> None:
    """Check the configuration in DIRECTORY with all its domains.

    Exit code 2 if a broker would refuse to start with it.
    """
    raise SystemExit(run_check(directory, strict=strict, as_json=as_json))


def run_check(directory: str, overrides: Overrides = NO_OVERRIDES, strict: bool = False,
              out: TextIO | None = None, as_json: bool = False) -> int:
    """Print all problems and warnings and a conclusion, and return the exit code. With `strict`, warnings are problems."""
    out = out or sys.stdout
    problems, warnings = check_directory(directory, overrides, strict=strict)
    if not problems:
        more = trial_start(load(directory, overrides))
        problems, warnings = more[0] + (more[1] if strict else []), warnings + ([] if strict else more[1])
    code = EXIT_USAGE if problems else EXIT_GOOD
    if as_json:
        findings = [{"severity": severity, "file": each.file, "line": each.line, "path": each.path, "text": each.text}
                    for severity, group in (("error", problems), ("warning", warnings)) for each in group]
        print(json.dumps({"good": not problems, "findings": findings}), file=out)
        return code
    for finding in problems:
        print(f"error: {finding}", file=out)
    for finding in warnings:
        print(f"warning: {finding}", file=out)
    print("The configuration cannot be used." if problems else "The configuration is good.", file=out)
    return code
