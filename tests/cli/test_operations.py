"""What `groups purge`, `move` and `reroute` send and print, and how they wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Responder, Run

_OPEN = {"operation": "purge", "group": "g", "open": True, "waits_for": ["orders.high"]}
_DONE = {
    "operation": "purge",
    "group": "g",
    "open": False,
    "applied": True,
    "messages": 1_002,
    "in_flight": 1,
}


@pytest.mark.parametrize(
    ("options", "arguments", "answer", "printed"),
    [
        ("", {"first": None, "dry_run": False}, _DONE, "g: 1,002 messages purged; 1 message in flight"),
        (
            "--first 3", {"first": 3, "dry_run": False}, {**_DONE, "messages": 1, "in_flight": 0},
            "g: 1 message purged",
        ),
        (
            "--dry-run", {"first": None, "dry_run": True}, {**_DONE, "applied": False, "in_flight": 0},
            "g: 1,002 messages would be purged",
        ),
    ],
)  # fmt: skip
def test_it_travels_and_its_result_is_printed(
    run: Run, responder: Responder, options: str, arguments: dict[str, Any], answer: dict[str, Any],
    printed: str,
) -> None:  # fmt: skip
    responder.answer = answer
    result = run("groups", "purge", "orders", "g", *options.split())
    assert (result.exit_code, result.stderr, result.stdout) == (0, "", printed + "\n")
    (received,) = responder.received
    assert (received.name, received.arguments) == ("groups.purge", {"group": "g", **arguments})


@pytest.mark.parametrize(
    ("command", "arguments", "printed"),
    [
        ("move --to other", {"to": "other"}, "g: 1,002 messages moved to other; 1 message in flight"),
        (
            "reroute --exchange shop --key eu.fr", {"exchange": "shop", "key": "eu.fr"},
            "g: 1,002 messages rerouted to shop; 1 message in flight",
        ),
        (
            "reroute --exchange shop --key ", {"exchange": "shop", "key": ""},
            "g: 1,002 messages rerouted to shop; 1 message in flight",
        ),
    ],
)  # fmt: skip
def test_where_to_travels_and_is_printed(
    run: Run, responder: Responder, command: str, arguments: dict[str, Any], printed: str
) -> None:
    kind, *options = command.split(" ")
    responder.answer = {**_DONE, "operation": kind}
    result = run("groups", kind, "orders", "g", *options)
    assert (result.exit_code, result.stderr, result.stdout) == (0, "", printed + "\n")
    (received,) = responder.received
    scope = {"group": "g", "first": None, "dry_run": False}
    assert (received.name, received.arguments) == (f"groups.{kind}", {**scope, **arguments})


def test_how_far_a_long_one_has_come(run: Run, responder: Responder) -> None:
    """Once it has taken 2 s: it is asked about ten times in these."""
    open_still = {**_OPEN, "operation": "move", "waits_for": [], "gone": 2, "left": 1_000}
    responder.answers = [*[open_still] * 12, _DONE]
    result = run("groups", "move", "orders", "g", "--to", "other")
    assert result.stderr == "2 messages gone, 1,000 to go\n"


@pytest.mark.parametrize("command", ["move", "reroute --exchange shop", "reroute --key k"])
def test_where_to_must_be_said(run: Run, command: str) -> None:
    kind, *options = command.split()
    assert run("groups", kind, "orders", "g", *options).exit_code == 2


def test_it_asks_with_one_uuid_until_it_is_done(run: Run, responder: Responder) -> None:
    responder.answers = [_OPEN, _OPEN, _DONE]
    result = run("groups", "purge", "orders", "g", "--uuid", "mine")
    assert result.exit_code == 0
    assert [command.uuid for command in responder.received] == ["mine"] * 3
    assert len({command.sent_at_ms for command in responder.received}) == 1, "its age is that of the first"


def test_what_takes_too_long_can_be_asked_for_again(run: Run, responder: Responder) -> None:
    responder.answer = _OPEN
    result = run("groups", "purge", "orders", "g", "--timeout", "2500ms")
    assert (result.exit_code, result.stdout) == (1, "")
    waiting, failed = result.stderr.splitlines()
    assert waiting == "waiting until all that is in orders.high is received"
    (uuid,) = {command.uuid for command in responder.received}
    assert failed.endswith(
        f"groups.purge is not done within 2500ms; it may be still: ask again with --uuid {uuid}"
    )


def test_what_failed_is_said(run: Run, responder: Responder) -> None:
    responder.answer = "purge u: the dispatcher stops: nothing was changed"
    result = run("groups", "purge", "orders", "g")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("purge u: the dispatcher stops: nothing was changed\n")


@pytest.mark.parametrize(
    "options", ["--first 0", "--first x", "--timeout 0s", "extra", "--uuid=", "--uuid \udcff"]
)
def test_wrong_usage(run: Run, options: str) -> None:
    assert run("groups", "purge", "orders", "g", *options.split()).exit_code == 2
