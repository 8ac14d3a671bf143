"""The header of a leadership's records: options, consumers, and the messages that they have in hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, NamedTuple

from dispatcher.core.bounds import COUNTER_SHIFT
from dispatcher.core.effects import Snapshot
from dispatcher.core.entries import copy_of
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions
from dispatcher.core.records import NOBODY, Dispatched, NumbersUsed


class CopiesInHand(NamedTuple):
    """An incarnation, and the copies that it has."""

    number: int
    consumer: str
    uuid: str
    prefetch: int
    copies: list[Dispatched]


class LeadershipHeader(NamedTuple):
    """Taken from the core at one moment."""

    time_us: int
    writer: str
    lane: str
    lane_epoch: int
    host: str
    former_epoch: int | None  # of the leadership before, as far as Redis knew
    is_paused: bool
    options: dict[str, Any]  # as `options_shown` has them
    parking_queues: tuple[str, ...]
    groups_first: bool  # of a group only one batch, or one message, is out at a time
    consumers: list[CopiesInHand]


def former_epoch(snapshot: Snapshot) -> int | None:
    """Who led before, as far as Redis knows: its checkpoint says which epochs it gave."""
    used = [
        each.highest for each in snapshot.records if type(each) is NumbersUsed and each.incarnation == NOBODY
    ]
    return max(used) >> COUNTER_SHIFT if used else None


def in_hand(lane: Lane) -> list[CopiesInHand]:
    """What every incarnation has, now."""
    return [
        CopiesInHand(
            c.number, c.id, c.uuid, c.prefetch, [copy_of(message, c) for message in c.in_flight.values()]
        )
        for c in lane.state.by_number.values()
    ]


def options_shown(options: LaneOptions) -> dict[str, Any]:
    """The lane's options as a reader needs them: durations in ms, sizes in bytes."""
    shown = asdict(options)
    shown["policy"] = options.policy.name
    shown["grouped"], shown["tops_up"] = options.policy.grouped, options.policy.tops_up
    shown["cost"] = options.cost.value
    shown["inbounds"] = [{"queue": queue, "weight": weight} for queue, weight in options.inbounds]
    del shown["parking_queues"], shown["own_prefix"], shown["known_work"]
    plain: dict[str, Any] = json.loads(json.dumps(shown))
    return plain
