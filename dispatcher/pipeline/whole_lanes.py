"""A lane with shards in a report: each shard is a lane there, and they stand together under their lane's
name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dispatcher.pipeline.order_audit import KEPT, UNKNOWN, VIOLATED
from dispatcher.wire.shards import lane_order, without_number

WORST_FIRST: Final = (VIOLATED, UNKNOWN, KEPT)


def by_whole_lane(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of lanes by the names in the configuration, each where the first one of them was."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(without_number(name), []).append(name)
    return found


def together(names: Iterable[str]) -> list[str]:
    """The same names, those of a lane's shards one after the other."""
    return [name for parts in by_whole_lane(names).values() for name in parts]


def named(lane: str, known: Iterable[str]) -> list[str]:
    """What is meant by this name: the lane, or all its shards."""
    return sorted((name for name in known if lane in (name, without_number(name))), key=lane_order)


def of_shards(lanes: dict[str, dict[str, Any]], whole: str) -> dict[str, Any] | None:
    """How many `shards` of this lane a summary has, and their worst `verdict`, `groups` and `hand_overs`
    together; None: it has none."""
    parts = [facts for name, facts in lanes.items() if name != whole and without_number(name) == whole]
    if not parts:
        return None
    return {
        "shards": len(parts),
        "verdict": min((facts["verdict"] for facts in parts), key=WORST_FIRST.index),
        "groups": {each: sum(facts["groups"][each] for facts in parts) for each in WORST_FIRST},
        "hand_overs": sum(facts["hand_overs"] for facts in parts),
    }
