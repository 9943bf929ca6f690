"""Elector: the rules of kit/election_rules.py, the cells of its table that ignore their event, and whole elections."""

from __future__ import annotations

from typing import Any

import pytest
from kit.election_rules import (
    BEGIN,
    INACTIVITY,
    NEWEST,
    OLDER,
    RULES,
    C,
    D,
    F,
    L,
    Rule,
    Situation,
    alone,
    answer,
    asking,
    beat,
    cession,
    dormant,
    following,
    leading,
    leading_with_recovering_follower,
    message,
    no_leader_known,
    proposal,
    recovering,
    refusal,
    scouted,
    scouting,
    stale,
    standing,
    status,
    support,
    voted,
    waiting_for_next_candidacy,
)

from bmqtwist.cluster.election_events import (
    ElectionChanged,
    ElectionMode,
    ElectionReason,
    ElectionState,
    ElectionTimer,
    NotElectable,
    PeerDown,
    PeerUp,
    Received,
    Resign,
    SaveVote,
    SetMode,
    SetQuorum,
    Start,
    Stop,
    Tick,
    TickAt,
    Transfer,
    Voted,
)
from bmqtwist.cluster.elector import DATA_INACTIVITY_FACTOR, EVENTS, TABLE, Elector, _ignore
from bmqtwist.cluster.log_events import Alarm, Send, WriteFailed, Written
from bmqtwist.machine import TRANSITIONS_MAX, event_name
from bmqtwist.wire.control import ElectorMessage

NAMES = {"scoutingRequest": "SCOUT_REQ", "scoutingResponse": "SCOUT_RSP", "electionProposal": "PROPOSE",
         "electionResponse": "SUPPORT", "leaderHeartbeat": "BEAT", "heartbeatResponse": "STALE_BEAT",
         "leadershipCessionNotification": "CESSION", "electorNodeStatus": "NODE_STATUS"}
SITUATIONS = {D: dormant, F: following, C: standing, L: leading}
INPUTS = {
    type(each.message.value if isinstance(each, Received) else each): each for each in (
        Start(9), Stop(), PeerUp(3), PeerDown(3), Written(99), WriteFailed(99, ""), Transfer(3), Resign(""),
        SetMode(ElectionMode.NORMAL), SetQuorum(0), scouting(3, 6), scouted(3, 6, True), proposal(3, 9), support(3, 6),
        beat(3, 5), stale(3, 6), cession(3, 6))}


def message_text(sent: Send) -> str:
    """Short form of a message."""
    value, name = sent.message.value, NAMES[sent.message.choice]
    if name == "SUPPORT" and value.refused_for is not None:
        name = "REFUSE"
    elif name == "STALE_BEAT" and value.stamp is not None:
        name = "BEAT_ACK"
    tail = {"SCOUT_RSP": " yes" if name == "SCOUT_RSP" and value.will_vote else " no",
            "CESSION": f" for {value.successor}" if name == "CESSION" and value.successor is not None else ""}.get(name, "")
    return f"{name}({sent.message.term}){tail}"


def short(outputs: list[object], others: list[int]) -> tuple[str, ...]:
    """Short form of outputs; a broadcast is one output."""
    found, at = list[str](), 0
    while at < len(outputs):
        output = outputs[at]
        group = outputs[at:at + len(others)]
        if (len(others) > 1 and all(isinstance(each, Send) for each in group) and [each.node_id for each in group] == others
                and len({message_text(each) for each in group}) == 1):
            found.append(f"all {message_text(group[0])}")
            at += len(others)
            continue
        if isinstance(output, Send):
            found.append(f"{output.node_id} {message_text(output)}")
        elif isinstance(output, SaveVote):
            found.append(f"save {output.term}/{'-' if output.vote is None else output.vote}")
        elif isinstance(output, Voted):
            found.append(f"voted {output.term}")
        elif isinstance(output, NotElectable):
            found.append("requests records")
        elif isinstance(output, ElectionChanged):
            found.append(f"n {output.reason.name}")
        elif isinstance(output, Alarm):
            found.append("alarm")
        at += 1
    return tuple(found)


def status_of(elector: Elector) -> tuple[ElectionState, int, int | None]:
    return elector.state, elector.term, elector.leader


