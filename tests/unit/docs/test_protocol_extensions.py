"""docs/protocol-extensions.md against the declarations of features, layouts and control messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bmqtwist.link.extensions import RELAY_EXTENSION, RELAY_FEATURES
from bmqtwist.link.outbox import OVERTAKING
from bmqtwist.peers import handshake
from bmqtwist.versions import MEMBER_EXTENSION, REGISTRY
from bmqtwist.wire import cluster_schema as schema
from bmqtwist.wire import layout
from bmqtwist.wire.declare import Layout
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.fields import Field, fields_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "protocol-extensions.md").read_text(encoding="utf-8")
Row = tuple[int, str, list[str]]  # tag, message, fields


def rows(heading: str) -> list[Row]:
    """The rows with a tag in the table below a heading."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    cells = [[cell.strip() for cell in line.split(" |")] for line in section.splitlines() if re.match(r"\| \d", line)]
    return [(int(tag.strip("| ")), name.strip("`| "), fields.strip("| ").split(", ") if fields.strip("| ") else [])
            for tag, name, fields, *_ in cells]


def declared(cls: type[schema.Chosen] | type[schema.ElectorMessage], *, optional: bool = False) -> list[Row]:
    """The messages of a choice; `optional`: with these fields only, without messages that have none."""
    def chosen(field: Field) -> bool:
        return field.optional or not optional
    found = [(tag, name, [field.wire_name for field in fields_of(kind) if chosen(field)])
             for tag, name, kind in cls.CHOICE.selections]
    return [row for row in found if row[2] or not optional]


@pytest.mark.parametrize("heading, expected", [
    ("Cluster messages", [row for row in declared(schema.ClusterMessage)
                          if row[1] in ("confirmReceipt", "quotaAdvisory", "metadataLogMessage")]),
    ("`metadataLogMessage`", declared(schema.MetadataLogMessage)),
    ("`partition`", declared(schema.PartitionLogMessage)),
    ("Optional fields of elector messages", declared(schema.ElectorMessage, optional=True)),
], ids=lambda value: value.strip("`") if isinstance(value, str) else "")
def test_tags_names_and_fields_of_control_messages_are_the_declared_ones(heading: str, expected: list[Row]) -> None:
    assert expected and rows(heading) == expected


def test_every_extension_in_the_schema_is_on_the_page() -> None:
    documented = {name for heading in ("Cluster messages", "`metadataLogMessage`", "`partition`")
                  for _, name, _ in rows(heading)}
    chosen = {kind: name for cls in (schema.ClusterMessage, schema.MetadataLogMessage, schema.PartitionLogMessage)
              for _, name, kind in cls.CHOICE.selections}
    extensions = {name for kind, name in chosen.items() if (kind.__doc__ or "").startswith("Extension")}
    assert extensions and extensions - documented == set()


def test_every_feature_is_on_the_page_with_its_group() -> None:
    for group, names in ((MEMBER_EXTENSION, REGISTRY), (handshake.PAIR_EXTENSION, (handshake.RECORD_COPIES,)),
                         (RELAY_EXTENSION, RELAY_FEATURES)):
        assert f"| `{group}` | {', '.join(f'`{name}`' for name in names)} |" in PAGE
    assert f"| `{handshake.CLUSTER_EXTENSION}` |" in PAGE and f"| `{handshake.CONSOLE_EXTENSION}` |" in PAGE


def test_the_event_types_that_overtake_data_are_those_of_the_code() -> None:
    control = " ".join(line.split(" | ")[1] for line in PAGE.splitlines() if line.startswith("| control |"))
    named = set(re.findall(r"\b[A-Z_]{4,}\b", control)) | {"HEARTBEAT_REQ", "HEARTBEAT_RSP"}
    assert named == {EventType(kind).name for kind in OVERTAKING} and "heartbeats" in control


def test_every_layout_that_the_page_names_is_declared() -> None:
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*_(?:RUN|RECEIPT|HEADER|MESSAGE|INFO|PSN)\b|\bRECEIPT\b", PAGE))
    named -= {"REPLICATION_RECEIPT"}  # the type of an event
    assert {"RECORD_RUN", "REPLICA_RECEIPT", "RECEIPT", "SUB_QUEUE_INFO_WITH_PSN"} <= named
    assert [name for name in named if not isinstance(getattr(layout, name, None), Layout)] == []
