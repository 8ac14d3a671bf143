"""What a seed means: a lane, its consumers, its messages and its faults.

Each aspect of a seed has random numbers of its own, so an addition to one changes nothing in the others.
To add an option of the lane, add a line to `OPTIONS`; to add a fault, see `dispatcher/sim/faults`; to aim at
the window that a rare bug needs, add a `Theme`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from dispatcher.settings import (
    Chosen,
    DedupSettings,
    ExhaustedAct,
    GroupWindowSettings,
    HistorySettings,
    OverdueAct,
    PauseName,
    PlacementName,
    PolicyName,
    QueueKind,
    RebalanceSettings,
    RetrySettings,
    SequenceCheck,
    StartSettings,
)
from dispatcher.sim.accepted_options import accepted_options
from dispatcher.sim.clusters import on_cluster
from dispatcher.sim.message_plans import (
    HOLDING_LANES,
    draw_count,
    draw_messages,
    with_numbers,
    with_repeated,
    with_swapped,
)
from dispatcher.sim.reading_lanes import with_readers
from dispatcher.sim.scenario import ConsumerPlan, Fault, RunScenario
from dispatcher.sim.themes import (
    THEMES,
    Theme,
    draw_edits,
    draw_faults,
    draw_flags,
    draw_moves,
    draw_operations,
)

#: About how long all messages are worked on, beside the time in which they are published …
LOADS: Final = (0.2, 0.8, 1.2, 2.0)
#: … which is taken for this long at least.
SPAN_MS_MIN: Final = 1_000
WORK_MS_MAX: Final = 300
#: Of a lane that drops repeated messages: no run is longer, whatever the clocks of two dispatchers say
#: (clock_jump sets them up to two hours apart).
WINDOW_MS: Final = 10_800_000
#: The share of runs in which handlers hang, and how many messages make them.
HANGING_RUNS: Final = 0.3
HANGING: Final = (1, 2, 5)
#: The share of runs with faults in which copies get lost on their way to consumers that are there.
LOSING_RUNS: Final = 0.1
#: The share of runs with faults, quorum queues and parking in which a parking queue loses its leader.
LEADERLESS_RUNS: Final = 0.5
#: The share of runs with faults, quorum queues and parking in which parking queues get other leaders.
OTHER_LEADERS_RUNS: Final = 0.5
#: The share of those in which they get them while somebody reads what came back.
MIDWAY_RUNS: Final = 0.4
#: The share of runs with faults, quorum queues and parking in which a parking queue takes back what was read.
TAKEN_BACK_RUNS: Final = 0.4
#: The share of runs with faults in which a quorum queue delivers again what is unacked.
RETURNING_RUNS: Final = 0.3
#: What happens to leaders of parking queues: the aspect of the seed, the fault, in which share of the runs,
#: and how often there.
LEADERS: Final = (
    ("other leaders", "change_leader", OTHER_LEADERS_RUNS, (1, 2, 4)),
    ("leaderless", "lose_leader", LEADERLESS_RUNS, (2, 4, 8)),
    ("other leaders midway", "change_leader_midway", MIDWAY_RUNS, (1, 2, 4)),
    ("taken back", "take_back_parked", TAKEN_BACK_RUNS, (1, 2, 4)),
)
#: The share of lanes that keep incoming messages.
HISTORY_SHARE: Final = 0.1


#: Options of the lane that a seed draws: a field of LaneSettings, and how, given the lane's policy. What such
#: a lane refuses keeps its default.
OPTIONS: Final[dict[str, Callable[[Random, str], Any]]] = {
    "top_up": lambda random, _: random.random() < 0.3,
    "ungrouped": lambda random, _: random.choices(("balance", "reject", "group:common"), (8, 1, 1))[0],
    "look_ahead": lambda random, _: random.choice((3, 10, 50, 10_000, 10_000)),
    "look_ahead_bytes": lambda random, _: random.choice((256 << 20, 256 << 20, 100_000, 20_000)),
    "reconnect_grace_ms": lambda random, _: random.choice((0, 0, 200, 2_000)),
    "liveness_interval_ms": lambda random, _: random.choice((500, 1_000)),
    "group_idle_timeout_ms": lambda random, _: random.choice((None, None, 100, 1_000)),
    "max_in_flight_per_group": lambda random, policy: (
        random.choice((None, 1, 3)) if policy == "concurrent" else random.choice((None,) * 8 + (1, 3))
    ),
    "group_window": lambda random, _: random.choice((
        GroupWindowSettings(), GroupWindowSettings(), GroupWindowSettings(initial=1, max=5),
        GroupWindowSettings(initial=10_000),
    )),
    "steal_after_ms": lambda random, _: random.choice((None, 1_000, 1_000, 100, 100)),
    "placement": lambda random, _: random.choice(tuple(PlacementName)),
    "cost": lambda random, _: Chosen(random.choice(("1", "1", "1", "bytes", "measured"))),
    "rebalance": lambda random, policy: RebalanceSettings(
        on_join=policy == "exclusive" and random.random() < 0.2,
        pause=random.choice((PauseName.GROUP, PauseName.GROUP, PauseName.LANE)),
    ),
    "start": lambda random, _: random.choice((StartSettings(),) * 3 + (StartSettings(consumers=3),)),
    "ack_timeout_ms": lambda random, _: random.choice((None, None, 1_000, 2_000)),
    "on_ack_timeout": lambda random, _: random.choice(tuple(OverdueAct)),
    "strict_identity": lambda random, _: random.random() < 0.2,
    "retry": lambda random, policy: RetrySettings(
        attempts=random.choice((1, 2, 3, 3, 3)),
        on_exhausted=(
            ExhaustedAct.STOP if policy != "concurrent" and random.random() < 0.25 else ExhaustedAct.SKIP
        ),
    ),
    "history": lambda random, _: (
        HistorySettings(max_age=WINDOW_MS) if random.random() < HISTORY_SHARE else None
    ),
    "queue_type": lambda random, _: random.choice((QueueKind.AUTO, *QueueKind)),
    "heartbeat_ms": lambda random, _: random.choice((300, 1_000, 2_000, 2_000)),
}  # fmt: skip


def make_scenario(seed: int, messages: int | None = None, *, cluster: bool = False) -> RunScenario:
    """The scenario of a seed; `messages` overrides how many there are. `cluster`: on several nodes."""
    if cluster:
        return on_cluster(Random(f"{seed} cluster"), draw_scenario(seed, messages))
    scenario = _with_hanging(Random(f"{seed} hanging"), draw_scenario(seed, messages))
    scenario = _with_lost_copies(Random(f"{seed} losing copies"), scenario)
    scenario = _with_returns(Random(f"{seed} delivering again"), scenario)
    for aspect, kind, share, counts in LEADERS:
        scenario = _with_leaders(Random(f"{seed} {aspect}"), scenario, kind, share, counts)
    return scenario


def _with_leaders(
    random: Random, scenario: RunScenario, kind: str, share: float, counts: tuple[int, ...]
) -> RunScenario:
    """In some runs quorum queues in which messages are parked have other leaders, or none for a while, or
    leaders that lose sight of others."""
    has_quorum = any(quorum for _, _, quorum in scenario.inbounds)
    may_strike = has_quorum and scenario.parking_queues and scenario.faults
    if not may_strike or random.random() >= share:
        return scenario
    until_ms = 1 + max(fault.at_ms for fault in scenario.faults)
    struck = tuple(
        Fault(random.randrange(until_ms), kind, random.randrange(60), random.randrange(10_000), False)
        for _ in range(random.choice(counts))
    )
    return replace(scenario, faults=tuple(sorted(scenario.faults + struck)))


def _with_returns(random: Random, scenario: RunScenario) -> RunScenario:
    """In some runs quorum queues deliver again what is unacked, on channels that stay open."""
    has_quorum = any(quorum for _, _, quorum in scenario.inbounds)
    has_quorum |= scenario.options["queue_type"] is QueueKind.QUORUM
    if random.random() >= RETURNING_RUNS or not has_quorum or not scenario.faults:
        return scenario
    until_ms = 1 + max(fault.at_ms for fault in scenario.faults)
    returns = tuple(
        Fault(random.randrange(until_ms), "deliver_again", random.randrange(60), 0, random.random() < 0.7)
        for _ in range(random.choice((1, 2, 4)))
    )
    return replace(scenario, faults=tuple(sorted(scenario.faults + returns)))


def _with_lost_copies(random: Random, scenario: RunScenario) -> RunScenario:
    """In some runs copies get lost on their way to consumers."""
    if random.random() >= LOSING_RUNS or scenario.hands_over or not scenario.faults:
        return scenario
    until_ms = 1 + max(fault.at_ms for fault in scenario.faults)
    lost = tuple(
        Fault(random.randrange(until_ms), "lose_copy", random.randrange(60), random.randrange(10_000))
        for _ in range(random.choice((1, 2, 4)))
    )
    return replace(scenario, faults=tuple(sorted(scenario.faults + lost)))


def _with_hanging(random: Random, scenario: RunScenario) -> RunScenario:
    """In some runs the handlers of a few messages hang for a while. In half of these runs consumers may take
    each other's groups over then."""
    if random.random() >= HANGING_RUNS or scenario.hands_over:
        return scenario
    plans = scenario.messages
    hanging = set(random.sample(range(len(plans)), min(len(plans), random.choice(HANGING))))
    messages = tuple(
        plan._replace(hangs=index in hanging and not (plan.kills or plan.twin_of or plan.repeats))
        for index, plan in enumerate(plans)
    )
    often = {"steal_after_ms": 100}
    policy, group_map = PolicyName(scenario.policy), scenario.group_maps[0]
    is_refused = accepted_options(often, policy=policy, group_map=group_map) != often
    if is_refused or scenario.options["steal_after_ms"] is None or random.random() < 0.5:
        return replace(scenario, messages=messages)
    return replace(
        scenario, messages=messages, options={**scenario.options, **often},
        consumers=tuple(replace(plan, prefetch=random.choice((1, 2, 3))) for plan in scenario.consumers),
    )  # fmt: skip


