"""Which consumer of an exclusive lane should own which group, from what a finished report measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.assignment import UNOWNED, Task, assign, forced, lower_bound
from dispatcher.pipeline.owners import Holder, LastOwner, Owner, owned, unit_of
from dispatcher.pipeline.plan_file import PlanFile, PlannedMove
from dispatcher.pipeline.ranges import Ranges
from dispatcher.pipeline.work import KIND, with_work, worked

#: Of a consumer that has settled less nothing is known of its speed.
_MESSAGES_MIN: Final = 20
#: A consumer counts as at most this many times as fast as the average one, or as slow.
_SPEED_MAX: Final = 10.0
POLICY: Final = "exclusive"


class Wishes(NamedTuple):
    """What the user asks for. `consumers`: those that get the groups, None: those that are there at the end
    of the ledger; `tolerance`: a share of the makespan that is not worth a move."""

    consumers: Sequence[str] | None = None
    moves_max: int | None = None
    tolerance: float = 0.05
    equal_speeds: bool = False


class Cell(NamedTuple):
    """What one consumer did of one group (None: messages without one): how long it was busy with it, how long
    the same messages take on average, in µs, and how many they were."""

    group: str | None
    consumer: str
    work_us: float
    expected_us: float
    messages: int


class PlannedLane(NamedTuple):
    """The facts about the lane: its latest options (`policy` None: the ledger does not have them any more),
    and the incarnations that are there at the end, or are gone."""

    name: str
    policy: str | None
    buckets: int | None
    hands_over: bool
    is_present: dict[str, bool]
    consumers: dict[str, str]  # ids by incarnation

    def has(self, owner: Owner) -> bool:
        """Whether it can still own what it got. Nothing tells of an incarnation that is older than the
        ledger, and lives."""
        if owner.consumer is None or owner.incarnation is None:
            return False
        return self.is_present.get(owner.incarnation, self.policy is None)


class Unit(NamedTuple):
    """A group, or in a lane with buckets a bucket; `cost_us`: of a consumer of speed 1. `pin`: the consumer
    that an operator has pinned it to: it stays where it is."""

    name: str
    owner: str | None
    cost_us: float
    messages: int
    pin: str | None = None

    def leaves_for(self, target: str) -> bool:
        """Whether it gets another owner, or its first one."""
        return self.pin is None and self.owner != target


class Planned(NamedTuple):
    """The result; `shares`: one row for each consumer."""

    units: list[Unit]
    targets: list[str]
    shares: list[dict[str, Any]]
    makespan_us: dict[str, float]
    bound_by: str
    moves: int
    given: int  # groups without an owner that get one
    pinned: int  # groups that stay where they are
    speeds: dict[str, float]


# -- from the report --


def measured_cells(hand_overs: DataFrame, ranges: Ranges) -> DataFrame:
    """Rows for `Cell`, of one lane."""
    kind = Window.partitionBy(*KIND)
    by_kind = (
        with_work(worked(hand_overs, ranges))
        .groupBy("group", "consumer", *KIND)
        .agg(F.sum("work_us").alias("work_us"), F.count("*").alias("messages"))
        .withColumn("mean_us", F.sum("work_us").over(kind) / F.sum("messages").over(kind))
    )
    return by_kind.groupBy("group", "consumer").agg(
        F.sum("work_us").alias("work_us"), F.sum(F.col("mean_us") * F.col("messages")).alias("expected_us"),
        F.sum("messages").alias("messages"),
    )  # fmt: skip


def read_lane(
    name: str, options: list[dict[str, Any]], incarnations: list[dict[str, Any]], until: datetime | None
) -> PlannedLane:
    """What its rows of the report's tables say of the lane, as of its window's end (None: the ledger's)."""
    latest = max(options, key=lambda row: (row["turn"], row["since"]), default=None)
    told = json.loads(latest["options"]) if latest is not None else {}

    def is_before(time: datetime | None) -> bool:
        return time is None or until is None or time < until

    known = [row for row in incarnations if row["consumer"] is not None and is_before(row["joined_at"])]
    return PlannedLane(
        name, told.get("policy"), told.get("buckets"), bool(told.get("handover")),
        {row["incarnation"]: row["ended_at"] is None or not is_before(row["ended_at"]) for row in known},
        {row["incarnation"]: row["consumer"] for row in known},
    )  # fmt: skip


# -- the plan --


def plan(
    lane: PlannedLane, cells: list[Cell], holders: list[Holder], told: list[LastOwner], wishes: Wishes
) -> Planned:  # fmt: skip
    """Raises ConfigurationError, naming what can't be planned and why."""
    check_policy(lane)
    if not holders:
        raise ConfigurationError(f"lane {lane.name}: the report has no hand-overs of groups")
    owners = owned(holders, told, lane.buckets)
    if not owners:
        raise ConfigurationError(f"lane {lane.name}: all groups of the report were closed")
    known = {*lane.consumers.values(), *(cell.consumer for cell in cells), *(h.consumer for h in holders)}
    consumers = _chosen(lane, known, owners.values(), wishes.consumers)
    speeds = _speeds(cells, consumers, equal=wishes.equal_speeds)
    pins = {each.group: each.pinned_to for each in told if each.pinned_to is not None}
    units = _units(lane, cells, owners, speeds, pins)
    free = [unit for unit in units if unit.pin is None]
    task = _task(units, consumers, speeds)
    if wishes.moves_max is not None and (least := forced(task)) > wishes.moves_max:
        raise ConfigurationError(
            f"lane {lane.name}: {least:,} groups belong to consumers that take no part and must move: "
            f"--max-moves {wishes.moves_max} is too few"
        )
    found = assign(task, tolerance=wishes.tolerance, moves_max=wishes.moves_max)
    places = iter(found.targets)
    targets = [consumers[next(places)] if unit.pin is None else unit.owner or unit.pin for unit in units]
    shares = _shares(units, targets, speeds, consumers)
    makespans = {
        "now": max(share["now_us"] for share in shares), "planned": found.makespan,
        "lower_bound": lower_bound(task),
    }  # fmt: skip
    given, pinned = sum(unit.owner is None for unit in free), len(units) - len(free)
    return Planned(
        units, targets, shares, makespans, _bound_by(task, free, consumers), found.moves, given, pinned,
        speeds,
    )  # fmt: skip


def _task(units: list[Unit], consumers: list[str], speeds: dict[str, float]) -> Task:
    """The task without pinned units: these stay with their consumers, and count as their fixed load."""
    places = {consumer: place for place, consumer in enumerate(consumers)}
    fixed, free = [0.0] * len(consumers), []
    for unit in units:
        if unit.pin is None:
            free.append(unit)
        elif (place := places.get(unit.owner or unit.pin)) is not None:
            fixed[place] += unit.cost_us
    return Task(
        [unit.cost_us for unit in free],
        [places.get(unit.owner, UNOWNED) if unit.owner is not None else UNOWNED for unit in free],
        [unit.owner is not None for unit in free], [speeds[consumer] for consumer in consumers], fixed,
    )  # fmt: skip


def _bound_by(task: Task, free: list[Unit], consumers: list[str]) -> str:
    """What the lower bound is."""
    bound = lower_bound(task)
    largest = max(free, key=lambda unit: unit.cost_us, default=None)
    if largest is not None and largest.cost_us / max(task.speeds) >= bound:
        return f"group {largest.name} alone"
    for consumer, load, speed in zip(consumers, task.fixed_loads(), task.speeds, strict=True):
        if load and load / speed >= bound:
            return f"the groups pinned to {consumer}"
    return "all of it shared out evenly"


def check_policy(lane: PlannedLane) -> None:
    """Raises ConfigurationError for a lane whose groups have no lasting owners, or don't move."""
    if lane.policy not in (None, POLICY):
        raise ConfigurationError(
            f"lane {lane.name}: is {lane.policy}: only groups of an {POLICY} lane have lasting owners that "
            "can be planned"
        )
    if lane.hands_over:
        raise ConfigurationError(f"lane {lane.name}: hands over (`handover: true`): nothing moves its groups")


def _chosen(
    lane: PlannedLane, known: set[str], owners: Iterable[Owner], wished: Sequence[str] | None
) -> list[str]:  # fmt: skip
    if wished is not None:
        if strange := sorted(set(wished) - known):
            raise ConfigurationError(
                f"--consumer {strange[0]}: lane {lane.name} has no such consumer in this report (it has "
                f"{', '.join(sorted(known)[:20])})"
            )
        return sorted(set(wished))
    there = {lane.consumers[uuid] for uuid, is_present in lane.is_present.items() if is_present}
    there |= {owner.consumer for owner in owners if owner.consumer is not None and lane.has(owner)}
    if not there:
        raise ConfigurationError(
            f"lane {lane.name}: no consumer is there at the end of the ledger: name the consumers "
            "for the groups with --consumer"
        )
    return sorted(there)


def _speeds(cells: list[Cell], consumers: Iterable[str], *, equal: bool) -> dict[str, float]:
    """How much a consumer does of what the average one does in the same time."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for cell in cells:
        for place, value in enumerate((cell.expected_us, cell.work_us, cell.messages)):
            sums[cell.consumer][place] += value
    speeds = dict.fromkeys((*sums, *consumers), 1.0)
    for consumer, (expected, work, messages) in sums.items():
        if not equal and messages >= _MESSAGES_MIN and work > 0:
            speeds[consumer] = min(_SPEED_MAX, max(1 / _SPEED_MAX, expected / work))
    return speeds


def _units(
    lane: PlannedLane, cells: list[Cell], owners: dict[str, Owner], speeds: dict[str, float],
    pins: dict[str, str],
) -> list[Unit]:  # fmt: skip
    costs: dict[str, float] = defaultdict(float)
    messages: dict[str, int] = defaultdict(int)
    for cell in cells:
        if cell.group is not None:
            unit = unit_of(cell.group, lane.buckets)
            costs[unit] += cell.work_us * speeds[cell.consumer]
            messages[unit] += cell.messages
    return [
        Unit(unit, owner.consumer if lane.has(owner) else None, costs[unit], messages[unit], pins.get(unit))
        for unit, owner in sorted(owners.items())
    ]


def _shares(
    units: list[Unit], targets: list[str], speeds: dict[str, float], consumers: list[str]
) -> list[dict[str, Any]]:
    """Also of consumers that take no part and own something."""
    owners = {unit.owner for unit in units if unit.owner is not None}
    shares: dict[str, dict[str, Any]] = {
        name: {"consumer": name, "speed": speeds[name], "now_us": 0.0, "planned_us": 0.0, "groups_now": 0,
               "groups_planned": 0}
        for name in sorted(owners | {*consumers, *targets})
    }  # fmt: skip
    for unit, target in zip(units, targets, strict=True):
        if unit.owner is not None:
            shares[unit.owner]["now_us"] += unit.cost_us / speeds[unit.owner]
            shares[unit.owner]["groups_now"] += 1
        shares[target]["planned_us"] += unit.cost_us / speeds[target]
        shares[target]["groups_planned"] += 1
    return list(shares.values())


# -- output --


def plan_table(spark: SparkSession, lane: str, planned: Planned) -> DataFrame:
    """One row for each group. `now_us`, `planned_us`: how long it keeps its consumer busy, and its next one;
    `cost_us`: the same of a consumer of speed 1."""
    rows = list(zip(planned.units, planned.targets, strict=True))

    def busy_us(unit: Unit, consumer: str | None) -> int | None:
        return None if consumer is None else round(unit.cost_us / planned.speeds[consumer])

    return spark.createDataFrame(pa.table({
        "lane": pa.array([lane] * len(rows), pa.string()),
        "group": pa.array([unit.name for unit, _ in rows], pa.string()),
        "from_consumer": pa.array([unit.owner for unit, _ in rows], pa.string()),
        "to_consumer": pa.array([target for _, target in rows], pa.string()),
        "cost_us": pa.array([round(unit.cost_us) for unit, _ in rows], pa.int64()),
        "now_us": pa.array([busy_us(unit, unit.owner) for unit, _ in rows], pa.int64()),
        "planned_us": pa.array([busy_us(unit, target) for unit, target in rows], pa.int64()),
        "messages": pa.array([unit.messages for unit, _ in rows], pa.int64()),
        "moves": pa.array([unit.leaves_for(target) for unit, target in rows], pa.bool_()),
    }))  # fmt: skip


def plan_file(lane: PlannedLane, planned: Planned, until: datetime) -> PlanFile:
    """The moves to apply, the costliest groups first."""
    rows = zip(planned.units, planned.targets, strict=True)
    moves = sorted((pair for pair in rows if pair[0].leaves_for(pair[1])), key=lambda pair: -pair[0].cost_us)
    return PlanFile(
        lane.name, lane.buckets, until,
        [PlannedMove(unit.name, unit.owner, target) for unit, target in moves],
    )  # fmt: skip


def as_facts(planned: Planned) -> dict[str, Any]:
    """The plan without its moves, for people and programs."""
    return {
        "groups": len(planned.units), "groups_moved": planned.moves, "groups_given": planned.given,
        "groups_pinned": planned.pinned,
        "makespan_us": {name: round(value) for name, value in planned.makespan_us.items()},
        "lower_bound_is": planned.bound_by,
        "consumers": [
            {**share, "speed": round(share["speed"], 3), "now_us": round(share["now_us"]),
             "planned_us": round(share["planned_us"])}
            for share in planned.shares
        ],
    }  # fmt: skip