@pytest.mark.spec("cluster", 13)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.number}-{rule.situation.__name__}-{rule.event}"[:90])
def test_the_elector_follows_each_rule(rule: Rule) -> None:
    situation = rule.situation()
    elector = situation.elector
    outputs = rule.play(situation)
    assert short(outputs, elector.other_nodes) == rule.says
    assert status_of(elector) == (rule.state, rule.term, rule.leader)
    assert set(elector.timers.deadlines) == set(rule.timers)
    moments = [each.moment for each in outputs if isinstance(each, TickAt)]
    assert elector._tick_at == min(elector.timers.deadlines.values(), default=None)
    assert moments[-1:] in ([], [elector._tick_at])


def test_every_rule_of_the_original_is_covered() -> None:
    assert {rule.number for rule in RULES} >= set(range(1, 57))


IGNORED = [(state, event) for state in ElectionState for event in EVENTS if TABLE[state][event].action is _ignore]


@pytest.mark.parametrize("state, event", IGNORED, ids=event_name)
def test_an_ignored_event_has_no_outputs_and_changes_no_status(state: ElectionState, event: Any) -> None:
    situation = SITUATIONS[state]()
    elector = situation.elector
    assert elector.state is state
    before = status_of(elector)
    if isinstance(event, ElectionTimer):
        elector.outputs = []
        elector.dispatch(event, event)
        outputs: list[object] = list(elector.outputs)
    else:
        outputs = situation.happen(INPUTS[event])
    assert outputs == [] and status_of(elector) == before


