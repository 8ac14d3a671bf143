"""Hand-over lanes: in some of the seeds, with applications that only read a queue and ack."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from dispatcher.settings import Chosen, PolicyName, SequenceCheck
from dispatcher.sim.accepted_options import accepted_options
from dispatcher.sim.scenario import Fault, RunScenario

#: The share of seeds whose lane hands over.
SHARE: Final = 0.06
#: Where a broker is killed or refuses a copy, or Redis forgets, X-7 promises no order. Nothing may be lost.
WITHOUT_ORDER: Final = frozenset({
    "kill_broker", "kill_node", "nack", "redis_loses_last", "redis_loses_all", "wipe",
})  # fmt: skip
#: Faults that strike here: all but those of consumers that speak, and what operators do with groups.
_FAULTS: Final = frozenset({
    "kill_consumer", "cut_consumer", "cut_all_consumers", "freeze_consumer", "slow_consumer",
    "leave_consumer", "kill_leader", "kill_dispatcher", "kill_host", "cut_leader", "freeze_leader",
    "late_commits", "late_event", "clock_jump", "kill_at_publish", "cut_at_publish", "kill_before_commit",
    "kill_after_commit", "cut_redis_before_commit", "cut_redis_after_commit", "slow_redis", "slow_link",
    "pause_group", "pause_lane", "restart_redis", "alarm", "reload", "repeat_control", "purge_group",
    "move_group", "reroute_group", "refuse_target", "delete_target", *WITHOUT_ORDER,
})  # fmt: skip
#: What operators do with waiting messages; in half of these seeds more often than in the others.
_OPERATIONS: Final = ("purge_group", "purge_group", "move_group", "reroute_group")
_WITH_OPERATIONS: Final = 0.5
#: Faults in place of drawn ones that such a lane can't have: most of all, readers come and go.
_INSTEAD: Final = ("kill_consumer", "cut_consumer", "kill_consumer", "kill_leader", "kill_at_publish")


def with_readers(random: Random, scenario: RunScenario) -> RunScenario:
    """The same lane with applications for consumers, if this seed is one of those."""
    if random.random() >= SHARE:
        return scenario
    policy = "concurrent" if scenario.policy == "concurrent" else "exclusive"
    group_map = Chosen("exact")
    options = {**scenario.options, "dedup": None, "sequence_check": SequenceCheck.OFF}  # see `messages`
    options = accepted_options(options, policy=PolicyName(policy), group_map=group_map, handover=True)
    messages = tuple(
        plan._replace(kills=False, refused="", expires_ms=0)
        for plan in scenario.messages
        if not (plan.repeats or plan.twin_of)
    )
    consumers = tuple(replace(plan, consumer_id=plan.name) for plan in scenario.consumers)
    if len(consumers) == 1:
        consumers += (replace(consumers[0], name="c1", consumer_id="c1"),)
    faults = tuple(
        fault if fault.kind in _FAULTS else fault._replace(kind=random.choice(_INSTEAD))
        for fault in scenario.faults
    )
    if random.random() < _WITH_OPERATIONS and scenario.faults:
        faults = tuple(sorted(faults + _operations(random, scenario.faults)))
    return replace(
        scenario, policy=policy, options=options, group_maps=(group_map,), messages=messages,
        consumers=consumers, faults=faults, hands_over=True,
    )  # fmt: skip


def _operations(random: Random, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Some of them, in the time in which everything else goes wrong."""
    last_ms, drawn = max(1_000, *(fault.at_ms for fault in faults)), random.randrange
    return tuple(
        Fault(drawn(last_ms), random.choice(_OPERATIONS), drawn(60), drawn(10_000), patient=True)
        for _ in range(random.choice((1, 2, 4)))
    )
