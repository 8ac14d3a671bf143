"""From what everybody wrote down to the story that the checker needs: whose life was over when, and what
nobody could remember.

An incarnation's life is over when its last connection was lost for good. The proxies saw that, so neither
dispatcher nor consumer has to be believed.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from itertools import pairwise
from typing import Final, NamedTuple

from dispatcher.core.parking.relocation import RELOCATIONS_UNCONFIRMED_MAX
from dispatcher.core.recovery.consumer_reports import HEARTBEATS_TO_WAIT
from dispatcher.judge.judge import Forgotten, Release, Story, doubled, is_ghost, violations
from dispatcher.judge.record import HandlingRecord, Incarnation, LifeRecord, MessageKey, in_order
from dispatcher.nodes.local_cluster import PAUSE_MINORITY
from dispatcher.sim.checkers.order import IN_FRONT_MS
from tests.chaos.accounts import Arrived, Books, balance
from tests.chaos.decisions import Decision
from tests.chaos.evictions import (
    PREFETCH_OF_BARE,
    RESTORED_S,
    Interval,
    Life,
    Times,
    Told,
    asked_for,
    first_attempts,
    first_told,
    judged,
    taken_back_of,
    told_of,
)
from tests.chaos.going_on import FREEZES, PARTS
from tests.chaos.lanes import LaneOnStage
from tests.chaos.leaderships import Leadership, leaderships, without_redis
from tests.chaos.parts import Eviction, Outage, Process
from tests.chaos.producer import Produced, read_produced
from tests.chaos.stage import Stage
from tests.client.tcp_proxy import Connection
from tests.recovery.rules import is_closing

#: On a cluster a quorum queue may confirm a message before the dispatcher has it, whose node may be another.
DELIVERY_S: Final = 0.5
HEARTBEAT_S: Final = 1.0
#: For so long a leader that trusts Redis with nothing lets consumers answer.
ASKED_S: Final = HEARTBEATS_TO_WAIT * HEARTBEAT_S
#: An ack may be on its way to the broker for this long after its settle was confirmed.
ACK_DELAY_S = 2.5


class Evidence(NamedTuple):
    """One lane's record, and what happened besides."""

    lane: LaneOnStage
    handlings: list[HandlingRecord]
    confirmed: dict[MessageKey, float]
    story: Story
    wrong_ends: list[str]
    misplaced: list[str]  # of what an operator took out


class Found(NamedTuple):
    """What was in the lane's queues at the end."""

    dead: frozenset[MessageKey] = frozenset()
    poison: frozenset[MessageKey] = frozenset()
    arrived: tuple[Arrived, ...] = ()  # in the target of moves


NOTHING: Final = Found()


def gather(stage: Stage, lane: LaneOnStage, there: Found = NOTHING) -> Evidence:
    consumers = [process for process in stage.consumers if process.lane is lane]
    records, killed_at, left_at, wrong_ends = [], dict[str, float](), dict[str, float](), list[str]()
    connected: list[tuple[str, float]] = []
    lives: list[Life] = []
    logs = [replica.process.whole_log() for replica in stage.replicas]
    told, taken_back = told_of(logs, lane.name), taken_back_of(logs, lane.name)
    evictions = stage.evictions + _by_dispatchers(told, stage)
    for process in consumers:
        path = stage.folder / f"{process.name}.record"
        if not path.exists():
            continue
        record = LifeRecord(path, by_incarnation=True)
        records.append(record)
        for incarnation in record.incarnations.values():
            theirs = [handling for handling in record.handlings if handling.life == incarnation.life]
            lives.append(Life(process, incarnation, theirs))
            evicted_at = _evicted_at(incarnation, process, evictions)
            wrong = _wrong_end(incarnation, process)
            if wrong and evicted_at is None:
                evicted_at = _taken_back_at(incarnation, process, taken_back)
                if not _lost_its_queue(incarnation, evicted_at or incarnation.over or 0.0, stage):
                    wrong_ends.append(wrong)
            if evicted_at is not None:
                _count_no_later_settles(record, incarnation, evicted_at)
            over_at = void_at(incarnation, process, evicted_at)
            if over_at is not None:
                killed_at[incarnation.life] = over_at
                connected.append((incarnation.life, _connected_until(incarnation, process)))
            if process.left_at is not None:
                left_at[incarnation.life] = process.left_at
    connected_until = tuple(connected)
    sent, confirmed, repeated = produced(stage, lane)
    settings, handlings = stage.plan.settings, in_order(records)
    gaps = tuple(forgotten(stage, lane))
    if lane.policy in settings.dropping:
        doubts = [(gap.since, gap.until) for gap in (*gaps, *stage.rabbitmq_outages)]
        repeated = _dropped_once(repeated, sent, handlings, doubts)
    decisions = [with_doubts(decision, gaps) for decision in stage.decisions[lane.name]]
    story = Story(
        frozenset(confirmed), killed_at, left_at, lane.keeps_owner and not settings.on_join,
        gaps, tuple(stage.moves[lane.name]), repeated, connected_until,
        settings.buckets(), settings.keeps_owner_idle_s(), 0.0 if stage.cluster is None else DELIVERY_S,
        settings.steal_after_s(), settings.look_ahead,
        confirmed,
        there.poison,
        releases=tuple(Release(d.group, d.since, d.until) for d in decisions if d.lets_go_on),
        closes=is_closing,
    )  # fmt: skip
    story = story._replace(repeated=repeated | parked_twice(handlings, story))
    silent = [interval for process in consumers for interval in process.silent]
    story = story._replace(behind=came_behind(handlings, story, silent))
    led, restored = leaderships(stage, lane)
    took_over = [at for one in led for at in (one.since, one.until)]
    balanced = balance(
        Books(
            handlings, story, sent, decisions, there.dead, list(there.arrived), took_over, stage.stops(lane)
        )
    )
    story = story._replace(gone=balanced.gone)
    times = Times(
        stage.evicts_after_s(lane), sent, first_attempts(handlings), led,
        _hindered(stage, lane, restored), gaps,
    )  # fmt: skip
    wrong_ends += judged(lives, told, stage.evictions, times)
    return Evidence(lane, handlings, confirmed, story, wrong_ends, balanced.violations)