def test_the_rules_cover_every_cell_with_an_action_and_every_state_that_may_follow(
        monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[tuple[ElectionState, Any], set[ElectionState]] = {}
    original = Elector.dispatch

    def record_state(elector: Elector, kind: Any, event: object) -> None:
        before = elector.state
        original(elector, kind, event)
        reached.setdefault((before, kind), set()).add(elector.state)
    monkeypatch.setattr(Elector, "dispatch", record_state)
    for rule in RULES:
        rule.play(rule.situation())
    cells = {(state, event) for state in ElectionState for event in EVENTS}
    assert cells - reached.keys() - set(IGNORED) == set()
    unreached = {(state.name, event_name(event), after.name) for state, event in cells
                 for after in TABLE[state][event].after - reached.get((state, event), set())}
    assert unreached == set()


def test_the_history_names_the_event_of_each_change() -> None:
    transitions = leading().elector.transition_log.transitions
    assert [(each.event, each.after) for each in transitions if each.before != each.after] == [
        ("Start", "FOLLOWER"), ("ScoutingResponse", "CANDIDATE"), ("ElectionResponse", "LEADER")]


@pytest.mark.parametrize("situation", [following, voted, standing, leading, asking], ids=lambda each: each.__name__)
@pytest.mark.parametrize("event", [
    beat(1, 9), beat(9, 9), beat(-1, 9), beat(2, 0), proposal(2, 0), support(2, 0), cession(2, 0), scouting(2, 0),
    message(2, 9, "", None)], ids=repr)
def test_a_message_of_an_unknown_node_or_without_a_term_is_ignored(situation, event) -> None:  # type: ignore[no-untyped-def]
    made = situation()
    before = status_of(made.elector)
    assert made.happen(event) == [] and status_of(made.elector) == before


def test_a_message_with_a_term_above_the_limit_is_ignored_with_an_alarm() -> None:
    situation = following()
    assert [type(each) for each in situation.happen(beat(3, (1 << 63) + 1))] == [Alarm]
    assert situation.elector.term == 5


@pytest.mark.spec("cluster", 14)
def test_the_only_node_of_a_cluster_leads_without_messages_and_without_a_vote_file() -> None:
    situation = alone()
    outputs = situation.wait(0.0)
    assert situation.elector.state is L and not [each for each in outputs if isinstance(each, Send | SaveVote)]
    assert not [each for each in situation.wait(1000.0) if isinstance(each, Send | ElectionChanged)]


@pytest.mark.spec("cluster", 25)
def test_with_a_quorum_larger_than_the_cluster_there_is_no_leader_and_no_term() -> None:
    situation = Situation(3, quorum=4).start()
    for _ in range(20):
        situation.wait(4.0)
        for sender in (2, 3):
            situation.happen(scouted(sender, 5, True))
    assert status_of(situation.elector) == (F, 5, None)


def test_a_quorum_below_a_majority_is_raised_to_a_majority() -> None:
    assert Situation(5, quorum=1).elector.quorum == 3
    situation = Situation(5)
    situation.happen(SetQuorum(1))
    assert situation.elector.quorum == 3


@pytest.mark.spec("cluster", 22)
def test_a_candidate_in_a_newer_term_does_not_replace_a_leader_that_sends_heartbeats() -> None:
    situation = following()
    for term in range(6, 40):
        situation.happen(proposal(3, term))
        situation.happen(scouting(3, term))
    assert status_of(situation.elector) == (F, 5, 2)


@pytest.mark.spec("cluster", 28)
def test_a_candidate_with_an_older_log_is_refused_in_scouting_and_election() -> None:
    situation = no_leader_known()
    assert short(situation.happen(scouting(2, 6, OLDER)), [2, 3]) == ("2 SCOUT_RSP(5) no",)
    assert short(situation.happen(proposal(2, 6, OLDER)), [2, 3]) == ("2 REFUSE(5)",)
    assert short(situation.happen(proposal(3, 6, NEWEST)), [2, 3]) == ("save 6/3", "voted 6", "3 SUPPORT(6)")


def test_a_proposal_without_an_lsn_as_the_original_sends_it_gets_no_vote() -> None:
    situation = no_leader_known()
    request = message(2, 6, "electionProposal", type(proposal(2, 6).message.value)())
    assert short(situation.happen(request), [2, 3]) == ("2 REFUSE(5)",)


@pytest.mark.spec("cluster", 18)
def test_a_leader_without_heartbeats_is_dropped_at_the_first_check_after_the_inactivity_interval() -> None:
    situation = following()
    assert not short(situation.wait(INACTIVITY - 0.001), [2, 3])
    assert situation.elector.leader == 2
    changed = [each for each in situation.wait(1.001) if isinstance(each, ElectionChanged)]
    assert [each.reason for each in changed] == [ElectionReason.LEADER_NO_HEARTBEAT]


def test_a_leader_whose_data_arrives_has_three_times_as_long_for_its_next_heartbeat() -> None:
    situation = following()
    situation.elector.timers.data_received_at = lambda node_id: situation.now - 1.0 if node_id == 2 else 0.0
    situation.wait(DATA_INACTIVITY_FACTOR * INACTIVITY - 1.001)
    assert situation.elector.leader == 2
    situation.wait(2.0)
    assert situation.elector.leader is None


def test_each_round_without_enough_answers_doubles_the_time_of_the_next_one_until_a_leader_is_known() -> None:
    situation, timing = asking(), asking().elector.timing
    for factor in (2, 4, 5, 5):
        while situation.elector.scouting is not None:
            situation.wait(0.01)
        while situation.elector.scouting is None:
            situation.wait(0.01)
        begun = situation.now
        while situation.elector.scouting is not None:
            situation.wait(0.01)
        assert abs(situation.now - begun - min(factor * timing.scouting_result, INACTIVITY)) < 0.05
    situation.happen(beat(2, 7))
    assert situation.elector.timers.patience == 1


def test_a_leader_whose_data_has_ended_is_dropped_after_the_inactivity_interval_without_data() -> None:
    situation = following()
    ended = situation.now + INACTIVITY / 2
    situation.elector.timers.data_received_at = lambda node_id: min(situation.now, ended)
    situation.wait(INACTIVITY * 1.5 - 0.001)
    assert situation.elector.leader == 2
    situation.wait(1.001)
    assert situation.elector.leader is None


@pytest.mark.spec("cluster", 31)
def test_a_leader_without_answers_of_a_majority_cedes_after_the_inactivity_interval() -> None:
    situation = leading()
    begun = situation.now
    for step in range(1, 16):
        situation.wait(1.0)
        situation.happen(answer(2, 6, begun + step - 0.5))
    last_answer = situation.now - 0.5
    situation.wait(last_answer + INACTIVITY - situation.now - 0.001)
    assert situation.elector.state is L
    situation.wait(0.001)
    assert situation.elector.state is F


def test_after_a_pause_above_the_inactivity_interval_a_leader_cedes_before_it_handles_the_next_event() -> None:
    situation = leading()
    situation.now += 60.0
    assert short(situation.happen(Tick()), [2, 3]) == ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)")
    situation = leading()
    situation.now += 60.0
    outputs = short(situation.happen(scouting(3, 7)), [2, 3])
    assert outputs == ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)", "3 SCOUT_RSP(6) yes")


def test_an_answer_to_a_heartbeat_counts_from_the_time_at_which_the_heartbeat_was_sent() -> None:
    situation = leading()
    situation.wait(15.0)
    situation.happen(answer(2, 6, BEGIN + 9.0))
    situation.wait(BEGIN + 9.0 + INACTIVITY - situation.now)
    assert situation.elector.state is F


