"""All blocks of the tutorial in docs/spark.md, in order, against a broker process with the sample domains."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit.markdown import BROKER, blocks

from bmqtwist import spark as bmq
from bmqtwist.testing.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_code_of_the_tutorial_runs_and_prints_its_output(spark: SparkSession, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmq, "session", lambda master: spark, raising=False)
    names: dict[str, Any] = {"__name__": "tutorial"}
    seen = 0
    with BrokerProcess(tmp_path / "broker") as broker:
        places = {BROKER: broker.url, '"storage"': f'"{broker.config.storage}"',
                  **{f'"{name}"': f'"{tmp_path / name}"' for name in ("spool", "orders", "checkpoint")}}
        for block in blocks(PAGE):
            if block.info != "python":
                continue
            text = block.text
            for written, replacement in places.items():
                text = text.replace(written, replacement)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(block), "exec"), names)
            assert block.output is None or printed.getvalue() == block.output, str(block)
            seen += 1
    assert seen >= 5
