"""`bmq storage show` on a journal: what is wanted, in the order of the journal, each message as one block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bmqtwist.storage.recovery import KnownQueue
from bmqtwist.storagetool.datafile import DataError, DataFile, content_of
from bmqtwist.storagetool.fields import record_fields
from bmqtwist.storagetool.journalview import (
    ConfirmRecord,
    DeletionRecord,
    JournalRecord,
    MessageRecord,
)
from bmqtwist.storagetool.output import HumanOutput, Output, Payload
from bmqtwist.storagetool.selection import Selection, Story, stories, type_of

_COUNTED = {"message": "message", "queue-op": "queueOp", "journal-op": "journalOp"}


@dataclass(slots=True)
class Show:
    """Prints selected records. `data` is given if payloads are wanted."""

    selection: Selection
    queues: Mapping[bytes, KnownQueue]
    output: Output
    data: DataFile | None = None

    def run(self, records: Iterable[JournalRecord]) -> bool:
        """Print; False if something that was asked for by name is not there."""
        return self._exact(records) if self.selection.exact_records else self._search(records)

    def _search(self, records: Iterable[JournalRecord]) -> bool:
        selection, output = self.selection, self.output
        counts = {name: 0 for kind, name in _COUNTED.items() if kind in selection.types}
        outstanding = total = 0
        seen: set[bytes] = set()
        for item in stories(records):
            if not isinstance(item, Story):
                if selection.wants_record(item):
                    output.record(record_fields(item, self.queues))
                    counts[_COUNTED[type_of(item)]] += 1
                continue
            if item.message is not None and selection.status and selection.covers(item):
                total += 1
                outstanding += item.outstanding
            if selection.wants_story(item):
                counts["message"] += item.message is not None
                seen.add(self._message(item))
        output.found(counts)
        if selection.status and total:
            output.ratio(outstanding, total)
        missing = [guid.hex().upper() for guid in selection.guids if guid not in seen]
        if selection.guids and (missing or not isinstance(output, HumanOutput)):
            output.missing("GUID", missing)
        output.finish()
        return not missing

    def _message(self, story: Story) -> bytes:
        first = next(story.records)
        guid: bytes = getattr(first, "guid", b"")
        self.output.message(guid.hex().upper(), [record_fields(record, self.queues) for record in story.records],
                            self._payload(story.message))
        return guid

    def _payload(self, message: MessageRecord | None) -> Payload:
        if self.data is None or message is None:
            return None
        try:
            record = self.data.record(message.data_dwords * 8, numbered=True)
        except DataError as error:
            return f"Failed to retrieve message from DATA file: {error}"
        return record, content_of(record, message.compression)

    def _exact(self, records: Iterable[JournalRecord]) -> bool:
        selection, output = self.selection, self.output
        counts = dict.fromkeys(("confirm", "deletion", "message", "queueOp", "journalOp"), 0)
        offsets, seqnums = set(selection.offsets), set(selection.seqnums)
        for record in records:
            if not selection.wants_exactly(record):
                continue
            offsets.discard(record.offset)
            seqnums.discard(record.psn)
            fields = record_fields(record, self.queues)
            if isinstance(record, MessageRecord):
                counts["message"] += 1
                output.message(record.guid.hex().upper(), [fields], self._payload(record))
                continue
            output.record(fields)
            if isinstance(record, ConfirmRecord):
                counts["confirm"] += 1
            elif isinstance(record, DeletionRecord):
                counts["deletion"] += 1
            else:
                counts[_COUNTED[type_of(record)]] += 1
        output.found(counts)
        if selection.offsets:
            output.missing("offset", [str(each) for each in sorted(offsets)])
        if selection.seqnums:
            output.missing("sequence number", [f"{lease}-{sequence}" for lease, sequence in sorted(seqnums)])
        output.finish()
        return not offsets and not seqnums
