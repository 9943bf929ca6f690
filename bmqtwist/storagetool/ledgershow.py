"""`bmq storage ledger`: records of the cluster state ledger in short, in detail, as JSON, or counted."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.storagetool.fields import Fields, aligned, texts, timestamp
from bmqtwist.storagetool.ledgerview import (
    Ledger,
    LedgerEntry,
    LedgerQueue,
    LedgerSelection,
    count_types,
    outline,
    plain,
    queues_of,
    since_last_snapshot,
)
from bmqtwist.storagetool.output import JsonOutput, Write

_DELIMITER = "=" * 27  # and one more for each letter of the record's type
_COLUMN = 21
_UPDATES = ("partitionPrimaryAdvisory", "queueUnAssignmentAdvisory", "queueUpdateAdvisory", "queueAssignmentAdvisory",
            "leaderAdvisory")  # in the order in which they are printed


def entry_fields(entry: LedgerEntry, log_id: str) -> Fields:
    """Details of one record but for its body."""
    return [("RecordType", entry.record.type.name), ("Offset", entry.offset), ("LogId", log_id),
            ("ElectorTerm", entry.record.term), ("SequenceNumber", entry.record.sequence_number),
            ("HeaderWords", entry.header_words), ("LeaderAdvisoryWords", entry.advisory_words),
            ("Timestamp", timestamp(entry.record.timestamp)), ("Epoch", entry.record.timestamp)]


@dataclass(slots=True)
class LedgerShow:
    """Prints a ledger. `json_mode`: "" for people, else "pretty" or "line"."""

    ledger: Ledger
    selection: LedgerSelection
    from_begin: bool
    write: Write
    json_mode: str = ""

    @property
    def _considered(self) -> list[LedgerEntry]:
        entries = self.ledger.entries
        exact = self.selection.offsets or self.selection.lsns
        return entries if self.from_begin or exact else since_last_snapshot(entries)

    def records(self, details: bool) -> bool:
        """Print what is selected; False if something that was asked for by name is not there."""
        chosen = [entry for entry in self._considered if self.selection.wants(entry)]
        offsets = [str(each) for each in self.selection.offsets if each not in {entry.offset for entry in chosen}]
        lsns = [f"{term}-{number}" for term, number in self.selection.lsns
                if (term, number) not in {entry.lsn for entry in chosen}]
        if self.json_mode:
            self._json(chosen, offsets, lsns)
        else:
            self._human(chosen, details, {"offset": offsets, "sequence number": lsns})
        return not offsets and not lsns

    def _human(self, chosen: list[LedgerEntry], details: bool, missing: dict[str, list[str]]) -> None:
        for entry in chosen:
            self.write(self._detailed(entry) if details else self._short(entry))
        for kind, count in self._counts(chosen).items():
            self.write(f"{count or 'No'} {kind} record(s) found.\n")
        for what, values in missing.items():
            if values:
                self.write(f"\nThe following {len(values)} {what}(s) not found:\n" + "".join(f"{v}\n" for v in values))
        self.write("\n")

    def _short(self, entry: LedgerEntry) -> str:
        record = entry.record
        return (f"[ recordType = {record.type.name} electorTerm = {record.term} sequenceNumber = "
                f"{record.sequence_number} timestamp = {record.timestamp} ][ logId = {self.ledger.log_id} "
                f"offset = {entry.offset} ]\n")

    def _detailed(self, entry: LedgerEntry) -> str:
        body = [f"{'  ' * (depth + 2)}{text}" for depth, text in outline(entry.record.message)]
        return (f"{_DELIMITER}{'=' * len(entry.record.type.name)}\n\n"
                + aligned(entry_fields(entry, self.ledger.log_id), _COLUMN)
                + f"    {'Record':<{_COLUMN}}: " + "\n".join(body) + "\n\n")

    def _json(self, chosen: list[LedgerEntry], offsets: list[str], lsns: list[str]) -> None:
        output = JsonOutput(self.write, self.json_mode == "pretty")
        for entry in chosen:
            output.item({**texts(entry_fields(entry, self.ledger.log_id)), "Record": plain(entry.record.message)})
        for kind, count in self._counts(chosen).items():
            output.member(f"{kind.capitalize()}Records", str(count))
        if self.selection.offsets:
            output.missing("offset", offsets)
        if self.selection.lsns:
            output.missing("sequence number", lsns)
        output.finish()

    def _counts(self, chosen: list[LedgerEntry]) -> dict[str, int]:
        found = count_types(chosen)[0]
        return {kind: found[kind] for kind in ("snapshot", "update", "commit", "ack")
                if kind in self.selection.types}

    def summary(self, limit: int) -> None:
        """Print how many records of each kind there are, and the queues: those there are, then those there were."""
        entries = self._considered
        types, updates = count_types(entries)
        choices: Fields = [(name, updates[name]) for name in _UPDATES if updates[name]]
        known = list(queues_of(entries).values())
        present = [queue for queue in known if not queue.removed]
        removed = [queue for queue in known if queue.removed]
        if self.json_mode:
            self._json_summary({**{f"{kind.capitalize()}Records": types[kind] for kind in ("snapshot", "update")},
                                **dict(choices),
                                **{f"{kind.capitalize()}Records": types[kind] for kind in ("commit", "ack")}},
                               present, removed, limit)
            return
        for kind in ("snapshot", "update", "commit", "ack"):
            more = ", including:" if kind == "update" and choices else "."
            self.write(f"\n{types[kind] or 'No'} {kind} record(s) found{more}\n")
            if kind == "update" and choices:
                self.write(aligned(choices))
        for title, queues in (("Queues", present), ("unassigned Queues", removed)):
            if queues:
                self.write(f"\n{len(queues)} {title} found:\n")
                if len(queues) > limit:
                    self.write(f"Only first {limit} queues are displayed.\n")
                self.write("".join(f"{one_line(queue)}\n" for queue in queues[:limit]))
        self.write("\n")

    def _json_summary(self, counts: dict[str, object], present: list[LedgerQueue], removed: list[LedgerQueue],
                      limit: int) -> None:
        output = JsonOutput(self.write, self.json_mode == "pretty")
        output.member("Summary", {name: str(count) for name, count in counts.items()})
        name = f"First{limit}Queues" if len(present) > limit else "Queues"
        output.member(name, [plain(queue.info()) for queue in present[:limit]])
        if removed:
            output.member("UnassignedQueues", [plain(queue.info()) for queue in removed[:limit]])
        output.finish()


def one_line(queue: LedgerQueue) -> str:
    """A queue as one line of text."""
    return " ".join(text for _, text in outline(queue.info()))