def draw_scenario(seed: int, messages: int | None = None) -> RunScenario:
    """The scenario of a seed, but for handlers that hang."""
    return with_readers(Random(f"{seed} hand over"), _draw_lane(seed, messages))


def _draw_lane(seed: int, messages: int | None) -> RunScenario:
    def chance(aspect: str) -> Random:
        return Random(f"{seed} {aspect}")

    random = chance("lane")
    theme = random.choices(THEMES, [theme.often for theme in THEMES])[0]
    policy = random.choices(("exclusive", "sequenced", "concurrent"), (5, 4, 1))[0]
    inbounds = tuple(
        (f"in{index}", random.choice((1, 1, 2, 3, 5)), random.random() < 0.35)
        for index in range(random.choices((1, 2, 3), (5, 4, 1))[0])
    )
    options = {name: draw(chance(name), policy) for name, draw in OPTIONS.items()}
    group_maps = _group_maps(chance("group maps"), policy)
    options |= theme.draw_options(chance("theme"))
    parking = chance("parking")
    parking_queues = parking.choice(theme.parking_queues)
    if parking_queues:
        options["look_ahead"] = parking.choice((3, 10, 20, 50, 10_000))
    options["park_after_ms"] = parking.choice((100, 1_000, 600_000, 600_000))
    count = messages or draw_count(chance("count"))
    span_ms, groups = random.choice((0, 1_000, 3_000, 6_000)), random.choice((1, 3, 10, 40))
    busy_ms = max(SPAN_MS_MIN, span_ms) * random.choice(LOADS)
    consumers = _consumers(chance("consumers"), theme, busy_ms / count, groups)
    plans = draw_messages(chance, count, len(inbounds), groups, span_ms, theme)
    repeated = with_repeated(chance("dedup"), plans)
    if repeated is not None:
        plans, options["dedup"] = repeated, DedupSettings(window=WINDOW_MS)
    numbered = with_numbers(chance("sequence"), plans)
    if numbered is not None:
        plans, options["sequence_check"] = numbered, SequenceCheck.REPORT
        holding = chance("holding")
        if policy != "concurrent" and group_maps != (Chosen("none"),) and holding.random() < HOLDING_LANES:
            plans, options["sequence_check"] = with_swapped(holding, numbered), SequenceCheck.HOLD
            options["sequence_timeout_ms"] = holding.choice((100, 500, 1_000))
    if any(plan.kills for plan in plans):
        # A window full of its group lets in nothing that could be settled.
        options |= {"look_ahead": 10_000, "look_ahead_bytes": 256 << 20}
        group_maps = tuple(Chosen("exact") if _are_few(map_) else map_ for map_ in group_maps)
    work_ms = max(span_ms, int(busy_ms))
    faults = draw_faults(chance("faults"), theme, work_ms)
    if faults:
        faults += draw_flags(chance("flags"), work_ms) + draw_operations(chance("operations"), work_ms)
        faults += draw_edits(chance("edited file"), work_ms) + draw_moves(chance("moves"), work_ms)
        faults = tuple(sorted(faults))
    for group_map in group_maps:
        options = accepted_options(options, policy=PolicyName(policy), group_map=group_map)
    return RunScenario(
        seed=seed, theme=theme.name, policy=policy, inbounds=inbounds, options=options, group_maps=group_maps,
        records_per_checkpoint=random.choice((30, 200, 100_000)),
        parking_queues=parking_queues,
        redis_ms=tuple(random.choice(theme.redis_ms) for _ in range(random.choice(theme.dispatchers))),
        consumers=consumers, messages=plans,
        faults=faults,
    )  # fmt: skip


