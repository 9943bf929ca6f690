"""Domains by name: files, redirects and caches. Reading is injected, time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.node.domainconfig import DomainVariant
from bmqtwist.node.schemacheck import ConfigError, Finding, decode_text


@dataclass(frozen=True, slots=True)
class DomainFile:
    """What a reader found: the text, or None with `missing` telling absent from unreadable."""

    path: str
    text: str | None
    missing: bool = False


def check_domain_text(name: str, file: DomainFile, problems: list[Finding], warnings: list[Finding]) -> None:
    """Add what is wrong with the file of one domain to the two lists."""
    if file.text is None:
        problems.append(Finding(file.path, 0, "", "cannot be read"))
        return
    try:
        decode_text(DomainVariant, file.text, file.path, warnings)
    except ConfigError as error:
        problems += error.findings