def _dropped_once(
    repeated: frozenset[MessageKey],
    sent: dict[MessageKey, float],
    record: list[HandlingRecord],
    doubts: list[tuple[float, float]],
) -> frozenset[MessageKey]:
    """What may come twice although the lane drops what repeats another message: while it was under way Redis
    forgot the window (U-5), or RabbitMQ one of the two (U-7)."""
    last: dict[MessageKey, float] = {}
    for handling in record:
        last[handling.message] = max(handling.start, last.get(handling.message, 0.0))
    return frozenset(
        message for message in repeated
        if any(since <= last.get(message, math.inf) and sent[message] <= until for since, until in doubts)
    )  # fmt: skip


def parked_twice(record: list[HandlingRecord], story: Story) -> frozenset[MessageKey]:
    """What was on its way into a parking queue when everything was forgotten: nobody can know that the copy
    there and the original are one message, and both are handed over. So many are on their way at most."""
    by_message: dict[MessageKey, list[HandlingRecord]] = defaultdict(list)
    for handling in record:
        if not is_ghost(handling, story):
            by_message[handling.message].append(handling)
    twice = frozenset(
        message
        for message, handlings in by_message.items()
        if doubled(handlings, story)
        and any(
            story.confirmed_at.get(message, math.inf) <= gap.until and gap.since <= handlings[0].start
            for gap in story.forgotten
        )
    )
    return twice if len(twice) <= RELOCATIONS_UNCONFIRMED_MAX * len(story.forgotten) else frozenset()


def came_behind(record: list[HandlingRecord], story: Story, silent: list[Interval]) -> frozenset[MessageKey]:
    """Messages that came back from consumers that died or failed them shortly before everything was
    forgotten, or that consumers had in hand that could not say so: only Redis knew that they precede those of
    their group that are parked (docs/guarantees.md, "Two failures at once"). A consumer had no more of them
    than its prefetch. `silent`: when a consumer could not answer."""
    gaps = [gap for gap in story.forgotten if gap.since > -math.inf]
    most = 0
    for since, until in [(gap.since - IN_FRONT_MS / 1_000, gap.until) for gap in gaps]:
        most += PREFETCH_OF_BARE * sum(since <= at <= until for at in story.killed_at.values())
        most += PREFETCH_OF_BARE * sum(_could_not_answer(interval, until) for interval in silent)
        most += sum(h.failed and h.end is not None and since <= h.end <= until for h in record)
    begun_last = {handling.message: handling.start for handling in record}

    def may_be(message: MessageKey) -> bool:
        confirmed_at, begun_at = story.confirmed_at.get(message, math.inf), begun_last.get(message, -math.inf)
        return any(confirmed_at <= gap.until <= begun_at for gap in gaps)

    behind = frozenset[MessageKey]()
    while most:
        breaches = violations(record, story._replace(behind=behind))
        late = frozenset(breach.late for breach in breaches if breach.late is not None)
        if not late:
            break
        behind |= late
        if len(behind) > most or not all(map(may_be, late)):
            return frozenset()
    return behind


