"""Keys of a lane that don't go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dispatcher.settings_parts import (
    ExhaustedAct,
    OverdueAct,
    PlacementName,
    PolicyName,
    SequenceCheck,
)

if TYPE_CHECKING:
    from dispatcher.settings import LaneDefaults


class Conflict(NamedTuple):
    """Keys that don't go together."""

    keys: tuple[str, ...]  # the first is the one to change
    text: str


def lane_conflicts(lane: LaneDefaults) -> list[Conflict]:
    """What the keys of a lane say against each other."""
    found = _of_group_map(lane)
    if lane.top_up and lane.policy is not PolicyName.SEQUENCED:
        found.append(Conflict(("top_up", "policy"), "only works with policy: sequenced"))
    if lane.rebalance.on_join and lane.policy is not PolicyName.EXCLUSIVE:
        found.append(Conflict(("rebalance", "policy"), "on_join only works with policy: exclusive"))
    if lane.group_idle_timeout_ms is not None and lane.policy is not PolicyName.EXCLUSIVE:
        found.append(Conflict(("group_idle_timeout", "policy"), "only works with policy: exclusive"))
    if lane.on_ack_timeout is OverdueAct.EVICT and lane.ack_timeout_ms is None:
        found.append(Conflict(("on_ack_timeout", "ack_timeout"), "evict needs an ack_timeout"))
    found += _of_concurrent(lane)
    found += _of_handover(lane)
    if lane.sequence_check is not SequenceCheck.OFF and lane.sequence_header is None:
        found.append(Conflict(("sequence_check", "sequence_header"), "needs a sequence_header"))
    if lane.sequence_check is SequenceCheck.HOLD and lane.policy is PolicyName.CONCURRENT:
        found.append(Conflict(("sequence_check", "policy"), "hold needs a policy that has groups"))
    if lane.sequence_header is not None and lane.sequence_header in lane.group_header:
        found.append(Conflict(("sequence_header", "group_header"), "is a group header too"))
    if lane.first_header is not None and lane.first_header in (*lane.group_header, lane.sequence_header):
        keys = ("first_header", "group_header", "sequence_header")
        found.append(Conflict(keys, "is read as group or sequence header too"))
    return found


def _of_concurrent(lane: LaneDefaults) -> list[Conflict]:
    found = []
    if lane.policy is not PolicyName.CONCURRENT:
        if lane.max_in_flight_per_group is not None:
            text = "only works with policy: concurrent; with the others a group has one consumer"
            found.append(Conflict(("max_in_flight_per_group", "policy"), text))
        return found
    if lane.first_header is not None:
        found.append(
            Conflict(("first_header", "policy"), "policy concurrent has no groups, so nothing is first")
        )
    if lane.ungrouped != "balance":
        found.append(
            Conflict(("ungrouped", "policy"), "policy concurrent treats all messages alike: balance")
        )
    if lane.retry.on_exhausted is ExhaustedAct.PARK:
        found.append(Conflict(("retry", "policy"), "on_exhausted: park needs a policy that has groups"))
    return found


def _of_group_map(lane: LaneDefaults) -> list[Conflict]:
    kind = lane.group_map.name
    found = []
    if kind == "lru" and lane.policy is not PolicyName.EXCLUSIVE:
        text = "lru only works with policy: exclusive; the others forget empty groups anyway"
        found.append(Conflict(("group_map", "policy"), text))
    if kind == "buckets" and lane.policy is PolicyName.CONCURRENT:
        found.append(Conflict(("group_map", "policy"), "policy concurrent has no groups to put in buckets"))
    if kind == "none":
        if lane.retry.on_exhausted is ExhaustedAct.PARK:
            found.append(Conflict(("retry", "group_map"), "group_map none has no groups to park"))
        if lane.sequence_check is SequenceCheck.HOLD:
            text = "group_map none has no groups to hold; report works"
            found.append(Conflict(("sequence_check", "group_map"), text))
        if lane.rebalance.on_join:
            found.append(Conflict(("rebalance", "group_map"), "group_map none has no groups to move"))
        for key in ("first_header", "group_idle_timeout_ms", "max_in_flight_per_group"):
            if getattr(lane, key) is not None:
                name = key.removesuffix("_ms")
                found.append(Conflict((name, "group_map"), "group_map none has no groups"))
        if lane.ungrouped != "balance":
            text = "group_map none treats all messages alike: balance"
            found.append(Conflict(("ungrouped", "group_map"), text))
    return found


def _of_handover(lane: LaneDefaults) -> list[Conflict]:
    """The dispatcher hears nothing of what these consumers do: whatever needs to know it can't work."""
    if not lane.handover:
        return [Conflict(("consumers", "handover"), "needs handover: true")] if lane.consumers else []
    found = []
    if lane.policy is PolicyName.SEQUENCED:
        text = "sequenced needs to know when a batch is settled, and with handover nobody says so"
        found.append(Conflict(("policy", "handover"), text))
    if not lane.consumers:
        found.append(Conflict(("handover", "consumers"), "needs consumers: who reads, by id and prefetch"))
    ids = [consumer.id for consumer in lane.consumers]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        found.append(Conflict(("consumers", "handover"), f"names {', '.join(repeated)} twice"))
    found += [Conflict((key, "handover"), text) for key, text in _unknowable(lane)]
    return found


def _unknowable(lane: LaneDefaults) -> list[tuple[str, str]]:
    """Keys that ask for what a lane with handover can't know or do, and why."""
    stays = "with handover a group moves only when its consumer is gone"
    unheard = "with handover nobody says when a message is settled"
    checks = (
        ("rebalance", lane.rebalance.on_join, f"on_join: {stays}"),
        ("group_idle_timeout", lane.group_idle_timeout_ms is not None, stays),
        ("group_map", lane.group_map.name in ("lru", "buckets"), f"{lane.group_map.name}: {stays}"),
        ("ack_timeout", lane.ack_timeout_ms is not None, unheard),
        ("max_in_flight_per_group", lane.max_in_flight_per_group is not None, unheard),
        ("placement", lane.placement is PlacementName.MEASURED, f"measured: {unheard}"),
        ("cost", lane.cost.name == "measured", f"measured: {unheard}"),
        ("retry", "retry" in lane.model_fields_set, "with handover a rejected message is not tried again"),
        ("heartbeat", "heartbeat_ms" in lane.model_fields_set, "with handover no consumer sends heartbeats"),
    )
    return [(key, text) for key, is_asked, text in checks if is_asked]
