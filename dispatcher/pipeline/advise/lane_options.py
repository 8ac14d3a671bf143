"""The core's options for a simulation: what the ledger tells of the lane, and what the scenario changes."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.core.options import Cost, GroupWindow, LaneOptions, Policy, policy
from dispatcher.pipeline.advise.traffic import Scenario, Traffic

#: As a policy: the lane's own, with group ids that mean nothing (`group_map: none`).
UNGROUPED: Final = "none"
POLICIES: Final = ("exclusive", "sequenced", "concurrent", UNGROUPED)
#: Of what keeps the order of a group.
ORDERED: Final = frozenset({"exclusive", "sequenced"})
#: A duration that no simulation reaches: no consumer is lost there.
_FAR_MS: Final = 1 << 50
#: Options that a simulation takes over from the lane. Others are about messages that are not simple, about
#: consumers that come or go, or about a look-ahead full of blocked messages (`Simulation` lets in the
#: messages behind them, as parking them would).
_SIMULATED: Final = frozenset({
    "ungrouped", "groups_remembered", "known_work", "placement_is_measured", "max_in_flight_per_group",
    "rebalance_pause", "group_idle_timeout_ms", "attempts", "backoff_ms", "look_ahead", "look_ahead_bytes",
    "park_after_ms", "sequences_max",
})  # fmt: skip


def lane_options(traffic: Traffic, scenario: Scenario) -> LaneOptions:
    """What the core is made with."""
    told = traffic.options
    kept: dict[str, Any] = {name: told[name] for name in _SIMULATED if name in told}
    return LaneOptions(
        policy=named_policy(scenario.policy, told),
        inbounds=tuple(zip(traffic.inbounds, scenario.weights, strict=True)),
        buckets=scenario.buckets,
        group_window=_group_window(scenario.policy, told),
        cost=Cost(told.get("cost", Cost.ONE.value)),
        stops_failed=bool(told.get("stops_failed")),
        liveness_interval_ms=_FAR_MS,
        heartbeat_ms=_FAR_MS,
        **kept,
    )


def _group_window(name: str, told: dict[str, Any]) -> GroupWindow | None:
    window = told.get("group_window")  # not in a ledger of a version without windows
    return GroupWindow(*window) if window is not None and name in ORDERED else None


def named_policy(name: str, told: dict[str, Any]) -> Policy:
    """The policy of that name, as this lane has it or would have it."""
    if name == UNGROUPED:
        return policy("exclusive", grouped=False)
    return policy(name, top_up=bool(told.get("tops_up")) and told.get("policy") == name)


def policy_name(told: dict[str, Any]) -> str:
    """What the lane runs with."""
    name = str(told.get("policy", "exclusive"))
    return UNGROUPED if name in ORDERED and told.get("grouped") is False else name