def _could_not_answer(silent: Interval, since: float) -> bool:
    """Of the time in which it was asked no heartbeat's was left to it."""
    begun, end = silent
    return min(end, since + ASKED_S) - max(begun, since) > ASKED_S - HEARTBEAT_S


def with_doubts(decision: Decision, gaps: tuple[Forgotten, ...]) -> Decision:
    """What was decided while nobody could remember may have been done twice, or was undone."""
    hit = any(gap.since <= decision.until and decision.since <= gap.until for gap in gaps)
    return decision._replace(messages=None) if hit else decision


def produced(stage: Stage, lane: LaneOnStage) -> Produced:
    """What the lane's producers have written down; of a shard, what goes there."""
    found = written(stage, lane)
    if lane.shards == 1:
        return found
    here = {message for message in found.sent if stage.shard_of.get(message.group) == lane.name}
    return Produced(
        {message: at for message, at in found.sent.items() if message in here},
        {message: at for message, at in found.confirmed.items() if message in here},
        found.repeated & here,
    )


def written(stage: Stage, lane: LaneOnStage) -> Produced:
    """The same, of all shards of a lane."""
    producers = [process for process in stage.producers if process.lane.whole == lane.whole]
    paths = [stage.folder / f"{process.name}.produced" for process in producers]
    return read_produced(path for path in paths if path.exists())


def _by_dispatchers(told: list[Told], stage: Stage) -> list[Eviction]:
    """Those that nobody asked for: they have to be right, but they were."""
    return [
        Eviction(one.at, math.inf, one.who, one.incarnation)
        for one in first_told(told)
        if not asked_for(one, stage.evictions)
    ]


def _hindered(stage: Stage, lane: LaneOnStage, restored: list[float]) -> dict[str, list[Interval]]:
    """When a dispatcher may not have seen, or not been able to do anything about what it saw."""
    servers = [(outage.since, outage.until) for outage in stage.rabbitmq_outages]
    for outage in stage.redis_outages_of(lane):
        latest = outage.until + (RESTORED_S if outage.back_to is not None else 0.0)
        written_back = min((at for at in restored if at > outage.until), default=latest)
        servers.append((outage.since, min(latest, written_back)))
    return {replica.name: servers + replica.slow + replica.redis_slow for replica in stage.replicas}


def _evicted_at(incarnation: Incarnation, process: Process, evictions: list[Eviction]) -> float | None:
    """When somebody ended it, and it heard of that or did not live to hear."""
    if incarnation.end not in ("", "taken"):
        return None
    over = min(at for at in (incarnation.over, process.killed_at, math.inf) if at is not None)
    since = [
        max(one.since, incarnation.welcomes[0])
        for one in evictions
        if one.who == process.who
        and one.incarnation in (incarnation.name, None)
        and incarnation.welcomes
        and one.since <= over <= one.until
    ]
    return min(since, default=None)


def _count_no_later_settles(record: LifeRecord, incarnation: Incarnation, evicted_at: float) -> None:
    """What RabbitMQ confirms after an eviction counts no more (C-9); which came first nobody can tell."""
    for handling in record.handlings:
        if handling.life == incarnation.life and (handling.confirmed_at or 0.0) > evicted_at:
            handling.confirmed = False


def void_at(incarnation: Incarnation, process: Process, evicted_at: float | None = None) -> float | None:
    """From when on nothing of this incarnation counts; None: it ended in order."""
    over, killed_at = incarnation.over, process.killed_at
    if evicted_at is not None:
        return min(at for at in (evicted_at, killed_at) if at is not None)
    connection = _last_connection(incarnation, process.proxy.connections)
    if over is not None and incarnation.end == "left":
        return _unwelcome_since(connection, process, over)
    if over is None and killed_at is None:
        return None
    last_seen = min(at for at in (over, killed_at) if at is not None)
    if _left(incarnation, process) and (connection is None or connection.closed >= last_seen):
        return None  # `taken` is the answer to its leave: nothing is on its way any more
    return last_seen if connection is None else min(last_seen, connection.closed)


def _unwelcome_since(connection: Connection | None, process: Process, over: float) -> float | None:
    """It settled the rest and left over another connection, and nobody answered: it may have been taken back
    when it lost the one over which it was welcomed."""
    if connection is not None and any(
        connection.closed < c.opened <= over for c in process.proxy.connections
    ):
        return connection.closed
    return None


