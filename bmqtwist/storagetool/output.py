"""Output of the storage tool: as text, or as one JSON object that is written incrementally.

The printers of `show.py` and `ledgerview.py` write each part once, as text and as JSON values; `make_output` chooses the
form. `cli/storage.py` creates the output; standard output of other commands is in `cli/output.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from bmqtwist.storagetool.datafile import (
    DataRecord,
    MessageContent,
    hex_dump,
    options_text,
    value_text,
)
from bmqtwist.storagetool.journalview import Fields

RECORD_COLUMN = 16  # characters of a field name in the details of a record
Write = Callable[[str], None]  # writes text that includes line ends
RULE = "=" * 30 + "\n\n"
JSON_PAYLOAD_BYTES = 64  # of a payload that JSON shows
_JSON_MISSING = {"GUID": "GuidsNotFound", "offset": "OffsetsNotFound", "sequence number": "SequenceNumbersNotFound"}

# The DATA record of a message with its content, or a sentence why it is absent.
Payload = tuple[DataRecord, MessageContent] | str | None


def aligned(fields: Fields, column: int | None = None) -> str:
    """Format lines `    name   : value`; `column`: characters for the name, None = two more than the longest."""
    width = column if column is not None else max(len(name) for name, _ in fields) + 2
    return "".join(f"    {name:<{width}}: {value}\n" for name, value in fields)


def texts(fields: Fields) -> dict[str, str]:
    """Convert fields for JSON, where every value of a record is a string."""
    return {name: str(value) for name, value in fields}


def percent(part: int, total: int) -> int:
    """Return the percentage, halves rounded up."""
    return (200 * part + total) // (2 * total) if total else 0


class ToolOutput(ABC):
    """Interface of both forms: text with line ends, and parts of a JSON object."""

    @abstractmethod
    def write_members(self, text: str, members: dict[str, object]) -> None:
        """Write the text, or members of the object after its Records."""

    @abstractmethod
    def write_item(self, text: str, tree: object) -> None:
        """Write the text, or an element of Records."""

    @abstractmethod
    def write_record(self, fields: Fields) -> None:
        """Write one record."""

    @abstractmethod
    def write_message(self, guid: str, records: list[Fields], payload: Payload) -> None:
        """Write a message with its records."""

    @abstractmethod
    def finish(self) -> None:
        """End the output."""

    def write_counts(self, counts: dict[str, int]) -> None:
        """Write the number of records of each type."""
        self.write_members("".join(f"{count} {name} record(s) found.\n" if count else f"No {name} record found.\n"
                                   for name, count in counts.items()),
                           {f"{name[0].upper()}{name[1:]}Records": str(count) for name, count in counts.items()})

    def write_ratio(self, outstanding: int, total: int) -> None:
        """Write the ratio of outstanding messages."""
        self.write_members(f"Outstanding ratio: {percent(outstanding, total)}% ({outstanding}/{total})\n",
                           {"OutstandingRatio": str(percent(outstanding, total)), "OutstandingMessages": str(outstanding)})

    def write_missing(self, what: str, values: list[str]) -> None:
        """Write the selected GUIDs, offsets or sequence numbers that were not found."""
        self.write_members(f"\nThe following {len(values)} {what}(s) not found:\n" + "".join(f"{each}\n" for each in values)
                           if values else "", {_JSON_MISSING[what]: values})


class TextOutput(ToolOutput):
    """Text output: of a message only its GUID, or all records with `details`. `dump_limit`: bytes of a payload."""

    def __init__(self, write: Write, details: bool, dump_limit: int) -> None:
        self._write, self._details, self._dump_limit = write, details, dump_limit

    def write_members(self, text: str, members: dict[str, object]) -> None:
        self._write(text)

    def write_item(self, text: str, tree: object) -> None:
        self._write(text)

    def write_record(self, fields: Fields) -> None:
        self._write(RULE + aligned(fields, RECORD_COLUMN) + "\n")

    def write_message(self, guid: str, records: list[Fields], payload: Payload) -> None:
        if self._details:
            self._write(RULE + "".join(aligned(fields, RECORD_COLUMN) + "\n" for fields in records))
        else:
            self._write(f"{guid}\n\n")
        if payload is not None:
            self._write(self._payload_text(payload))

    def _payload_text(self, payload: Payload) -> str:
        if not isinstance(payload, tuple):
            return f"\n{payload}\n\n"
        record, content = payload
        index = "unknown" if record.index is None else record.index
        text = (f"\nDataRecord index: {index}, offset: {record.offset}\nDataHeader: \n"
                f"    HeaderWords:  {record.header_words}\n    OptionsWords: {record.options_words}\n"
                f"    MessageWords: {record.message_words}\n    Flags:\n"
                f"        MESSAGE_PROPERTIES: {value_text(record.has_properties)}\n")
        if record.options:
            text += "\nOptions: \n" + "".join(f"    {line}\n" for line in options_text(record))
        if content.properties:
            text += "\nProperties: \n" + "".join(
                f"    Name [{value_text(name)}], Type [{kind.name}], Value [{value_text(value)}]\n"
                for name, (kind, value) in content.properties.items())
        if content.problem:
            text += f"\n{content.problem}\n"
        shown = content.payload[:self._dump_limit]
        text += f"\nPayload{' (inflated)' if content.inflated else ''}: \nFirst {len(shown)} bytes of payload:\n"
        text += hex_dump(shown)
        if len(shown) < len(content.payload):
            text += f"And {len(content.payload) - len(shown)} more bytes (redacted)\n"
        return text + "\n"

    def finish(self) -> None:
        self._write("\n")


class JsonOutput(ToolOutput):
    """JSON output: one object with its Records, one per line or indented (`pretty`)."""

    def __init__(self, write: Write, pretty: bool) -> None:
        self._write, self._pretty = write, pretty
        self._records, self._members = False, False
        write("{\n")

    def write_record(self, fields: Fields) -> None:
        self.write_item("", texts(fields))

    def write_message(self, guid: str, records: list[Fields], payload: Payload) -> None:
        for position, fields in enumerate(records):
            tree: dict[str, Any] = texts(fields)
            if not position and payload is not None:  # the first record holds the payload
                if isinstance(payload, tuple):
                    self._add_payload(tree, payload[1])
                else:
                    tree["PayloadProblem"] = payload
            self.write_item("", tree)

    def _add_payload(self, tree: dict[str, Any], content: MessageContent) -> None:
        tree["Payload"] = content.payload[:JSON_PAYLOAD_BYTES].hex().upper()
        if content.properties:
            tree["Properties"] = [
                {"Name": value_text(name), "Type": kind.name, "Value": value_text(value)}
                for name, (kind, value) in content.properties.items()]
        if content.problem:
            tree["PayloadProblem"] = content.problem

    def write_item(self, text: str, tree: object) -> None:
        self._write(",\n" if self._records else '  "Records": [\n')
        self._records = True
        self._write("    " + self._dump(tree, "    "))

    def write_members(self, text: str, members: dict[str, object]) -> None:
        for name, value in members.items():
            if self._records:
                self._write("\n  ]")
                self._records, self._members = False, True
            self._write(f'{f",{chr(10)}" if self._members else ""}  "{name}": {self._dump(value, "  ")}')
            self._members = True

    def _dump(self, tree: object, indent: str) -> str:
        if not self._pretty:
            return json.dumps(tree, ensure_ascii=False)
        return json.dumps(tree, indent=2, ensure_ascii=False).replace("\n", "\n" + indent)

    def finish(self) -> None:
        self._write("\n  ]\n}\n" if self._records else "\n}\n")


def make_output(write: Write, json_mode: str, details: bool = False, dump_limit: int = 0) -> ToolOutput:
    """Return the output for `json_mode` "pretty" or "line", or "" for text."""
    return JsonOutput(write, json_mode == "pretty") if json_mode else TextOutput(write, details, dump_limit)
