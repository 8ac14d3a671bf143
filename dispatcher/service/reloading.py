"""What a changed configuration file does to lanes that run: the one place that says so.

A key of a lane is taken over at once, or the lane is led anew with it (as after a fail-over: nothing is lost,
doubled or out of order, and owners stay), or it can't change while the process runs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from dispatcher.settings import LaneSettings, Model, Settings

#: Keys of a lane that the core reads whenever it needs them. Of `rebalance` that is `pause`, of `inbound` the
#: weights. All others, and those that come, take a new leadership.
AT_ONCE: Final = frozenset({"inbound", "liveness_interval_ms", "rebalance", "reconnect_grace_ms"})
#: Consumers hear of it only when they join: they would seem frozen.
_FIXED_KEYS: Final = ("heartbeat_ms",)
_FIXED_PARTS: Final = ("rabbitmq", "redis", "http")


class Change(Enum):
    """How a lane goes on with the changed file."""

    UNCHANGED = "unchanged"
    AT_ONCE = "changed"
    ANEW = "led anew"
    STARTED = "started"
    STOPPED = "stopped"


def refusals(old: Settings, new: Settings) -> list[str]:
    """Every change that needs a restart, by the path of its key."""
    paths = [
        f"{part}.{key}" for part in _FIXED_PARTS for key in _changed(getattr(old, part), getattr(new, part))
    ]
    if (old.ledger is None) is not (new.ledger is None):
        paths.append("ledger")
    elif old.ledger is not None and new.ledger is not None:
        paths += [f"ledger.{key}" for key in _changed(old.ledger, new.ledger)]
    if old.prefix != new.prefix:
        paths.append("prefix")
    for name in _in_both(old, new):
        was, is_now = old.lanes[name], new.lanes[name]
        changed = _changed(was, is_now, only=_FIXED_KEYS)
        paths += [f"lanes.{name}.{key}" for key in changed]
    return [f"{path}: can't change while the dispatcher runs: restart it" for path in paths]


def changes(old: Settings, new: Settings) -> dict[str, Change]:
    """What becomes of each lane, in the order of the new file; those that are gone come last."""
    known = {name: change_of(old.lanes[name], new.lanes[name]) for name in _in_both(old, new)}
    plan = {name: known.get(name, Change.STARTED) for name in new.lanes}
    return plan | {name: Change.STOPPED for name in old.lanes if name not in new.lanes}


def change_of(old: LaneSettings, new: LaneSettings) -> Change:
    """How a lane that runs with the old settings comes to the new ones."""
    if old == new:
        return Change.UNCHANGED
    differ = {key for key in type(new).model_fields if getattr(old, key) != getattr(new, key)}
    pause_alone = old.rebalance.on_join == new.rebalance.on_join
    weights_alone = [each.queue for each in old.inbound] == [each.queue for each in new.inbound]
    return Change.AT_ONCE if differ <= AT_ONCE and pause_alone and weights_alone else Change.ANEW


def _in_both(old: Settings, new: Settings) -> list[str]:
    return [name for name in new.lanes if name in old.lanes]


def _changed(old: Model, new: Model, only: tuple[str, ...] = ()) -> list[str]:
    """The keys that differ, as the file has them."""
    fields = type(new).model_fields
    names = [name for name in only or fields if getattr(old, name) != getattr(new, name)]
    return [fields[name].alias or name for name in names]
