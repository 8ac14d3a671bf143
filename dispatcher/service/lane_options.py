"""What the core needs to know of a lane's settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import structlog

from dispatcher.core.options import (
    Cost,
    DedupOptions,
    ForwardingConsumer,
    GroupWindow,
    KnownWork,
    LaneOptions,
    policy,
)
from dispatcher.settings import (
    ExhaustedAct,
    LaneSettings,
    OverdueAct,
    PlacementName,
    PolicyName,
    SequenceCheck,
    WorkFile,
)
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: What the core needs to know of the key `cost`; its other values are read from each message.
_COSTS: Final = {"1": Cost.ONE, "measured": Cost.MEASURED}
#: Options that a lane has as a key, by the same name.
_AS_THEY_ARE: Final = {option.name for option in fields(LaneOptions)} & LaneSettings.model_fields.keys()


def lane_options(lane: LaneSettings, prefix: str, parking_queues: tuple[str, ...]) -> LaneOptions:
    """The options of a lane whose parking queues have these names.

    An option that has the name of a key, and its unit, is taken from that key. Only what means something else
    to the core stands here.
    """
    names = LaneNames(lane.name, prefix)
    converted: dict[str, Any] = {
        "policy": policy(lane.policy, top_up=lane.top_up, grouped=lane.group_map.name != "none"),
        "inbounds": tuple((inbound.queue, inbound.weight) for inbound in lane.inbound),
        "groups_remembered": lane.group_map.value if lane.group_map.name == "lru" else None,
        "buckets": lane.group_map.value if lane.group_map.name == "buckets" else None,
        "start_consumers": lane.start.consumers,
        "start_wait_ms": lane.start.wait_ms,
        "cost": _COSTS.get(lane.cost.name, Cost.SAID),
        "known_work": _known_work(lane),
        "placement_is_measured": lane.placement is PlacementName.MEASURED,
        "rebalance_on_join": lane.rebalance.on_join,
        "rebalance_pause": lane.rebalance.pause.value,
        "group_window": _group_window(lane),
        "max_in_flight_per_group": lane.max_in_flight_per_group
        if lane.policy is PolicyName.CONCURRENT
        else None,
        "attempts": lane.retry.attempts,
        "stops_failed": lane.retry.on_exhausted is ExhaustedAct.STOP,
        "backoff_ms": lane.retry.backoff_ms,
        "evicts_overdue": lane.on_ack_timeout is OverdueAct.EVICT,
        "dedup": None if lane.dedup is None else DedupOptions(lane.dedup.window_ms, lane.dedup.max_ids),
        "checks_sequence": lane.sequence_check is not SequenceCheck.OFF,
        "sequence_timeout_ms": lane.sequence_timeout_ms
        if lane.sequence_check is SequenceCheck.HOLD
        else None,
        "own_prefix": f"{prefix}.",
        "parking_queues": parking_queues,
        "handover": tuple(ForwardingConsumer(c.id, names.consumer(c.id), c.prefetch) for c in lane.consumers),
        "handover_prefix": names.consumer(""),
    }
    return LaneOptions(**{name: getattr(lane, name) for name in _AS_THEY_ARE - converted.keys()}, **converted)


def _group_window(lane: LaneSettings) -> GroupWindow | None:
    """None: messages are not bound to groups, or a group's messages go one at a time, or the dispatcher does
    not learn of settles."""
    is_grouped = lane.policy is not PolicyName.CONCURRENT and lane.group_map.name != "none"
    if not is_grouped or lane.handover or lane.retry.on_exhausted is ExhaustedAct.STOP:
        return None
    fixed = lane.max_in_flight_per_group
    if fixed is not None:
        return GroupWindow(fixed, fixed)
    initial, most = lane.group_window.initial, lane.group_window.max
    return GroupWindow(initial if most is None else min(initial, most), most)


def _known_work(lane: LaneSettings) -> tuple[KnownWork, ...]:
    """What the file of `cost: {measured: FILE}` says of this lane's inbound queues."""
    file = lane.cost.value
    if not isinstance(file, WorkFile):
        return ()
    places = {inbound.queue: index for index, inbound in enumerate(lane.inbound)}
    known = tuple(
        KnownWork(places[each.inbound], each.kind, each.mean_us / 1_000, each.messages)
        for each in file.lanes.get(lane.name, ())
        if each.inbound in places
    )
    log.info("cost_model_used", lane=lane.name, file=str(file), kinds=len(known))
    return known