@pytest.mark.spec("cluster", 26)
def test_messages_that_depend_on_a_vote_are_sent_once_it_is_durable() -> None:
    elector = no_leader_known().elector
    save, vote = elector.step(BEGIN, proposal(2, 6))[:2]
    assert save == SaveVote(1, 6, 2) and vote == Voted(6)
    assert not [each for each in elector.step(BEGIN, scouting(3, 7)) if isinstance(each, Send)]
    first, second = elector.step(BEGIN, Written(1))
    assert isinstance(first, Send) and message_text(first) == "SUPPORT(6)"
    assert isinstance(second, Send) and second.node_id == 3
    assert short(elector.step(BEGIN, proposal(3, 6)), [2, 3]) == ("3 REFUSE(6)",), "one vote in one term"


def test_a_candidate_requests_votes_and_counts_its_own_once_that_is_durable() -> None:
    situation = asking()
    elector = situation.elector
    outputs = elector.step(situation.now, scouted(2, 5, True))
    assert [each for each in outputs if isinstance(each, SaveVote)] == [SaveVote(1, 6, 1)]
    assert not [each for each in outputs if isinstance(each, Send)] and elector.supporters == set()
    assert short(elector.step(situation.now, Written(1)), [2, 3]) == ("all PROPOSE(6)",)
    assert elector.supporters == {1}


def test_two_votes_in_one_write_interval_are_sent_when_the_second_is_durable() -> None:
    elector = no_leader_known().elector
    elector.step(BEGIN, proposal(2, 6))
    elector.step(BEGIN, proposal(3, 7))
    assert elector.step(BEGIN, Written(1)) == [SaveVote(2, 7, 3)]
    assert short(elector.step(BEGIN, Written(2)), [2, 3]) == ("2 SUPPORT(6)", "3 SUPPORT(7)")


def test_a_candidate_preempted_before_its_vote_is_durable_sends_no_proposal() -> None:
    situation = asking()
    elector = situation.elector
    elector.step(situation.now, scouted(2, 5, True))
    elector.step(situation.now, proposal(3, 7))
    assert elector.step(situation.now, Written(1)) == [SaveVote(2, 7, 3)]
    assert short(elector.step(situation.now, Written(2)), [2, 3]) == ("3 SUPPORT(7)",)


def test_a_vote_that_cannot_be_written_is_not_sent_and_ends_a_candidacy() -> None:
    elector = no_leader_known().elector
    elector.step(BEGIN, proposal(2, 6))
    outputs = elector.step(BEGIN, WriteFailed(1, "no space left"))
    assert short(outputs, [2, 3]) == ("alarm",) and set(elector.timers.deadlines) == {ElectionTimer.RANDOM}
    assert elector.step(BEGIN, proposal(2, 6)) == [SaveVote(2, 6, 2)], "the write is repeated"
    assert short(elector.step(BEGIN, Written(2)), [2, 3]) == ("2 SUPPORT(6)",)
    situation = asking()
    situation.elector.step(situation.now, scouted(2, 5, True))
    outputs = situation.elector.step(situation.now, WriteFailed(1, "no space left"))
    assert short(outputs, [2, 3]) == ("alarm", "n QUORUM_NOT_ACHIEVED")


@pytest.mark.spec("cluster", 27)
def test_a_node_with_lost_storage_votes_and_never_becomes_a_candidate() -> None:
    """Its vote only completes a quorum: another quorum has an intact voter that knows the term."""
    situation = recovering()
    for sender in (2, 3):
        situation.happen(scouted(sender, 5, True))
    assert {each for each in short(situation.wait(600.0), [2, 3]) if "PROPOSE" in each or "SCOUT" in each} == set()
    assert "2 SUPPORT(6)" in short(situation.happen(proposal(2, 6)), [2, 3])


def test_a_leader_whose_followers_have_lost_storage_steps_down() -> None:
    situation = leading_with_recovering_follower()
    begun = situation.now
    for step in range(1, 40):
        situation.wait(1.0)
        situation.happen(answer(2, 6, begun + step - 0.5))
    assert situation.elector.state is F, "the answers of node 2 alone do not support it"


def test_scouting_uses_a_term_above_all_reported_terms() -> None:
    """Otherwise a node with the newest log and an old term would never be elected."""
    situation = asking()
    situation.happen(scouted(2, 40, False))
    situation.happen(scouted(3, 12, False))
    assert "all SCOUT_REQ(41)" in short(situation.wait(3.0), [2, 3]) and situation.elector.term == 5


