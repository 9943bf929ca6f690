"""The elector's table: what is done in every state at every event, by the name of the method of `Elector`."""

from __future__ import annotations

from bmqtwist.cluster.election_events import ElectionEvent, ElectionState

_RUNNING = {
    ElectionEvent.START: "_ignore", ElectionEvent.STOP: "_stop", ElectionEvent.WRITTEN: "_written",
    ElectionEvent.WRITE_FAILED: "_write_failed", ElectionEvent.MODE: "_set_mode", ElectionEvent.QUORUM: "_set_quorum",
    ElectionEvent.SCOUTING_REQUEST: "_on_scouting"}

ACTIONS: dict[ElectionState, dict[ElectionEvent, str]] = {
    ElectionState.DORMANT: dict.fromkeys(ElectionEvent, "_ignore") | {
        ElectionEvent.START: "_start", ElectionEvent.MODE: "_set_mode", ElectionEvent.QUORUM: "_set_quorum"},
    ElectionState.FOLLOWER: _RUNNING | {
        ElectionEvent.PEER_UP: "_ignore", ElectionEvent.PEER_DOWN: "_peer_lost", ElectionEvent.TRANSFER: "_ignore",
        ElectionEvent.RESIGN: "_ignore", ElectionEvent.INITIAL: "_stand", ElectionEvent.RANDOM: "_stand",
        ElectionEvent.SCOUT: "_scout_timeout", ElectionEvent.ELECTION: "_ignore", ElectionEvent.CHECK: "_check",
        ElectionEvent.BEAT: "_ignore", ElectionEvent.SCOUTING_RESPONSE: "_scouted", ElectionEvent.PROPOSAL: "_on_proposal",
        ElectionEvent.RESPONSE: "_ignore", ElectionEvent.HEARTBEAT: "_on_heartbeat",
        ElectionEvent.HEARTBEAT_RESPONSE: "_ignore", ElectionEvent.CESSION: "_on_cession"},
    ElectionState.CANDIDATE: _RUNNING | {
        ElectionEvent.PEER_UP: "_ignore", ElectionEvent.PEER_DOWN: "_voter_lost", ElectionEvent.TRANSFER: "_ignore",
        ElectionEvent.RESIGN: "_ignore", ElectionEvent.INITIAL: "_ignore", ElectionEvent.RANDOM: "_ignore",
        ElectionEvent.SCOUT: "_ignore", ElectionEvent.ELECTION: "_election_timeout", ElectionEvent.CHECK: "_ignore",
        ElectionEvent.BEAT: "_ignore", ElectionEvent.SCOUTING_RESPONSE: "_ignore", ElectionEvent.PROPOSAL: "_on_proposal",
        ElectionEvent.RESPONSE: "_on_vote", ElectionEvent.HEARTBEAT: "_on_heartbeat",
        ElectionEvent.HEARTBEAT_RESPONSE: "_ignore", ElectionEvent.CESSION: "_ignore",
        ElectionEvent.WRITTEN: "_written_standing"},
    ElectionState.LEADER: _RUNNING | {
        ElectionEvent.PEER_UP: "_greet", ElectionEvent.PEER_DOWN: "_supporter_lost", ElectionEvent.TRANSFER: "_transfer",
        ElectionEvent.RESIGN: "_resign", ElectionEvent.INITIAL: "_ignore", ElectionEvent.RANDOM: "_ignore",
        ElectionEvent.SCOUT: "_ignore", ElectionEvent.ELECTION: "_transfer_timeout", ElectionEvent.CHECK: "_ignore",
        ElectionEvent.BEAT: "_beat", ElectionEvent.SCOUTING_RESPONSE: "_ignore", ElectionEvent.PROPOSAL: "_refuse",
        ElectionEvent.RESPONSE: "_on_support", ElectionEvent.HEARTBEAT: "_rival",
        ElectionEvent.HEARTBEAT_RESPONSE: "_on_beat_answer", ElectionEvent.CESSION: "_other_ceded",
        ElectionEvent.MODE: "_set_mode_leading"},
}
