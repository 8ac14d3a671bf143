"""The messages of a run: when they are published, where to, and the peculiarities of some."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from dispatcher.sim.scenario import MessagePlan
from dispatcher.sim.themes import Theme

#: Most runs are short, 1 of 100 is long: interleavings of few messages find most, long runs find the rest.
MESSAGES_MIN: Final = 200
MESSAGES_MAX: Final = 1_800  # and on top what twins and repetitions add
#: What it costs to publish a copy of a message: the channel; the channel, also for its dead letter
#: until faults end; the connection.
REFUSALS: Final = ("copy", "copy", "everywhere", "connection")

#: How many lanes drop messages that repeat another one.
REPEATING_LANES: Final = 0.15
#: How many check the numbers in their groups, and how many of these are left out, or given twice.
NUMBERED_LANES: Final = 0.15
NUMBERS_LEFT_OUT: Final = 0.05
NUMBERS_TWICE: Final = 0.03
#: How many of these lanes hold what follows a gap; in how many of those how many numbers change places.
HOLDING_LANES: Final = 0.5
SWAPPED: Final = (0.0, 0.1, 0.3)


def draw_count(random: Random) -> int:
    """How many messages a run has."""
    draw = random.random()
    if draw < 0.993:
        return MESSAGES_MIN + int(10 * draw)
    return random.randint(300, 800) if draw < 0.998 else random.randint(800, MESSAGES_MAX)


def draw_messages(
    chance: Callable[[str], Random], count: int, inbounds: int, groups: int, span_ms: int, theme: Theme
) -> tuple[MessagePlan, ...]:
    """That many messages, published in the first `span_ms`; `chance` gives each aspect its own."""
    plans = _messages(chance("messages"), count, inbounds, groups, span_ms, theme)
    plans = _with_killers(chance("killers"), plans, theme)
    return _with_refusals(chance("refusals"), plans, theme)


def _messages(
    random: Random, count: int, inbounds: int, groups: int, span_ms: int, theme: Theme
) -> tuple[MessagePlan, ...]:
    failing, closing = random.choice((0, 0, 0.02)), random.choice((0, 0, 0.05))
    loose, transient = random.choice((0, 0, 0.2)), random.choice((0, 0, 0.1))
    expiring, twins = random.choice((0, 0, 0, 0.05)), random.choice(theme.twins)
    ids = random.choice((0, 0, 1, 20))  # 0: none, 1: unique ones, n: one for every n messages
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
    """Now and then a few messages that kill the consumer that works on them."""
    twins = {plan.twin_of for plan in plans}
    single = [
        index for index, plan in enumerate(plans)
        if not (plan.twin_of or plan.uid in twins or plan.fails or plan.expires_ms)
    ]  # fmt: skip
    killers = set(random.sample(single, min(len(single), random.choice(theme.killers))))
    return tuple(plan._replace(kills=index in killers) for index, plan in enumerate(plans))


def _with_refusals(random: Random, plans: tuple[MessagePlan, ...], theme: Theme) -> tuple[MessagePlan, ...]:
    """Now and then a few that can't be published again."""
    count, kind = random.choice(theme.refused), random.choice(REFUSALS)
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


def with_repeated(random: Random, plans: tuple[MessagePlan, ...]) -> tuple[MessagePlan, ...] | None:
    """Some are published twice, on a lane that drops the second; None: on most lanes none are. Each has an id
    of its own, but for twins, which have none. The second may be of another group: a repetition waits
    for the first one without blocking others, and so comes behind messages of its own group that have
    gone."""
    if random.random() >= REPEATING_LANES:
        return None
    twins = {plan.twin_of for plan in plans if plan.twin_of}
    named = [
        plan._replace(message_id=None if plan.twin_of or plan.uid in twins else f"id-{plan.uid}")
        for plan in plans
    ]
    share = random.choice((0.02, 0.1, 0.3))
    groups = sorted({plan.group for plan in plans if plan.group is not None and plan.uid not in twins})
    repeated = [
        plan._replace(
            at_ms=plan.at_ms + random.choice((0, 0, 20, 300, 2_000)),
            repeats=True,
            group=random.choice([plan.group, *random.sample(groups, min(1, len(groups)))]),
        )
        for plan in named
        if plan.message_id is not None and _is_plain(plan) and random.random() < share
    ]
    return tuple(sorted(named + repeated, key=lambda plan: plan.at_ms))


def with_numbers(random: Random, plans: tuple[MessagePlan, ...]) -> tuple[MessagePlan, ...] | None:
    """Numbered in their groups, on a lane that checks that; None: on most lanes they are not. Of each group
    those of one inbound queue have numbers, but for twins, which must stay equal."""
    if random.random() >= NUMBERED_LANES:
        return None
    twins = {plan.twin_of for plan in plans if plan.twin_of}
    home: dict[str, int] = {}
    last: dict[str, int] = {}
    given: dict[tuple[int, str], int] = {}  # a message published twice in a group has one number
    numbered = []
    for plan in plans:
        group = plan.group
        elsewhere = plan.repeats and (plan.uid, group) not in given
        is_numbered = group is not None and not (
            plan.twin_of or plan.uid in twins or plan.closes or elsewhere
        )
        if group is not None and is_numbered and home.setdefault(group, plan.inbound) == plan.inbound:
            if (plan.uid, group) not in given:
                draw, before = random.random(), last.get(group, 0)
                is_twice = draw < NUMBERS_TWICE and before > 0
                last[group] = before + (0 if is_twice else 2 if draw > 1 - NUMBERS_LEFT_OUT else 1)
                given[plan.uid, group] = last[group]
            numbered.append(plan._replace(number=given[plan.uid, group]))
        else:
            numbered.append(plan)
    return tuple(numbered)


def with_swapped(random: Random, plans: tuple[MessagePlan, ...]) -> tuple[MessagePlan, ...]:
    """On some lanes numbers change places with the next one of their group: the message with the smaller one
    comes late. Nothing else is peculiar about these two."""
    share, last = random.choice(SWAPPED), dict[str, int]()
    swapped, twice = list(plans), {plan.uid for plan in plans if plan.repeats}
    for index, plan in enumerate(plans):
        if plan.group is None or not plan.number:
            continue
        before = last.pop(plan.group, None)
        is_plain = _is_plain(plan) and plan.uid not in twice
        if before is not None and is_plain and random.random() < share:
            swapped[before] = swapped[before]._replace(number=plan.number)
            swapped[index] = plan._replace(number=plans[before].number)
        elif is_plain:
            last[plan.group] = index
    return tuple(swapped)


def _is_plain(plan: MessagePlan) -> bool:
    """Nothing else is peculiar about it."""
    return plan.persistent and not (
        plan.fails or plan.closes or plan.expires_ms or plan.kills or plan.refused
    )
