"""What clients of a broker that is restarted again and again may say of it, and what they may not.

Every producer numbers its posts to each queue from 0; every consumer writes down each delivery with the number of the
connection it came on. Given all of that, `judge` finds

unanswered    a post without acknowledgement
refused       a post whose acknowledgement was no success
answered twice
lost          acknowledged and never delivered
doubled       one post under two GUIDs
unexpected    delivered, but never posted; or under another GUID than the acknowledged one
again         one GUID twice on the same connection
out of order  the first deliveries of one producer's posts do not follow its numbers, or one connection goes backwards; where
              primaries change: unless what comes late is marked as delivered again, since somebody on the way was lost
events        a session told its events in another order than CONNECTION_LOST, RECONNECTED, reopens, STATE_RESTORED
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

VERDICTS = ("unanswered", "refused", "answered twice", "lost", "doubled", "unexpected", "again", "out of order", "events")
_EXAMPLES_MAX = 20


@dataclass(slots=True)
class Produced:
    """What one producer posted to one queue: numbers 0 to `posts` - 1; `acks` as (number, GUID, status) in order."""

    producer: str
    uri: str
    posts: int
    acks: list[tuple[int, str, str]]


@dataclass(slots=True)
class Consumed:
    """What came from one queue for one application: (connection, GUID, producer, number, redelivered) in order."""

    uri: str
    app: str
    deliveries: list[tuple[int, str, str, int, bool]]


@dataclass(slots=True)
class Verdict:
    """Numbers, counts of what is wrong, and some examples."""

    numbers: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def accuse(self, what: str, detail: str) -> None:
        """Something is wrong."""
        self.wrong[what] += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{what}: {detail}")


def judge_posts(verdict: Verdict, produced: Produced) -> dict[int, str]:
    """Every post has exactly one acknowledgement, a success; GUIDs by number."""
    guids: dict[int, str] = {}
    where = f"{produced.producer} to {produced.uri}"
    for number, guid, status in produced.acks:
        if number in guids:
            verdict.accuse("answered twice", f"{where} {number}")
        guids[number] = guid
        if status != "SUCCESS":
            verdict.accuse("refused", f"{where} {number}: {status}")
    verdict.numbers["posts"] += produced.posts
    verdict.numbers["acknowledged"] += len(guids)
    for number in range(produced.posts):
        if number not in guids:
            verdict.accuse("unanswered", f"{where} {number}")
    return guids


def judge_deliveries(verdict: Verdict, consumed: Consumed, posted: dict[str, dict[int, str]], moves: bool) -> None:
    """`posted`: GUIDs by number, of each producer to this queue; `moves` as of `judge`."""
    first: dict[str, int] = dict.fromkeys(posted, 0)  # the number whose first delivery is due
    skipped: dict[str, set[int]] = {producer: set() for producer in posted}  # they have to come later, marked
    seen: dict[tuple[str, int], str] = {}
    connection, here, last = -1, set[str](), dict[str, int]()
    where = f"{consumed.uri} {consumed.app}".rstrip()
    for number_of_connection, guid, producer, number, redelivered in consumed.deliveries:
        what = f"{where}: {producer} {number}"
        verdict.numbers["deliveries"] += 1
        if number_of_connection != connection:
            connection = number_of_connection
            here.clear()
            last.clear()
        if posted.get(producer, {}).get(number) != guid:
            verdict.accuse("unexpected", f"{what} as {guid}")
            continue
        if guid in here and not moves:
            verdict.accuse("again", f"{what} on connection {connection}")
        here.add(guid)
        if number < last.get(producer, 0) and not moves:
            verdict.accuse("out of order", f"{what} after {last[producer]} on connection {connection}")
        last[producer] = number
        if seen.setdefault((producer, number), guid) != guid:
            verdict.accuse("doubled", what)
        if number == first[producer]:
            first[producer] += 1
        elif number > first[producer]:
            if not moves:
                verdict.accuse("out of order", f"{what} came before {first[producer]}")
            skipped[producer].update(range(first[producer], number))
            first[producer] = number + 1
        elif number in skipped[producer]:
            skipped[producer].remove(number)
            verdict.numbers["late"] += 1
            if moves and not redelivered:
                verdict.accuse("out of order", f"{what} came after {first[producer] - 1}, and not as one that comes again")
        else:
            verdict.numbers["deliveries repeated"] += 1
            verdict.numbers["of these marked as such"] += redelivered
    for producer, guids in posted.items():
        for number in guids:
            if (producer, number) not in seen:
                verdict.accuse("lost", f"{where}: {producer} {number}")


def judge_events(verdict: Verdict, who: str, letters: str, queues: int) -> None:
    """The events of one session, a letter each: Connected, Lost, Reconnected, reOpened, State restored, Disconnected."""
    verdict.numbers["reconnects"] += letters.count("R")
    if not re.fullmatch(f"C(L(RO{{0,{queues}}}L)*RO{{{queues}}}S)*D", letters):
        verdict.accuse("events", f"{who}: {letters}")


def judge(produced: list[Produced], consumed: list[Consumed], events: list[tuple[str, str, int]],
          moves: bool = False) -> Verdict:
    """Everything together; `events`: (who, letters, number of queues) of each session. `moves`: behind a connection that
    stands, primaries change, and what was not known to be confirmed comes again."""
    verdict = Verdict()
    posted: dict[str, dict[str, dict[int, str]]] = {}
    for each in produced:
        posted.setdefault(each.uri, {})[each.producer] = judge_posts(verdict, each)
    guids = Counter(guid for of_queue in posted.values() for numbers in of_queue.values() for guid in numbers.values())
    for guid, count in guids.items():
        if count > 1:
            verdict.accuse("doubled", f"GUID {guid} stands for {count} posts")
    for taken in consumed:
        judge_deliveries(verdict, taken, posted.get(taken.uri, {}), moves)
    for who, letters, queues in events:
        judge_events(verdict, who, letters, queues)
    return verdict
