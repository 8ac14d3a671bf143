"""What `groups pause|resume|pin` and `consumers drain` send and print."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Responder, Run

_PAUSED = {"group": "g", "paused": True, "changed": True, "in_flight": 1_002}
_LANE = {"group": None, "paused": True, "changed": False, "in_flight": 1}
_PINNED = {"group": "g", "consumer": "c", "changed": True, "owner": "d", "in_flight": 3}
_DRAINED = {"consumer": "c", "drained": True, "changed": True, "in_flight": 0, "pinned": 2}


@pytest.mark.parametrize(
    ("command", "sent", "arguments", "answer", "printed"),
    [
        (
            "groups pause orders g", "groups.pause", {"group": "g", "all": False}, _PAUSED,
            "g: paused; 1,002 messages in flight",
        ),
        (
            "groups pause orders g --new", "groups.pause", {"group": "g", "all": False, "new": True}, _PAUSED,
            "g: paused; 1,002 messages in flight",
        ),
        (
            "groups pause orders --all", "groups.pause", {"group": None, "all": True}, _LANE,
            "orders: paused already; 1 message in flight",
        ),
        (
            "groups resume orders g", "groups.resume", {"group": "g", "all": False},
            {**_PAUSED, "paused": False}, "g: goes on",
        ),
        (
            "groups resume orders --all", "groups.resume", {"group": None, "all": True},
            {**_LANE, "paused": False}, "orders: was not paused",
        ),
        (
            "groups pin orders g c", "groups.pin", {"group": "g", "consumer": "c", "undo": False}, _PINNED,
            "g: pinned to c; goes there when d has settled 3 messages",
        ),
        (
            "groups pin orders g c", "groups.pin", {"group": "g", "consumer": "c", "undo": False},
            {**_PINNED, "changed": False, "owner": "c"}, "g: pinned to c already",
        ),
        (
            "groups pin orders g --undo", "groups.pin", {"group": "g", "consumer": None, "undo": True},
            {**_PINNED, "consumer": None}, "g: no longer pinned",
        ),
        (
            "groups pin orders g --undo", "groups.pin", {"group": "g", "consumer": None, "undo": True},
            {**_PINNED, "consumer": None, "changed": False}, "g: was not pinned",
        ),
        (
            "consumers drain orders c", "consumers.drain", {"consumer": "c", "undo": False}, _DRAINED,
            "c: drained; 0 messages in flight; 2 groups pinned to it",
        ),
        (
            "consumers drain orders c --undo", "consumers.drain", {"consumer": "c", "undo": True},
            {**_DRAINED, "drained": False}, "c: gets messages again",
        ),
        (
            "consumers drain orders c --undo", "consumers.drain", {"consumer": "c", "undo": True},
            {**_DRAINED, "drained": False, "changed": False}, "c: was not drained",
        ),
    ],
)  # fmt: skip
def test_it_travels_and_its_result_is_printed(
    run: Run, responder: Responder, command: str, sent: str, arguments: dict[str, Any],
    answer: dict[str, Any], printed: str,
) -> None:  # fmt: skip
    responder.answer = answer
    result = run(*command.split())
    assert (result.exit_code, result.stderr, result.stdout) == (0, "", printed + "\n")
    (received,) = responder.received
    assert (received.name, received.arguments) == (sent, arguments)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("groups pause orders --all --new", "is for one group, not for --all"),
        ("groups pause orders", "name a group, or say --all for the whole lane"),
        ("groups pause orders g --all", "name a group, or say --all for the whole lane"),
        ("groups resume orders", "name a group, or say --all for the whole lane"),
        ("groups pin orders g", "name a consumer, or say --undo"),
        ("groups pin orders g c --undo", "name a consumer, or say --undo"),
        ("consumers drain orders", "CONSUMER"),
    ],
)
def test_wrong_usage(run: Run, command: str, error: str) -> None:
    result = run(*command.split())
    assert result.exit_code == 2
    assert error in result.stderr


def test_lists_show_flags(run: Run, responder: Responder) -> None:
    group = {"group": "g", "state": "free", "owner": None, "held": 1, "in_flight": 0, "oldest_ms": 5}
    responder.answer = {"total": 1, "groups": [{**group, "paused": True, "pin": "c-9"}]}
    assert "paused, pinned to c-9" in run("groups", "list", "orders").stdout
    responder.answer = {**group, "paused": False, "pin": "c-9", "messages": []}
    assert "flags      pinned to c-9" in run("groups", "show", "orders", "g").stdout
    responder.answer = {
        "consumers": [{"consumer": "c-1", "state": "live", "drained": True}], "drained_absent": ["c-7"],
    }  # fmt: skip
    printed = run("consumers", "list", "orders").stdout
    assert "live, drained" in printed
    assert "drained, and not there: c-7" in printed
    responder.answer = {"lane": "orders", "policy": "exclusive", "state": "active", "paused": True}
    assert "orders: exclusive, active, paused at" in run("status", "orders").stdout
