"""Short run with two damaged directories of each kind of file, and tests of the violations that the run reports.

The run is `tests/soak/damage.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bmqtwist.storage.partition import PayloadReader
from soak import damage
from soak.damage import KINDS, Campaign


def test_a_broker_opens_a_damaged_storage_directory_or_reports_the_damage(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 3)
    campaign.run(range(2 * len(KINDS)))
    assert not campaign.findings
    assert sum(sum(found.values()) for found in campaign.outcomes.values()) == 2 * len(KINDS)


def test_the_judge_detects_altered_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reads that alter the first byte."""
    campaign = Campaign(tmp_path, 3)
    read = PayloadReader.read
    monkeypatch.setattr(PayloadReader, "read", lambda self, message: b"?" + read(self, message)[1:])
    campaign.run(range(len(KINDS)))
    assert any("bytes that were never stored" in finding for finding in campaign.findings)


def test_the_judge_detects_losses_that_were_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all alarms ignored."""
    campaign = Campaign(tmp_path, 3)
    monkeypatch.setattr(damage, "ALARM", ())
    monkeypatch.setattr(damage, "SILENT_KINDS", set())
    campaign.run(range(3 * len(KINDS)))
    assert any("no alarm was raised" in finding for finding in campaign.findings)
