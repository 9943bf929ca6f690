"""A few damaged storage directories of each kind, and what the run must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmqtwist.storage.partition import Payloads
from soak import damage
from soak.damage import KINDS, Campaign


def test_a_broker_opens_damaged_directories_or_says_why_not(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 3)
    campaign.run(range(2 * len(KINDS)))
    assert not campaign.findings
    assert sum(sum(found.values()) for found in campaign.outcomes.values()) == 2 * len(KINDS)


def test_altered_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody looked at checksums."""
    campaign = Campaign(tmp_path, 3)
    read = Payloads.whole
    monkeypatch.setattr(Payloads, "whole", lambda self, message: b"?" + read(self, message)[1:])
    campaign.run(range(len(KINDS)))
    assert any("bytes that were never stored" in finding for finding in campaign.findings)


def test_losses_that_nobody_told_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if recovery raised no alarm."""
    campaign = Campaign(tmp_path, 3)
    monkeypatch.setattr(damage, "ALARM", ())
    monkeypatch.setattr(damage, "UNTOLD", set())
    campaign.run(range(3 * len(KINDS)))
    assert any("nothing was told" in finding for finding in campaign.findings)