def _connected_until(incarnation: Incarnation, process: Process) -> float:
    """When the last connection ended that it had, welcomed or not. A frozen node reads what was sent to it
    when it goes on: so settles may count that were sent after the others had given it up."""
    last_seen = min((at for at in (incarnation.over, process.killed_at) if at is not None), default=math.inf)
    ends = [max(c.closed, c.served_until) for c in process.proxy.connections if c.opened <= last_seen]
    return min(last_seen, max(ends, default=-math.inf))


def _left(incarnation: Incarnation, process: Process) -> bool:
    left_at, over = process.left_at, incarnation.over
    return left_at is not None and over is not None and left_at <= over


def _last_connection(incarnation: Incarnation, connections: list[Connection]) -> Connection | None:
    """The one over which it was welcomed last; a process notes a welcome a moment after it came."""
    if not incarnation.welcomes:
        return None
    welcomed = incarnation.welcomes[-1]
    return next((c for c in reversed(connections) if c.opened <= welcomed), None)


def _wrong_end(incarnation: Incarnation, process: Process) -> str:
    """Slowness alone moves no group (G-6): nobody is taken back while its connection is up."""
    if incarnation.end != "taken" or incarnation.over is None:
        return ""
    connection = _last_connection(incarnation, process.proxy.connections)
    if connection is None or connection.closed < incarnation.over or process.left_at is not None:
        return ""
    since = incarnation.welcomes[-1]
    return (
        f"taken back: {incarnation.life}, connected since {since:.3f}, was told so at {incarnation.over:.3f}"
    )


def _lost_its_queue(incarnation: Incarnation, taken_back_at: float, stage: Stage) -> bool:
    """Whether nodes went on apart after it was welcomed. They (RabbitMQ 3.10.8) may forget queues of each
    other then, although the connections of these stay. With `pause_minority` only a node that was frozen does
    so: when it goes on, none is in a minority."""
    if stage.cluster is None:
        return False
    apart = FREEZES if stage.plan.settings.partitions == PAUSE_MINORITY else PARTS
    since = incarnation.welcomes[-1]
    return any(
        fault.name in apart and fault.until >= since and fault.since <= taken_back_at
        for fault in stage.node_faults
    )


def _taken_back_at(
    incarnation: Incarnation, process: Process, taken_back: list[tuple[float, str]]
) -> float | None:
    """When a leader took it back, if it heard of that only as it joined again. Settles that were confirmed
    later count no more."""
    over = math.inf if incarnation.over is None else incarnation.over
    welcomed = incarnation.welcomes[-1]
    return next((at for at, who in taken_back if who == process.who and welcomed <= at <= over), None)


def forgotten(stage: Stage, lane: LaneOnStage) -> list[Forgotten]:
    """When Redis lost data, and a leader ended before it had written its state back (see Forgotten)."""
    led, restored = leaderships(stage, lane)
    looked = without_redis(stage, lane)
    found = []
    for outage in stage.redis_outages_of(lane):
        if outage.back_to is None:
            continue
        next_led = min((one.since for one in led if one.since > outage.since), default=math.inf)
        if any(outage.since < at < next_led for at in restored) or _was_kept(outage, led, looked):
            continue
        since = _last_acks(stage, led, outage.back_to) - ACK_DELAY_S
        until = next_led if next_led < math.inf else time.monotonic()
        found.append(Forgotten(since, until, until))
        found += [
            # A killed broker forgets thousands of acks; what says that they were given is gone.
            Forgotten(-math.inf, until, broker.since)
            for broker in stage.rabbitmq_outages
            if broker.killed and broker.since > since and stage.cluster is None  # others of a cluster know
        ]
    return found


def _was_kept(outage: Outage, led: list[Leadership], looked: list[Leadership]) -> bool:
    """A replica took the place of the primary, and who led before still led when it had looked for its
    writes, or would have said that some are missing."""
    noticed = outage.until + RESTORED_S
    return outage.promoted and any(
        noticed <= one.until
        or any(o.who == one.who and outage.since <= o.since and o.until <= one.until for o in looked)
        for one in led
        if one.since <= outage.since
    )


def _last_acks(stage: Stage, led: list[Leadership], at: float) -> float:
    """The latest time up to `at` at which somebody led and its acks went through."""
    hindered = [(one.until, after.since) for one, after in pairwise(led)]
    hindered += [slow for replica in stage.replicas for slow in replica.slow]
    hindered += [(outage.since, outage.until) for outage in stage.rabbitmq_outages]
    while earlier := [since for since, until in hindered if since < at <= until + ACK_DELAY_S]:
        at = min(earlier)
    return at
