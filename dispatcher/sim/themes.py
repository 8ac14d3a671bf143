"""The faults of a run: most runs have a theme, whose faults come more often in a lane that they hurt.

Faults that are drawn evenly from everything meet the windows of rare bugs about once in a thousand runs. A
theme brings together what such a window needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from dispatcher.sim.faults import KINDS
from dispatcher.sim.faults.operators import EDITS, FLAGS, MOVES, OPERATIONS
from dispatcher.sim.scenario import Fault

#: The share of faults that are the theme's, in a run that has one.
_OF_THE_THEME: Final = 0.7
#: Between two faults. A recovery takes 100 ms, and 5 s more when consumers died with the dispatcher.
_APART_MS: Final = (100, 500, 1_500, 3_000)
#: Faults strike at most this long after the work should be done.
_LATE_MS: Final = 1_500
#: The share of faults that wait until a consumer works: the others strike during the recovery from the one
#: before.
_PATIENT: Final = 0.7
#: The share of runs with faults in which operators set flags; drawn apart: the other runs stay as they are.
_WITH_FLAGS: Final = 1 / 5
#: The share in which operators purge groups; drawn apart as well.
_WITH_OPERATIONS: Final = 1 / 4
#: The share in which the configuration is changed; drawn apart as well.
_WITH_EDITS: Final = 1 / 6
#: The share in which operators send groups elsewhere.
_WITH_MOVES: Final = 1 / 4
#: Trouble rarely comes alone: another fault may follow within this time.
_SOON_MS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Values that come more often than elsewhere. Each tuple of values is drawn from evenly."""

    name: str
    often: int
    kinds: tuple[str, ...] = ()  # of faults; one that is named twice comes twice as often
    incidents: tuple[int, ...] = (1, 2, 3, 5, 8)
    options: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of the lane
    dispatchers: tuple[int, ...] = (1, 1, 2, 3)
    redis_ms: tuple[int, ...] = (0, 0, 10, 30)
    same_id: float = 0.25  # consumers that take the id of the one before
    twins: tuple[float, ...] = (0, 0, 0, 0.03)  # messages that have an equal one
    parking_queues: tuple[int, ...] = (0,) * 6 + (2, 64)
    killers: tuple[int, ...] = (0,) * 9 + (1,)  # messages that kill their consumers
    refused: tuple[int, ...] = (0,) * 9 + (1,)  # messages that RabbitMQ does not take again

    def draw_options(self, random: Random) -> dict[str, Any]:
        return {name: random.choice(values) for name, values in self.options.items()}


THEMES: Final = (
    Theme(name="nothing", often=2, incidents=(0,)),
    Theme(name="anything", often=5),
    Theme(
        name="consumers come and go", often=4,
        kinds=(
            "kill_consumer", "cut_consumer", "cut_all_consumers", "freeze_consumer", "leave_consumer",
            "slow_consumer", "nack", "nack_marker", "late_marker", "kill_at_settle", "cut_at_settle",
        ),
        incidents=(3, 5, 8), same_id=0.4, redis_ms=(0, 10, 30, 100),
    ),
    Theme(
        name="two leaders", often=3,
        kinds=("freeze_leader", "cut_leader", "kill_leader", "late_commits", "slow_redis", "clock_jump"),
        incidents=(3, 5, 8), dispatchers=(2, 2, 3), redis_ms=(0, 60, 150),
    ),
    Theme(
        name="crashes at commits", often=3,
        kinds=(
            "kill_before_commit", "kill_after_commit", "kill_host", "kill_host", "cut_redis_before_commit",
            "cut_redis_after_commit", "kill_at_publish", "cut_at_publish",
        ),
        incidents=(2, 3, 5, 8), redis_ms=(0, 10, 30),
    ),
    Theme(
        name="the broker fails", often=3,
        kinds=(
            "kill_broker", "kill_broker", "alarm", "repeat_control", "nack", "slow_link", "kill_consumer",
        ),
        incidents=(1, 2, 3, 5), same_id=0.4,
    ),
    Theme(
        name="Redis fails", often=3,
        kinds=("restart_redis", "redis_loses_last", "redis_loses_all", "slow_redis", "wipe", "kill_leader"),
        incidents=(1, 2, 3, 5),
    ),
    Theme(
        name="equal messages", often=2,
        kinds=("kill_leader", "cut_leader", "kill_after_commit", "kill_consumer"),
        incidents=(2, 3, 5, 8), twins=(0.05, 0.2), options={"look_ahead": (3, 10, 50)},
    ),
    Theme(
        name="bad messages", often=3, kinds=("kill_leader", "kill_consumer", "cut_consumer", "kill_broker"),
        incidents=(0, 1, 3, 5), killers=(0, 1, 2, 3), refused=(0, 1, 2, 8),
    ),
    Theme(
        name="stuck consumers", often=4,
        kinds=(
            "slow_consumer", "slow_consumer", "freeze_consumer", "kill_consumer", "kill_leader", "cut_leader",
            "kill_at_publish", "cut_at_publish", "kill_broker", "nack", "kill_after_commit", "rebalance",
        ),
        incidents=(3, 5, 8), options={"look_ahead": (3, 10, 20)}, parking_queues=(1, 2, 64, 64),
    ),
    Theme(
        name="operators", often=2,
        kinds=(
            "rebalance", "reset_owners", "apply_plan", "close_group", "evict", "leave_consumer",
            "cut_consumer",
            "kill_leader", "kill_consumer",
        ),
        incidents=(3, 5, 8), redis_ms=(0, 10, 30),
    ),
)  # fmt: skip