@pytest.mark.spec("cluster", 29)
def test_a_leader_transfers_leadership_to_a_node_with_all_metadata_without_a_wait() -> None:
    former = leading()
    former.happen(Transfer(2))
    assert short(former.happen(answer(2, 6, former.now, OLDER)), [2, 3]) == (), "it lacks a record"
    assert "all CESSION(6) for 2" in short(former.happen(answer(2, 6, former.now)), [2, 3])
    successor, third = following(), following()
    successor.happen(cession(2, 5, 1))
    assert short(successor.wait(0.0), [2, 3]) == ("all SCOUT_REQ(6)",)
    successor.happen(scouted(3, 5, True))
    assert successor.elector.state is C
    assert short(third.happen(scouting(3, 6, ceded_by=2)), [2, 3]) == ("3 SCOUT_RSP(5) yes",), "it has no CESSION yet"
    assert "3 SUPPORT(6)" in short(third.happen(proposal(3, 6, ceded_by=2)), [2, 3])


def test_a_node_in_mode_never_does_not_succeed_a_leader_that_cedes_to_it() -> None:
    situation = following()
    situation.happen(SetMode(ElectionMode.NEVER))
    situation.happen(cession(2, 5, 1))
    assert not [each for each in situation.wait(60.0) if isinstance(each, Send)]
    assert "2 SUPPORT(6)" in short(situation.happen(proposal(2, 6)), [2, 3])


def test_a_node_in_mode_force_starts_scouting_after_the_shortest_wait() -> None:
    situation = waiting_for_next_candidacy()
    situation.happen(SetMode(ElectionMode.FORCE))
    assert not situation.wait(0.749)
    assert short(situation.wait(0.001), [2, 3]) == ("all SCOUT_REQ(6)",)


@pytest.mark.spec("cluster", 23)
def test_a_leader_cedes_to_a_newer_term_and_its_followers_start_scouting() -> None:
    situation = leading()
    assert "all CESSION(7)" in short(situation.happen(stale(3, 7)), [2, 3])
    follower = following()
    follower.happen(cession(2, 7))
    assert "all SCOUT_REQ(6)" in short(follower.wait(3.0), [2, 3])


@pytest.mark.spec("cluster", 24)
def test_a_leader_that_lost_its_supporters_is_elected_again_when_they_reconnect() -> None:
    situation = leading()
    situation.happen(PeerDown(2))
    assert situation.elector.state is F
    situation.happen(PeerUp(2))
    situation.wait(1.875)
    situation.happen(scouted(2, 6, True))
    situation.happen(support(2, 7))
    assert status_of(situation.elector) == (L, 7, 1)


def test_each_reported_change_starts_with_the_status_after_the_previous_change() -> None:
    situation = Situation()
    outputs = situation.happen(Start(5)) + situation.wait(8.0) + situation.happen(scouted(2, 5, True))
    outputs += situation.happen(support(2, 6)) + situation.happen(refusal(3, 9)) + situation.happen(Stop())
    changes = [each for each in outputs if isinstance(each, ElectionChanged)]
    assert [each.after.state for each in changes] == [F, C, L, F, D]
    assert all(later.before == earlier.after for earlier, later in zip(changes, changes[1:], strict=False))


@pytest.mark.spec("cluster", 32)
def test_a_stopped_elector_announces_its_stop_and_ignores_all_inputs() -> None:
    situation = leading()
    assert "all NODE_STATUS(0)" in short(situation.happen(Stop()), [2, 3])
    for event in (beat(2, 9), scouting(2, 9), proposal(2, 9), scouted(2, 9, True), status(2, True), Tick(), PeerUp(2)):
        assert situation.happen(event) == []


def test_the_transition_history_has_the_last_transitions_with_their_causes() -> None:
    situation = leading()
    causes = [each.cause for each in situation.elector.transition_log.transitions]
    assert causes == ["the node has started", "starts scouting for term 6", "2 nodes would vote for this node", "2 votes"]
    assert situation.elector.transition_log.transitions[-1].after == "LEADER"
    for _ in range(TRANSITIONS_MAX):
        situation.happen(Resign("again"))
        situation.wait(3.0)
        situation.happen(scouted(2, 5, True))
        situation.happen(support(2, situation.elector.term))
    assert len(situation.elector.transition_log.transitions) == TRANSITIONS_MAX


def test_only_the_newest_message_of_each_kind_is_delayed_by_a_write() -> None:
    elector = no_leader_known().elector
    elector.step(BEGIN, proposal(2, 6))
    for _ in range(1000):
        elector.step(BEGIN, scouting(3, 7))
        elector.step(BEGIN, beat(3, 4))
    sent = [each for each in elector.step(BEGIN, Written(1)) if isinstance(each, Send)]
    assert len(sent) == 3
    assert isinstance(sent[0].message, ElectorMessage)
