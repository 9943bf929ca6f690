"""`bmq check`: check of a configuration directory with all its domains.

Started by `main.py`, and by `tap.py` for the option `--check` of twistd. The checks are in `daemon/preflight.py` and
`daemon/trial_start.py`, the exposures of `--security` in `security/exposure.py`; this module prints their findings.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

import click

from bmqtwist.cli.exits import EXIT_GOOD, EXIT_NOT_ALL, EXIT_USAGE
from bmqtwist.config.compose import NO_OVERRIDES, Overrides
from bmqtwist.config.load import load
from bmqtwist.daemon.directories import readable_by_others
from bmqtwist.daemon.preflight import check as check_directory
from bmqtwist.daemon.preflight import find_class
from bmqtwist.daemon.trial_start import trial_start
from bmqtwist.errors import LocalError
from bmqtwist.report import ListReport
from bmqtwist.security.authenticators import build_security
from bmqtwist.security.exposure import Weight, exposures


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--security", is_flag=True, help="List what the configuration leaves open, the heaviest first.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def check(directory: str, strict: bool, security: bool, as_json: bool) -> None:
    """Check the configuration in DIRECTORY with all its domains.

    Exit code 2 if a broker would refuse to start with it. With --security, exit code 1 if an unauthenticated peer on the
    network could administer the broker; with --strict, also if anything else is open.
    """
    raise SystemExit(run_security_check(directory, strict=strict, as_json=as_json) if security
                     else run_check(directory, strict=strict, as_json=as_json))


def run_security_check(directory: str, strict: bool = False, out: TextIO | None = None, as_json: bool = False) -> int:
    """Print the exposures of a configuration, the heaviest first, and return the exit code. Ports and storage are not
    opened."""
    out = out or sys.stdout
    try:
        configuration = load(directory, NO_OVERRIDES).configuration
        security = build_security(configuration.app, ListReport(), lambda seconds: None, find_class, lambda: 0.0)
    except LocalError as error:
        print(f"error: {error}", file=out)
        return EXIT_USAGE
    found = exposures(configuration, security, readable_by_others)
    heaviest = min((each.weight for each in found), default=None)
    if as_json:
        print(json.dumps({"exposures": [{"weight": each.weight, "kind": each.weight.name, "text": each.text,
                                         "remedy": each.remedy} for each in found]}), file=out)
    else:
        for each in found:
            print(f"{each.weight.value} {each.weight.label}: {each}", file=out)
        print("Nothing is open." if not found else "An unauthenticated peer on the network could administer the broker."
              if heaviest == Weight.NETWORK_ADMINISTERS else "No unauthenticated peer on the network could administer the "
              "broker.", file=out)
    return EXIT_NOT_ALL if heaviest == Weight.NETWORK_ADMINISTERS or found and strict else EXIT_GOOD


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
