"""What a seed means: a lane, its consumers, its messages and its faults.

Each aspect of a seed is drawn from chance of its own, so what is added to one changes nothing of the others.
To add an option of the lane, add a line to `OPTIONS`; to add a fault, see `dispatcher/sim/faults`; to aim at
the window that a rare bug needs, add a `Theme`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

from dispatcher.settings import OverdueAct, RetrySettings
from dispatcher.settings_parts import PauseName, RebalanceSettings, StartSettings
from dispatcher.settings_types import Chosen
from dispatcher.sim.faults.kinds import Fault
from dispatcher.sim.themes import THEMES, Theme, draw_faults

#: Most runs are short, some are long: interleavings of few messages find most, long runs find the rest.
MESSAGES_MIN: Final = 200
MESSAGES_MAX: Final = 2_000
#: Faults strike in the first so many ms at most.
BUSY_MS_MAX: Final = 8_000
#: What it costs to publish a copy of a message: the channel; the channel, also for its dead letter
#: until faults are over; the connection.
REFUSALS: Final = ("copy", "copy", "everywhere", "connection")


class MessagePlan(NamedTuple):
    """One message that a producer publishes."""

    at_ms: int
    uid: int
    inbound: int
    group: str | None
    fails: bool = False
    closes: bool = False
    persistent: bool = True
    expires_ms: int = 0
    twin_of: int = 0  # equal in every byte to this one; 0: to none
    message_id: str | None = None
    kills: bool = False  # whoever works on it
    refused: str = ""  # RabbitMQ took it and does not take it again: one of REFUSALS


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer process."""

    name: str
    consumer_id: str
    prefetch: int
    concurrency: int
    work_ms: int
    starts_at_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run that is not chance on its way."""

    seed: int
    theme: str
    policy: str
    inbounds: tuple[tuple[str, int, bool], ...]  # (queue, weight, quorum)
    options: dict[str, Any]  # of the lane: fields of LaneSettings
    group_maps: tuple[Chosen, ...]  # that dispatchers start with, in turn
    records_per_checkpoint: int
    redis_ms: int  # how long a command takes to Redis, and its answer back
    dispatchers: int
    consumers: tuple[ConsumerPlan, ...]
    messages: tuple[MessagePlan, ...]
    faults: tuple[Fault, ...]

    @property
    def batch_max(self) -> int:
        """The most messages that one decision may hand over."""
        if self.policy == "sequenced" and not self.options["top_up"]:
            return max(consumer.prefetch for consumer in self.consumers)
        return 1

    @property
    def groups(self) -> bool:
        """Whether messages of a group are kept in order."""
        return self.policy != "concurrent" and self.group_maps[0].name != "none"

    def but(self, **changes: Any) -> Scenario:
        return replace(self, **changes)


#: Options of the lane that a seed draws: a field of LaneSettings, and how, given the lane's policy.
OPTIONS: Final[dict[str, Callable[[Random, str], Any]]] = {
    "top_up": lambda random, policy: policy == "sequenced" and random.random() < 0.3,
    "ungrouped": lambda random, policy: (
        "balance" if policy == "concurrent"
        else random.choices(("balance", "reject", "group:common"), (8, 1, 1))[0]
    ),
    "look_ahead": lambda random, _: random.choice((3, 10, 50, 10_000, 10_000)),
    "reconnect_grace_ms": lambda random, _: random.choice((0, 0, 200, 2_000)),
    "liveness_interval_ms": lambda random, _: random.choice((100, 500)),
    "group_idle_timeout_ms": lambda random, policy: (
        random.choice((None, None, 100, 1_000)) if policy == "exclusive" else None
    ),
    "rebalance": lambda random, policy: RebalanceSettings(
        on_join=policy == "exclusive" and random.random() < 0.2,
        pause=random.choice((PauseName.GROUP, PauseName.GROUP, PauseName.LANE)),
    ),
    "start": lambda random, _: random.choice((StartSettings(),) * 3 + (StartSettings(consumers=3),)),
    "ack_timeout_ms": lambda random, _: random.choice((None, None, 1_000, 2_000)),
    "on_ack_timeout": lambda random, _: random.choice(tuple(OverdueAct)),
    "retry": lambda random, _: RetrySettings(attempts=random.choice((1, 2, 3, 3, 3))),
    "heartbeat_ms": lambda random, _: random.choice((300, 1_000, 2_000)),
}  # fmt: skip


def make_scenario(seed: int, messages: int | None = None) -> Scenario:
    """The scenario of a seed; `messages` overrides how many there are."""

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
    if group_maps == (Chosen("none"),):
        options |= {"group_idle_timeout_ms": None, "ungrouped": "balance", "rebalance": RebalanceSettings()}
    options |= theme.draw_options(chance("theme"))
    consumers = _consumers(chance("consumers"), theme)
    count = messages or _message_count(chance("count"))
    span_ms = random.choice((0, 500, 2_000, 5_000))
    busy_ms = max(1_000, span_ms, _work_ms(count, consumers))
    plans = _messages(chance("messages"), count, len(inbounds), span_ms, theme)
    plans = _with_killers(chance("killers"), plans, theme)
    plans = _with_refusals(chance("refusals"), plans)
    if any(plan.kills for plan in plans):
        options["look_ahead"] = 10_000  # a window full of its group lets in nothing that could be settled
        group_maps = tuple(Chosen("exact") if _are_few(map_) else map_ for map_ in group_maps)
    return Scenario(
        seed=seed, theme=theme.name, policy=policy, inbounds=inbounds, options=options, group_maps=group_maps,
        records_per_checkpoint=random.choice((30, 200, 100_000)),
        redis_ms=random.choice(theme.redis_ms), dispatchers=random.choice(theme.dispatchers),
        consumers=consumers, messages=plans,
        faults=draw_faults(chance("faults"), theme, busy_ms),
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


def _message_count(random: Random) -> int:
    draw = random.random()
    if draw < 0.9:
        return MESSAGES_MIN + int(100 * draw)
    return random.randint(300, 800) if draw < 0.98 else random.randint(800, MESSAGES_MAX)


def _work_ms(count: int, consumers: tuple[ConsumerPlan, ...]) -> int:
    """About how long that many messages take: faults that strike later strike nobody."""
    per_ms = sum(min(c.concurrency, c.prefetch) / max(1, c.work_ms) for c in consumers)
    return min(BUSY_MS_MAX, int(count / per_ms))


def _consumers(random: Random, theme: Theme) -> tuple[ConsumerPlan, ...]:
    plans: list[ConsumerPlan] = []
    for index in range(random.randint(1, 5)):
        consumer_id = f"c{index}"
        if index and random.random() < theme.same_id:
            consumer_id = plans[-1].consumer_id  # another process with the same id
        plans.append(
            ConsumerPlan(
                name=f"c{index}", consumer_id=consumer_id, prefetch=random.choice((1, 2, 5, 10, 50)),
                concurrency=random.choice((1, 2, 10)), work_ms=random.choice((0, 2, 10, 40)),
                starts_at_ms=random.choice((0, 0, 100, 1_500)),
            )
        )  # fmt: skip
    return tuple(plans)


def _messages(
    random: Random, count: int, inbounds: int, span_ms: int, theme: Theme
) -> tuple[MessagePlan, ...]:
    groups = random.choice((1, 3, 10, 40))
    failing, closing = random.choice((0, 0, 0.02)), random.choice((0, 0, 0.05))
    loose, transient = random.choice((0, 0, 0.2)), random.choice((0, 0, 0.1))
    expiring, twins = random.choice((0, 0, 0, 0.05)), random.choice(theme.twins)
    ids = random.choice((0, 0, 1, 20))  # 0: none, 1: unique ones, else: one for so many messages
    plans = []
    times = sorted(int(random.random() * span_ms) for _ in range(count))
    for uid, at_ms in enumerate(times, 1):
        inbound = random.randrange(inbounds)
        group = None if random.random() < loose else f"g{int(random.random() ** 2 * groups)}"
        plan = MessagePlan(
            at_ms, uid, inbound, group, fails=random.random() < failing, closes=random.random() < closing,
            persistent=random.random() >= transient,
            expires_ms=random.randint(50, 3_000) if random.random() < expiring else 0,
            message_id=f"id-{uid // ids}" if ids else None,
        )  # fmt: skip
        plans.append(plan)
        if random.random() < twins:
            plans[-1] = plan._replace(
                group=f"twins{uid}", fails=False, closes=False, persistent=True, expires_ms=0
            )
            plans += _twins(random, plans[-1])
    return tuple(sorted(plans, key=lambda plan: plan.at_ms))


def _with_killers(random: Random, plans: tuple[MessagePlan, ...], theme: Theme) -> tuple[MessagePlan, ...]:
    """Now and then a few that kill whoever works on them."""
    twins = {plan.twin_of for plan in plans}
    single = [
        index for index, plan in enumerate(plans)
        if not (plan.twin_of or plan.uid in twins or plan.fails or plan.expires_ms)
    ]  # fmt: skip
    killers = set(random.sample(single, min(len(single), random.choice(theme.killers))))
    return tuple(plan._replace(kills=index in killers) for index, plan in enumerate(plans))


def _with_refusals(random: Random, plans: tuple[MessagePlan, ...]) -> tuple[MessagePlan, ...]:
    """Now and then a few that can't be published again."""
    count, kind = random.choice((0, 0, 0, 0, 0, 0, 1, 2, 8)), random.choice(REFUSALS)
    twins = {plan.twin_of for plan in plans}
    single = [n for n, p in enumerate(plans) if not (p.twin_of or p.uid in twins or p.kills)]
    chosen = set(random.sample(single, min(len(single), count)))
    return tuple(plan._replace(refused=kind if n in chosen else "") for n, plan in enumerate(plans))


def _twins(random: Random, plan: MessagePlan) -> list[MessagePlan]:
    """One or two more that are equal to it in every byte."""
    return [
        plan._replace(twin_of=plan.uid, at_ms=plan.at_ms + random.choice((0, 0, 300, 1_000)))
        for _ in range(random.choice((1, 1, 2)))
    ]
