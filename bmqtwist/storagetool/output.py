"""Two ways to print what was found: for people, and as one JSON object that is written as it grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bmqtwist.storagetool.datafile import (
    Content,
    DataRecord,
    hex_dump,
    options_text,
    value_text,
)
from bmqtwist.storagetool.fields import RECORD_COLUMN, Fields, aligned, texts

Write = Callable[[str], None]  # takes text with its line ends
RULE = "=" * 30 + "\n\n"
JSON_PAYLOAD_BYTES = 64  # of a payload that JSON shows

# A message in detail: its records, then its DATA record with what is in it, or a sentence why there is none.
Payload = tuple[DataRecord, Content] | str | None


class HumanOutput:
    """Text for people. `dump_limit`: bytes of a payload that are shown."""

    def __init__(self, write: Write, details: bool, dump_limit: int) -> None:
        self._write, self._details, self._dump_limit = write, details, dump_limit

    def record(self, fields: Fields) -> None:
        """One record that stands for itself."""
        self._write(RULE + aligned(fields, RECORD_COLUMN) + "\n")

    def message(self, guid: str, records: list[Fields], payload: Payload) -> None:
        """A message: its GUID, or all of it."""
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

    def found(self, counts: dict[str, int]) -> None:
        """How many records of each kind were found."""
        for name, count in counts.items():
            self._write(f"{count} {name} record(s) found.\n" if count else f"No {name} record found.\n")

    def ratio(self, outstanding: int, total: int) -> None:
        """How many of the messages are outstanding."""
        self._write(f"Outstanding ratio: {percent(outstanding, total)}% ({outstanding}/{total})\n")

    def missing(self, what: str, values: list[str]) -> None:
        """What was asked for and is not there."""
        if values:
            self._write(f"\nThe following {len(values)} {what}(s) not found:\n")
            self._write("".join(f"{each}\n" for each in values))

    def finish(self) -> None:
        """Nothing follows."""
        self._write("\n")


_JSON_COUNTS = {"message": "MessageRecords", "queueOp": "QueueOpRecords", "journalOp": "JournalOpRecords",
                "confirm": "ConfirmRecords", "deletion": "DeletionRecords"}
_JSON_MISSING = {"GUID": "GuidsNotFound", "offset": "OffsetsNotFound", "sequence number": "SequenceNumbersNotFound"}


class JsonOutput:
    """One JSON object whose Records are written as they come, one to a line or indented (`pretty`)."""

    def __init__(self, write: Write, pretty: bool) -> None:
        self._write, self._pretty = write, pretty
        self._records, self._members = False, False
        write("{\n")

    def record(self, fields: Fields) -> None:
        """One record."""
        self.item(texts(fields))

    def message(self, guid: str, records: list[Fields], payload: Payload) -> None:
        """A message: all its records, the first with the payload."""
        for position, fields in enumerate(records):
            tree: dict[str, Any] = texts(fields)
            if not position and payload is not None:
                if isinstance(payload, tuple):
                    self._add_payload(tree, payload[1])
                else:
                    tree["PayloadProblem"] = payload
            self.item(tree)

    def _add_payload(self, tree: dict[str, Any], content: Content) -> None:
        tree["Payload"] = content.payload[:JSON_PAYLOAD_BYTES].hex().upper()
        if content.properties:
            tree["Properties"] = [
                {"Name": value_text(name), "Type": kind.name, "Value": value_text(value)}
                for name, (kind, value) in content.properties.items()]
        if content.problem:
            tree["PayloadProblem"] = content.problem

    def item(self, tree: object) -> None:
        """One element of Records."""
        self._write(",\n" if self._records else '  "Records": [\n')
        self._records = True
        self._write("    " + self._dump(tree, "    "))

    def member(self, name: str, value: object) -> None:
        """A member of the object itself, behind the Records."""
        if self._records:
            self._write("\n  ]")
            self._records, self._members = False, True
        self._write(f'{f",{chr(10)}" if self._members else ""}  "{name}": {self._dump(value, "  ")}')
        self._members = True

    def _dump(self, tree: object, indent: str) -> str:
        if not self._pretty:
            return json.dumps(tree, ensure_ascii=False)
        return json.dumps(tree, indent=2, ensure_ascii=False).replace("\n", "\n" + indent)

    def found(self, counts: dict[str, int]) -> None:
        """How many records of each kind were found."""
        for name, count in counts.items():
            self.member(_JSON_COUNTS[name], str(count))

    def ratio(self, outstanding: int, total: int) -> None:
        """How many of the messages are outstanding."""
        self.member("OutstandingRatio", str(percent(outstanding, total)))
        self.member("OutstandingMessages", str(outstanding))

    def missing(self, what: str, values: list[str]) -> None:
        """What was asked for and is not there."""
        self.member(_JSON_MISSING[what], values)

    def finish(self) -> None:
        """Close the object."""
        self._write("\n  ]\n}\n" if self._records else "\n}\n")


Output = HumanOutput | JsonOutput


def percent(part: int, total: int) -> int:
    """Rounded as usual: halves up."""
    return (200 * part + total) // (2 * total) if total else 0
