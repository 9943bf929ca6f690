"""Judges what one client hears, in byte order: everything that would end the process of an official client.

The table is wire.md 12.1. Feed it what the client says and hears in the order of the connection.
"""

from __future__ import annotations

from typing import Any

from kit.client import Client
from kit.codec import Event


class Guard:
    """One connection's rules."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._judged = 0
        self._asked: dict[int, dict[str, Any]] = {}  # request id -> what was asked
        self._open: dict[int, int] = {}  # queue id -> substreams open
        self._live: dict[tuple[int, int], set[int]] = {}  # (queue id, sub id) -> ids a PUSH may name
        self._outstanding: set[bytes] = set()  # GUIDs whose ACK was asked for and has not come

    def ask(self, rid: int, choice: dict[str, Any], sub_id: int = 0) -> None:
        """A request went out; `sub_id` is that of the substream it is about."""
        self._asked[rid] = {**choice, "subId": sub_id}

    def put(self, guid: bytes, ack: bool) -> None:
        """A PUT went out."""
        if ack:
            self._outstanding.add(guid)

    def judge(self) -> None:
        """Look at everything heard since the last time."""
        heard = self._client.heard
        while self._judged < len(heard):
            self._one(heard[self._judged])
            self._judged += 1

    def _one(self, event: Event) -> None:
        if event.kind == "push":
            allowed = {i for (q_id, _), ids in self._live.items() if q_id == event.push.q_id for i in ids}
            assert event.push.q_id in self._open, f"a PUSH for the closed queue {event.push}"
            assert set(event.push.ids) <= allowed, f"a PUSH names {event.push.ids}, live are {allowed}"
            assert event.push.option_type == 1, "a PUSH without the option that Java needs"
        elif event.kind == "ack":
            assert event.ack.q_id in self._open, f"an ACK for the closed queue {event.ack}"
            if event.ack.status == 0:
                assert event.ack.guid in self._outstanding, f"an ACK nobody waits for: {event.ack}"
            self._outstanding.discard(event.ack.guid)
        elif event.kind == "control" and event.control.get("rId") in self._asked:
            self._answer(event.control, self._asked.pop(event.control["rId"]))

    def _answer(self, answer: dict[str, Any], asked: dict[str, Any]) -> None:
        if "openQueueResponse" in answer:
            parameters = answer["openQueueResponse"]["originalRequest"]["handleParameters"]
            self._open[parameters["qId"]] = self._open.get(parameters["qId"], 0) + 1
            return
        assert "openQueue" not in asked or answer["status"]["category"] != "E_SUCCESS", \
            "an open answered by a successful status"
        if "configureStreamResponse" in answer:
            request = answer["configureStreamResponse"]["request"]
            request["streamParameters"].setdefault("subscriptions", [])  # JSON leaves an empty array out
            assert request == asked["configureStream"], "a configure answered with something else than was asked"
            self._live[request["qId"], asked["subId"]] = {
                s["sId"] for s in request["streamParameters"]["subscriptions"]}
        elif "closeQueueResponse" in answer:
            close = asked["closeQueue"]
            q_id = close["handleParameters"]["qId"]
            self._live.pop((q_id, asked["subId"]), None)
            if close["isFinal"]:
                self._open.pop(q_id, None)
                for key in [key for key in self._live if key[0] == q_id]:
                    del self._live[key]
