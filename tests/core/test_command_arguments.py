"""A command may come from any program: what it says wrongly is refused, never an exception of ours."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.effects import Snapshot
from dispatcher.core.events import CommandReceived
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.orders import LogEvent, Reply

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"group": 7}, "group: must be text"),
        ({"group": ["g"]}, "group: must be text"),
        ({"group": "%zz"}, "%zz"),
        ({"group": "g", "to": ["c1"]}, "to: must be text"),
        ({"reset": "no"}, "reset: must be true or false"),
        ({"pause": "all"}, "pause: must be group, lane or none"),
        ({"pause": True}, "pause: must be text"),
        ({"dry_run": 1}, "dry_run: must be true or false"),
        ({"group": "g", "to": "c1", "reset": True}, "to: does not go with reset"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(arguments: dict[str, Any], error: str) -> None:
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
    lane = Lane(options, Snapshot(1, complete=True, broker_restarted=False), NOW_MS)
    lane.start(NOW_MS)
    effects = lane.step([CommandReceived("token", "uuid", "rebalance", arguments)], NOW_MS)
    (reply,) = [action for action in effects.actions if isinstance(action, Reply)]
    assert reply.error is not None
    assert error in reply.error
    assert not effects.commands


COMMANDS = (
    "rebalance", "rebalance.plan", "groups.close", "groups.pause", "groups.resume", "groups.pin",
    "groups.purge", "groups.move", "groups.reroute", "consumers.drain", "consumers.evict",
    "dead.release", "dead.skip", "dead.drop",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_an_argument_that_is_not_known_is_refused(name: str) -> None:
    """It may say what the command must not do. One without a value says nothing."""
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
    lane = Lane(options, Snapshot(1, complete=True, broker_restarted=False), NOW_MS)
    lane.start(NOW_MS)
    for gently, is_refused in ((True, True), (None, False)):
        command = CommandReceived("token", f"uuid-{gently}", name, {"gently": gently})
        effects = lane.step([command], NOW_MS)
        (reply,) = [action for action in effects.actions if isinstance(action, Reply)]
        assert (f"{name} does not know gently" in (reply.error or "")) is is_refused


def test_what_was_done_names_who_asked_for_it() -> None:
    """Once: neither a repetition nor a dry run is told. A plan's moves are not repeated in the log."""
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
    lane = Lane(options, Snapshot(1, complete=True, broker_restarted=False), NOW_MS)
    lane.start(NOW_MS)
    pause = CommandReceived("token", "uuid-1", "groups.pause", {"all": True, "group": None}, "ann")
    count = CommandReceived("token", "uuid-2", "rebalance", {"dry_run": True}, "ann")
    refused = CommandReceived("token", "uuid-3", "groups.pause", {"group": "gone"}, "ann")
    effects = lane.step([pause, pause, count, refused], NOW_MS)
    told = [action.fields for action in effects.actions if isinstance(action, LogEvent)]
    (command,) = [fields for fields in told if "command" in fields]
    assert command == {
        "command": "groups.pause", "user": "ann", "uuid": "uuid-1", "arguments": {"all": True}
    }  # fmt: skip