def draw_faults(random: Random, theme: Theme, busy_ms: int) -> tuple[Fault, ...]:
    """The faults of a run whose consumers have work for about that long, at least."""
    faults = []
    apart_ms = random.choice(_APART_MS)
    at_ms = random.random() * busy_ms / 2
    for _ in range(random.choice(theme.incidents)):
        at_ms += random.expovariate(1 / apart_ms)
        if at_ms > busy_ms + _LATE_MS:  # it would come after the work
            at_ms = random.random() * busy_ms
        faults.append(_fault(random, theme, int(at_ms)))
        while random.random() < 0.25:
            at_ms += random.randrange(_SOON_MS)
            faults.append(_fault(random, theme, int(at_ms)))
    return tuple(sorted(faults))


def draw_flags(random: Random, busy_ms: int) -> tuple[Fault, ...]:
    """In some of the runs, the faults by which operators pause, pin and drain for a while."""
    if random.random() >= _WITH_FLAGS:
        return ()
    return tuple(
        Fault(
            random.randrange(busy_ms),
            random.choice(FLAGS),
            random.randrange(60),
            random.randrange(10_000),
            True,
        )
        for _ in range(random.choice((1, 2, 4)))
    )


def draw_operations(random: Random, busy_ms: int) -> tuple[Fault, ...]:
    """In some of the runs, the faults by which operators purge groups."""
    return _draw_apart(random, OPERATIONS, _WITH_OPERATIONS, busy_ms)


def draw_edits(random: Random, busy_ms: int) -> tuple[Fault, ...]:
    """In some of the runs, the faults that change the configuration under the dispatchers."""
    return _draw_apart(random, EDITS, _WITH_EDITS, busy_ms)


def _draw_apart(random: Random, kinds: tuple[str, ...], share: float, busy_ms: int) -> tuple[Fault, ...]:
    if random.random() >= share:
        return ()
    return tuple(
        Fault(
            random.randrange(busy_ms),
            random.choice(kinds),
            random.randrange(60),
            random.randrange(10_000),
            random.random() < _PATIENT,
        )
        for _ in range(random.choice((1, 2, 4)))
    )


def draw_moves(random: Random, busy_ms: int) -> tuple[Fault, ...]:
    """In some of the runs, operators send groups elsewhere, and faults strike there about then."""
    if random.random() >= _WITH_MOVES:
        return ()
    faults = []
    for _ in range(random.choice((1, 2, 4))):
        at_ms = random.randrange(busy_ms)
        for kind in ("move_group", *random.choices(MOVES, k=random.choice((0, 1, 2)))):
            faults.append(Fault(at_ms, kind, random.randrange(60), random.randrange(10_000), False))
            at_ms += random.choice((3, 10, 30, 300))
    return tuple(faults)


def _fault(random: Random, theme: Theme, at_ms: int) -> Fault:
    if theme.kinds and random.random() < _OF_THE_THEME:
        kind = random.choice(theme.kinds)
    else:
        kind = random.choices(tuple(KINDS), [kind.often for kind in KINDS.values()])[0]
    return Fault(at_ms, kind, random.randrange(60), random.randrange(10_000), random.random() < _PATIENT)
