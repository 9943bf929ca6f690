"""Checks of the records of clients whose broker was restarted repeatedly.

Every producer numbers its posts to each queue from 0; every consumer records each delivery with the number of its
connection. From these records `judge` reports violations:

unanswered      a post without an acknowledgement
refused         a post with an acknowledgement that is no success
answered twice  a post with two acknowledgements
lost            acknowledged and never delivered
duplicated      one post with two GUIDs, or a GUID of two posts
unexpected      delivered, but never posted; or with another GUID than the acknowledged one
redelivered     one GUID twice on the same connection
out of order    first deliveries of one producer's posts not in the order of its numbers, or decreasing numbers on one
                connection; place primaries change, messages with the flag of a redelivery may be late: another consumer had
                them and was lost
events          events of a session in another order than CONNECTION_LOST, RECONNECTED, reopens, STATE_RESTORED

Called by `restarts.py` and `load_evaluation.py`; `test_restart_judge.py` tests it. The judge of `kill9.py` is `ledger.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

VERDICTS = ("unanswered", "refused", "answered twice", "lost", "duplicated", "unexpected", "redelivered", "out of order",
            "events")
_EXAMPLES_MAX = 20


@dataclass(slots=True)
class Produced:
    """Posts of one producer to one queue: numbers 0 to `posts` - 1; `acks` as (number, GUID, status) in order."""

    producer: str
    uri: str
    posts: int
    acks: list[tuple[int, str, str]]


@dataclass(slots=True)
class Consumed:
    """Deliveries of one queue to one app: (connection, GUID, producer, number, redelivered) in order."""

    uri: str
    app: str
    deliveries: list[tuple[int, str, str, int, bool]]


@dataclass(slots=True)
class Verdict:
    """Counts of events, counts of violations, and at most 20 examples of violations."""

    numbers: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def report(self, kind: str, detail: str) -> None:
        """Count a violation."""
        self.violations[kind] += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: {detail}")


def judge_posts(verdict: Verdict, produced: Produced) -> tuple[dict[int, str], set[int]]:
    """Check that every post has exactly one acknowledgement, a success; return GUIDs by number, and the refused numbers."""
    guids: dict[int, str] = {}
    refused = set[int]()
    place = f"{produced.producer} to {produced.uri}"
    for number, guid, status in produced.acks:
        if number in guids:
            verdict.report("answered twice", f"{place} {number}")
        guids[number] = guid
        if status != "SUCCESS":
            refused.add(number)
            verdict.report("refused", f"{place} {number}: {status}")
    verdict.numbers["posts"] += produced.posts
    verdict.numbers["acknowledged"] += len(guids)
    for number in range(produced.posts):
        if number not in guids:
            verdict.report("unanswered", f"{place} {number}")
    return guids, refused


def judge_deliveries(verdict: Verdict, consumed: Consumed, posted: dict[str, dict[int, str]], refused: dict[str, set[int]],
                     moves: bool) -> None:
    """Check the deliveries of a queue to an app.

    `posted`: GUIDs by number, of each producer to this queue; `refused`: the numbers that were refused, which need not be
    delivered; `moves` as of `judge`.
    """
    first: dict[str, int] = dict.fromkeys(posted, 0)  # producer -> the number that must be delivered next
    skipped: dict[str, set[int]] = {producer: set() for producer in posted}  # numbers that must follow
    seen: dict[tuple[str, int], str] = {}
    connection, on_connection, last = -1, set[str](), dict[str, int]()
    place = f"{consumed.uri} {consumed.app}".rstrip()
    for number_of_connection, guid, producer, number, redelivered in consumed.deliveries:
        message = f"{place}: {producer} {number}"
        verdict.numbers["deliveries"] += 1
        if number_of_connection != connection:
            connection = number_of_connection
            on_connection.clear()
            last.clear()
        if posted.get(producer, {}).get(number) != guid:
            verdict.report("unexpected", f"{message} as {guid}")
            continue
        if guid in on_connection and not moves:
            verdict.report("redelivered", f"{message} on connection {connection}")
        on_connection.add(guid)
        if number < last.get(producer, 0) and not moves:
            verdict.report("out of order", f"{message} after {last[producer]} on connection {connection}")
        last[producer] = number
        if seen.setdefault((producer, number), guid) != guid:
            verdict.report("duplicated", message)
        if number == first[producer]:
            first[producer] += 1
        elif number > first[producer]:
            if not moves:
                verdict.report("out of order", f"{message} delivered before {first[producer]}")
            skipped[producer].update(range(first[producer], number))
            first[producer] = number + 1
        elif number in skipped[producer]:
            skipped[producer].remove(number)
            verdict.numbers["late"] += 1
            if moves and not redelivered:
                verdict.report("out of order", f"{message} after {first[producer] - 1}, without the redelivery flag")
        else:
            verdict.numbers["deliveries repeated"] += 1
            verdict.numbers["of these with the flag"] += redelivered
    for producer, guids in posted.items():
        for number in guids:
            if (producer, number) not in seen and number not in refused[producer]:
                verdict.report("lost", f"{place}: {producer} {number}")


def judge_events(verdict: Verdict, client: str, letters: str, queues: int) -> None:
    """Check the events of one session: Connected, Lost, Reconnected, reOpened, State restored, Disconnected as letters."""
    verdict.numbers["reconnects"] += letters.count("R")
    if not re.fullmatch(f"C(L(RO{{0,{queues}}}L)*RO{{{queues}}}S)*D", letters):
        verdict.report("events", f"{client}: {letters}")


def judge(produced: list[Produced], consumed: list[Consumed], events: list[tuple[str, str, int]],
          moves: bool = False) -> Verdict:
    """Check all records; return the counts.

    `events`: (client, letters, number of queues) of each session. `moves`: primaries change behind a connection that
    remains, so that unconfirmed messages are delivered again on it.
    """
    verdict = Verdict()
    posted: dict[str, dict[str, dict[int, str]]] = {}
    refused: dict[str, dict[str, set[int]]] = {}
    for each in produced:
        posted.setdefault(each.uri, {})[each.producer], refused.setdefault(each.uri, {})[each.producer] = judge_posts(
            verdict, each)
    guids = Counter(guid for of_queue in posted.values() for numbers in of_queue.values() for guid in numbers.values())
    for guid, count in guids.items():
        if count > 1:
            verdict.report("duplicated", f"GUID {guid} has {count} posts")
    for each_consumed in consumed:
        uri = each_consumed.uri
        judge_deliveries(verdict, each_consumed, posted.get(uri, {}), refused.get(uri, {}), moves)
    for client, letters, queues in events:
        judge_events(verdict, client, letters, queues)
    return verdict