def _group_maps(random: Random, policy: str) -> tuple[Chosen, ...]:
    """Mostly one. With two of them dispatchers take over from others that mapped otherwise."""
    maps = [Chosen("exact"), *(Chosen("buckets", count) for count in (1, 3, 16))]
    if policy == "exclusive":
        maps += [Chosen("lru", count) for count in (1, 5)]
    if policy == "concurrent" or random.random() < 0.7:
        return (maps[0],)
    return random.choice(((Chosen("none"),), (random.choice(maps),), tuple(random.sample(maps, 2))))


def _are_few(group_map: Chosen) -> bool:
    """Messages that kill their consumers may stand in front of all groups."""
    return group_map.name == "buckets" and group_map.value < 16


def _consumers(random: Random, theme: Theme, each_ms: float, groups: int) -> tuple[ConsumerPlan, ...]:
    """Consumers that together need about `each_ms` for a message, if none of them waits for another."""
    plans: list[ConsumerPlan] = []
    for index in range(random.randint(1, 5)):
        consumer_id = f"c{index}"
        if index and random.random() < theme.same_id:
            consumer_id = plans[-1].consumer_id  # another process with the same id
        plans.append(
            ConsumerPlan(
                name=f"c{index}", consumer_id=consumer_id, prefetch=random.choice((1, 2, 5, 10, 50)),
                concurrency=random.choice((1, 2, 10)), work_ms=0,
                starts_at_ms=random.choice((0, 0, 100, 1_500)),
            )
        )  # fmt: skip
    at_a_time = min(groups, sum(min(plan.concurrency, plan.prefetch) for plan in plans))
    return tuple(
        replace(plan, work_ms=min(WORK_MS_MAX, int(each_ms * at_a_time * random.choice((0.3, 1, 1, 2)))))
        for plan in plans
    )
