"""What a seed means: a lane, its consumers, its messages and its faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple

#: Most runs are short, some are long: interleavings of few messages find most, long runs find the rest.
MESSAGES_MIN: Final = 200
MESSAGES_MAX: Final = 2_000


class Fault(NamedTuple):
    """Something that goes wrong: when (ms after the beginning), what, to whom, how long or how much."""

    at_ms: int
    kind: str
    target: int = 0
    amount: int = 0


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
    policy: str
    top_up: bool
    ungrouped: str
    inbounds: tuple[tuple[str, int, bool], ...]  # (queue, weight, quorum)
    look_ahead: int
    group_idle_timeout_ms: int | None
    reconnect_grace_ms: int
    liveness_interval_ms: int
    heartbeat_ms: int
    records_per_checkpoint: int
    attempts: int
    dispatchers: int
    consumers: tuple[ConsumerPlan, ...]
    messages: tuple[MessagePlan, ...]
    faults: tuple[Fault, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_max(self) -> int:
        """The most messages that one decision may hand over."""
        if self.policy == "sequenced" and not self.top_up:
            return max(consumer.prefetch for consumer in self.consumers)
        return 1

    def but(self, **changes: Any) -> Scenario:
        return replace(self, **changes)


#: (kind, how often): kinds that need a target draw it from all machines of that sort.
FAULT_KINDS: Final = (
    ("kill_leader", 10), ("kill_dispatcher", 3), ("cut_leader", 6), ("freeze_leader", 5),
    ("kill_at_publish", 6), ("cut_at_publish", 5), ("kill_before_commit", 5), ("kill_after_commit", 6),
    ("cut_redis_before_commit", 3), ("cut_redis_after_commit", 4),
    ("kill_consumer", 10), ("cut_consumer", 8), ("freeze_consumer", 5), ("leave_consumer", 3),
    ("kill_at_settle", 4), ("cut_at_settle", 3),
    ("kill_broker", 5), ("nack", 2), ("nack_marker", 3), ("slow_link", 2),
    ("restart_redis", 2), ("redis_loses_last", 3), ("redis_loses_all", 2), ("slow_redis", 2),
    ("wipe", 1), ("rebalance", 4), ("reset_owners", 1), ("close_group", 1), ("late_event", 2),
    ("repeat_control", 3),
)  # fmt: skip


def make_scenario(seed: int, messages: int | None = None) -> Scenario:
    """The scenario of a seed; `messages` overrides how many there are."""
    random = Random(seed)
    later = Random(f"{seed} options that came later")  # so that a seed keeps what it meant before
    policy = random.choices(("exclusive", "sequenced", "concurrent"), (5, 4, 1))[0]
    count = messages or _message_count(random)
    inbounds = tuple(
        (f"in{index}", random.choice((1, 1, 2, 3, 5)), random.random() < 0.35)
        for index in range(random.choices((1, 2, 3), (5, 4, 1))[0])
    )
    span_ms = random.choice((0, 500, 2_000, 5_000))
    ungrouped = random.choices(("balance", "reject", "group:common"), (8, 1, 1))[0]
    if policy == "concurrent":
        ungrouped = "balance"
    faulty = random.random() < 0.9
    consumers = _consumers(random)
    scenario = Scenario(
        seed=seed, policy=policy, top_up=policy == "sequenced" and random.random() < 0.3,
        ungrouped=ungrouped, inbounds=inbounds,
        group_idle_timeout_ms=later.choice((None, None, 100, 1_000)) if policy == "exclusive" else None,
        look_ahead=random.choice((3, 10, 50, 10_000, 10_000)),
        reconnect_grace_ms=random.choice((0, 0, 200, 2_000)),
        liveness_interval_ms=random.choice((100, 500)),
        heartbeat_ms=random.choice((300, 1_000, 2_000)),
        records_per_checkpoint=random.choice((30, 200, 100_000)),
        attempts=3,
        dispatchers=random.choices((1, 2, 3), (5, 4, 1))[0],
        consumers=consumers,
        messages=_messages(random, count, len(inbounds), span_ms, policy),
        faults=_faults(random, max(span_ms, 1_000) + 1_500, len(consumers)) if faulty else (),
    )  # fmt: skip
    return _with_failures(Random(f"{seed} failures"), scenario)


def _message_count(random: Random) -> int:
    draw = random.random()
    if draw < 0.9:
        return MESSAGES_MIN + int(100 * draw)
    return random.randint(300, 800) if draw < 0.98 else random.randint(800, MESSAGES_MAX)


def _consumers(random: Random) -> tuple[ConsumerPlan, ...]:
    plans = []
    for index in range(random.randint(1, 5)):
        consumer_id = f"c{index}"
        if index and random.random() < 0.25:
            consumer_id = f"c{index - 1}"  # a second process with the same id
        prefetch = random.choice((1, 2, 5, 10, 50))
        plans.append(
            ConsumerPlan(
                name=f"c{index}", consumer_id=consumer_id, prefetch=prefetch,
                concurrency=random.choice((1, 2, 10)), work_ms=random.choice((0, 2, 10, 40)),
                starts_at_ms=random.choice((0, 0, 100, 1_500)),
            )
        )  # fmt: skip
    return tuple(plans)


def _messages(
    random: Random, count: int, inbounds: int, span_ms: int, policy: str
) -> tuple[MessagePlan, ...]:
    groups = random.choice((1, 3, 10, 40))
    failing, closing = random.choice((0, 0, 0.02)), random.choice((0, 0, 0.05))
    loose, transient = random.choice((0, 0, 0.2)), random.choice((0, 0, 0.1))
    expiring, twins = random.choice((0, 0, 0, 0.05)), random.choice((0, 0, 0, 0.03))
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
            plain = plan._replace(
                group=f"twins{uid}", fails=False, closes=False, persistent=True, expires_ms=0
            )
            plans[-1] = plain
            for _ in range(random.choice((1, 1, 2))):
                plans.append(plain._replace(twin_of=uid, at_ms=at_ms + random.choice((0, 0, 300, 1_000))))
    return tuple(sorted(plans, key=lambda plan: plan.at_ms))


def _with_failures(random: Random, scenario: Scenario) -> Scenario:
    """How often messages are tried; and a few that kill whoever works on them."""
    plans = scenario.messages
    attempts = random.choice((1, 2, 3, 3, 3))
    twins = {plan.twin_of for plan in plans}
    single = [
        index for index, plan in enumerate(plans)
        if not (plan.twin_of or plan.uid in twins or plan.fails or plan.expires_ms)
    ]  # fmt: skip
    poison = set(random.sample(single, min(len(single), random.choice((0, 0, 0, 0, 0, 1, 2, 3)))))
    if not poison:
        return scenario.but(attempts=attempts)
    return scenario.but(
        attempts=attempts,
        messages=tuple(plan._replace(kills=index in poison) for index, plan in enumerate(plans)),
        look_ahead=10_000,  # a window full of its group lets in nothing that could be settled meanwhile
    )


def _faults(random: Random, horizon_ms: int, consumers: int) -> tuple[Fault, ...]:
    kinds = [kind for kind, _ in FAULT_KINDS]
    weights = [weight for _, weight in FAULT_KINDS]
    faults = []
    for _ in range(random.choice((1, 1, 2, 3, 5, 8, 12))):
        kind = random.choices(kinds, weights)[0]
        at_ms = int(random.random() * horizon_ms)
        faults.append(Fault(at_ms, kind, random.randrange(60), random.randrange(10_000)))
        if random.random() < 0.25:  # trouble rarely comes alone
            second = random.choices(kinds, weights)[0]
            at_ms += random.randrange(60)
            faults.append(Fault(at_ms, second, random.randrange(60), random.randrange(10_000)))
    return tuple(sorted(faults))
