"""Guard of a client connection: fails on events that would end the process of an official client library.

The rules are those of the specification (`wire.md`, section 12.1). The owner reports requests and PUTs in the order in which
it sends them, and calls `check_new_events` after it has received data.
"""

from __future__ import annotations

from typing import Any

from kit.client import Client
from kit.codec import Event


class Guard:
    """The state of one connection, and the checks of its received events."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._checked = 0  # number of checked events
        self._requests: dict[int, dict[str, Any]] = {}  # request id -> pending request
        self._open: dict[int, int] = {}  # queue id -> number of open substreams
        self._subscriptions: dict[tuple[int, int], set[int]] = {}  # (queue id, sub id) -> ids that a PUSH may name
        self._unacked: set[bytes] = set()  # GUIDs of PUTs with ACK_REQUESTED and without ACK

    def on_request(self, rid: int, choice: dict[str, Any], sub_id: int = 0) -> None:
        """The client sends a request; `sub_id`: the substream concerned."""
        self._requests[rid] = {**choice, "subId": sub_id}

    def on_put(self, guid: bytes, ack: bool) -> None:
        """The client sends a PUT."""
        if ack:
            self._unacked.add(guid)

    def check_new_events(self) -> None:
        """Check the events received since the last call; raise AssertionError for a violation."""
        events = self._client.events
        while self._checked < len(events):
            self._check_event(events[self._checked])
            self._checked += 1

    def _check_event(self, event: Event) -> None:
        if event.kind == "push":
            allowed = {i for (q_id, _), ids in self._subscriptions.items() if q_id == event.push.q_id for i in ids}
            assert event.push.q_id in self._open, f"a PUSH for the closed queue {event.push}"
            assert set(event.push.ids) <= allowed, f"a PUSH names subscriptions {event.push.ids}, configured are {allowed}"
            assert event.push.option_type == 1, "a PUSH without the option that the Java SDK needs"
        elif event.kind == "ack":
            assert event.ack.q_id in self._open, f"an ACK for the closed queue {event.ack}"
            if event.ack.status == 0:
                assert event.ack.guid in self._unacked, f"an ACK for no pending PUT: {event.ack}"
            self._unacked.discard(event.ack.guid)
        elif event.kind == "control" and event.control.get("rId") in self._requests:
            self._check_response(event.control, self._requests.pop(event.control["rId"]))

    def _check_response(self, answer: dict[str, Any], request: dict[str, Any]) -> None:
        if "openQueueResponse" in answer:
            parameters = answer["openQueueResponse"]["originalRequest"]["handleParameters"]
            self._open[parameters["qId"]] = self._open.get(parameters["qId"], 0) + 1
            return
        assert "openQueue" not in request or answer["status"]["category"] != "E_SUCCESS", \
            "an open answered by a status with success"
        if "configureStreamResponse" in answer:
            echoed = answer["configureStreamResponse"]["request"]
            echoed["streamParameters"].setdefault("subscriptions", [])  # JSON omits an empty array
            assert echoed == request["configureStream"], "a configure response with another request"
            self._subscriptions[echoed["qId"], request["subId"]] = {
                s["sId"] for s in echoed["streamParameters"]["subscriptions"]}
        elif "closeQueueResponse" in answer:
            close = request["closeQueue"]
            q_id = close["handleParameters"]["qId"]
            self._subscriptions.pop((q_id, request["subId"]), None)
            if close["isFinal"]:
                self._open.pop(q_id, None)
                for key in [key for key in self._subscriptions if key[0] == q_id]:
                    del self._subscriptions[key]
