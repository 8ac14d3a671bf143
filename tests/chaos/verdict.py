"""The last word: everything is stopped, and what happened is held against the guarantees."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dispatcher.amqp.events import Fetched
from dispatcher.judge.judge import say, that_count, violations
from dispatcher.judge.record import HandlingRecord, MessageKey
from dispatcher.nodes.local_cluster import PAUSE_MINORITY
from tests.chaos.accounts import Arrived
from tests.chaos.deciding import Decider
from tests.chaos.decisions import DROP, PURGE, RELEASE, SENDING, SKIP, TAKING
from tests.chaos.draining import STILL_S, drain
from tests.chaos.evictions import ACK_TIMEOUT
from tests.chaos.evidence import Evidence, Found, gather, produced
from tests.chaos.going_on import ALL, FAIL_OVER, PARTS, Limits, Stall, excuses, settled, stalls
from tests.chaos.handed_evidence import gather_handed
from tests.chaos.kept import not_kept
from tests.chaos.lanes import LaneOnStage
from tests.chaos.leaderless import left_without_leader, of_lanes, told_apart
from tests.chaos.leaderships import paused_by_moves
from tests.chaos.numbers import told_wrongly
from tests.chaos.operator import Operator
from tests.chaos.parts import NodeFault
from tests.chaos.plan import CONCURRENT, NODE_FAULTS, READERS, SHORT
from tests.chaos.shards import elsewhere, find_shards
from tests.chaos.stage import PREFIX, Stage
from tests.recovery.scene import wrongly_dead
from tests.recovery.unordered import violations_without_order
from tests.service.clients import Client
from tests.service.harness import log_records
from tests.service.protocol_consumer import read_properties
from tests.waiting import eventually

VIOLATED, NO_VERDICT = 1, 3
#: RabbitMQ chooses a leader within seconds, or never.
FOR_GOOD_S = 30.0
LIVES_SHOWN_MAX = 5
USUAL = Limits()


@dataclass(slots=True)
class LaneVerdict:
    """What one lane's record says."""

    lane: LaneOnStage
    evidence: Evidence
    counts: dict[str, int]
    violations: list[str]
    stalls: list[Stall] = field(default_factory=list)  # after each fault of a node, and fail-over of Redis


@dataclass(slots=True)
class Verdict:
    lanes: list[LaneVerdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    drained_s: float = 0.0
    without_leader: list[str] = field(default_factory=list)  # queues of the lanes
    excused: list[str] = field(default_factory=list)  # violations that may follow from these
    is_unhurt: bool = False  # faults of nodes were planned, and none happened
    unplanned: int = 0  # times that Redis has changed its primary without a fault, when is not recorded

    @property
    def violations(self) -> list[str]:
        return self.problems + [text for lane in self.lanes for text in lane.violations]

    @property
    def handlings(self) -> list[HandlingRecord]:
        """What consumers recorded, but those of messages that may have been there more than once."""
        return [
            handling
            for lane in self.lanes
            for handling in lane.evidence.handlings
            if handling.message not in lane.evidence.story.repeated
        ]

    @property
    def hides_something(self) -> bool:
        """Messages may be in a queue that has no leader. When none is missing, a parking queue has none."""
        return bool(self.excused) or not all(".park." in queue for queue in self.without_leader)

    @property
    def exit_code(self) -> int:
        if self.violations:
            return NO_VERDICT if self.unplanned else VIOLATED
        return NO_VERDICT if self.hides_something or self.is_unhurt else 0


async def end_and_judge(stage: Stage, limits: Limits = USUAL, still_s: float = STILL_S) -> Verdict:
    """Let everything be handled, stop everything in order, look at what is left and what was recorded.

    If RabbitMQ does not give out what it has, the verdict says so: then what is missing is excused.
    """
    verdict, until = Verdict(), time.monotonic()
    await _wind_down(stage, verdict, still_s)
    client = await Client.open(stage.rabbitmq)
    await find_shards(stage, client)
    for lane in stage.lanes:
        queue = f"{PREFIX}.{lane.name}.dead"
        dead = [] if queue in verdict.without_leader else await client.take(queue)
        there = Found(
            frozenset(MessageKey.of(message.body) for message in dead),
            poison(dead, stage.plan.settings.retry_attempts),
            arrived(await client.take(lane.target)),
        )
        evidence, found = await asyncio.to_thread(_judged, stage, lane, there)
        found += await _left_over(client, lane, evidence, dead)
        if stage.keeps(lane):
            stream = f"{PREFIX}.{lane.name}.history"
            found += await not_kept([node.amqp_url for node in stage.nodes], stream, evidence.story.published)
        found += await asyncio.to_thread(told_wrongly, stage, lane)
        counts = _counts(stage, evidence, dead) | _decided(stage, lane, there)
        stood = after_faults(stage, evidence, limits, until)
        found += [text for one in stood if (text := one.violation()) is not None]
        found += stage.unanswered[lane.name]
        counting, excused = told_apart(found, verdict.without_leader, [lane])
        verdict.excused += excused
        verdict.lanes.append(LaneVerdict(lane, evidence, counts, counting, stood))
    verdict.problems, excused = told_apart(verdict.problems, verdict.without_leader, stage.lanes)
    verdict.excused += excused
    if stage.cluster is not None:
        redis = stage.cluster.fail_over
        verdict.unplanned = max(0, redis.promotions() - redis.planned)
        verdict.is_unhurt = is_unhurt(stage)
    await client.close()
    return verdict


def _judged(stage: Stage, lane: LaneOnStage, there: Found) -> tuple[Evidence, list[str]]:
    if lane.hands_over:
        evidence = gather_handed(stage, lane, there)
        return evidence, evidence.misplaced
    evidence = gather(stage, lane, there)
    if lane.policy == CONCURRENT:
        most = stage.plan.settings.in_flight_per_group
        found = violations_without_order(evidence.handlings, evidence.story, most)
    else:
        found = [str(violation) for violation in violations(evidence.handlings, evidence.story)]
    found += elsewhere(stage.shard_of, lane, evidence.handlings)
    return evidence, found + evidence.wrong_ends + evidence.misplaced


def is_unhurt(stage: Stage) -> bool:
    """Whether each fault of a node was skipped: such a run on a cluster proves nothing of clusters."""
    return not stage.node_faults and any(fault.name in NODE_FAULTS for fault in stage.plan.faults)


def after_faults(stage: Stage, evidence: Evidence, limits: Limits, until: float) -> list[Stall]:
    """How long the lane stood still after each fault of a node, and each fail-over of its Redis."""
    lane = evidence.lane
    sent = produced(stage, lane).sent
    hindered = [(outage.since, outage.until) for outage in stage.redis_outages_of(lane)]
    for replica in stage.replicas:
        hindered += [(at, at + SHORT.longest_s) for at in replica.ended_at]  # then it is started again
        hindered += replica.slow
    hindered += paused_by_moves(stage, lane)
    of_lane = settled(evidence.handlings, sent, acked=lane.hands_over)
    pauses = stage.plan.settings.partitions == PAUSE_MINORITY
    waits = ALL if lane.hands_over else () if pauses else PARTS  # its queues are on one node
    found = stalls(stage.node_faults, of_lane, hindered, limits, until, waits=waits)
    promoted_at = [outage.until for outage in stage.redis_outages_of(lane) if outage.promoted]
    fail_overs = [NodeFault(FAIL_OVER, 0, at, at, 0.0) for at in promoted_at]
    hindered += [excuses(fault, limits, waits=waits) for fault in stage.node_faults]
    return found + stalls(fail_overs, of_lane, hindered, limits, until)


async def _wind_down(stage: Stage, verdict: Verdict, still_s: float) -> None:
    begun = asyncio.get_running_loop().time()
    verdict.problems += stage.problems
    for process in [*stage.consumers, *stage.producers]:
        if process.ended_by_itself():
            end = (stage.folder / f"{process.name}.log").read_text()[-2000:]
            verdict.problems.append(f"{process.name} ({process.kind}) ended by itself: {end}")
    if wrong := await stage.stop(stage.living(stage.producers)):
        verdict.problems.append(f"not live: {wrong} could not get everything confirmed")
    client = await Client.open(stage.rabbitmq)
    await Operator(stage).undo_again()
    operator = Decider(stage)
    if problem := await drain(lambda: _is_drained(stage, client, operator), stage.handled, still_s):
        verdict.problems.append(problem)
    left = await left_without_leader(stage.nodes, min(still_s, FOR_GOOD_S))
    verdict.without_leader = of_lanes(left, stage.lanes)
    verdict.drained_s = asyncio.get_running_loop().time() - begun
    if wrong := await stage.stop(stage.living(stage.consumers)):
        verdict.problems.append(f"not live: {wrong} did not end in order")
    await _stop_dispatchers(stage, client, verdict)
    await client.close()


async def _is_drained(stage: Stage, client: Client, operator: Decider) -> bool:
    for lane in stage.lanes:
        if stage.stops(lane):
            await operator.skip_stopped(lane)
    queues = [queue for lane in stage.lanes for queue in lane.queues]
    queues += [queue for lane in stage.lanes if lane.hands_over for queue in _queues_of_readers(lane)]
    if any([await client.ready(queue) for queue in queues]):
        return False
    for lane in stage.lanes:
        leader = stage.leader(lane)
        if leader is None:
            return False
        try:
            _, metrics = await asyncio.to_thread(leader.process.get, "/metrics")
        except (OSError, AssertionError):
            return False
        if not _says_idle(metrics, lane.labels):
            return False
    return True


def _says_idle(metrics: str, labels: str) -> bool:
    lines = set(metrics.splitlines())
    names = ("messages_held", "messages_in_flight", "messages_parked", "parking_queues", "copies_unconfirmed")
    leads = f"dispatcher_lane_active{{{labels}}} 1.0" in lines
    return leads and all(f"dispatcher_{name}{{{labels}}} 0.0" in lines for name in names)


async def _stop_dispatchers(stage: Stage, client: Client, verdict: Verdict) -> None:
    controls = [f"{PREFIX}.{lane.name}.{queue}" for lane in stage.lanes for queue in ("control", "command")]

    async def read() -> bool:
        return not any([await client.ready(queue) for queue in controls])

    try:
        await eventually(read, 20)
    except AssertionError as error:
        verdict.problems.append(f"control messages are not read: {error}")
    for replica in stage.replicas:
        code, _ = await asyncio.to_thread(replica.process.terminate, 30)
        log = replica.process.whole_log()
        if code and not (code == -signal.SIGTERM and not replica.process.logged("dispatcher_started")):
            verdict.problems.append(f"{replica.name} ended with exit code {code}: {log[-2000:]}")
        if '"lane_failed"' in log:
            lines = [line for line in log.splitlines() if '"lane_failed"' in line]
            verdict.problems.append(f"a bug of {replica.name}: {lines[0][:3000]}")


def poison(dead: list[Fetched], attempts: int) -> frozenset[MessageKey]:
    """What was given up because it was in hand at as many deaths as it takes (M-1, M-2)."""
    found = set()
    for message in dead:
        headers = read_properties(message.properties).headers or {}
        if headers["x-dispatch-reason"] == "poison" and headers["x-dispatch-attempt"] >= max(2, attempts):
            found.add(MessageKey.of(message.body))
    return frozenset(found)


async def _left_over(client: Client, lane: LaneOnStage, evidence: Evidence, dead: list[Fetched]) -> list[str]:
    queues = [*lane.queues, f"{PREFIX}.{lane.name}.control", f"{PREFIX}.{lane.name}.command"]
    if lane.hands_over:
        queues += [*_queues_of_readers(lane), f"{PREFIX}.{lane.name}.rejected"]
    found = [f"left in {queue}: {count} messages" for queue in queues if (count := await client.ready(queue))]
    if lane.hands_over:
        reasons = [(m.body, (read_properties(m.properties).headers or {})["x-dispatch-reason"]) for m in dead]
        return found + [f"wrongly dead: {body!r}: {why}" for body, why in reasons if why != "rejected"]
    story = evidence.story
    bodies = [(m.body, m.properties) for m in dead if MessageKey.of(m.body) not in story.poison]
    others = [h for h in that_count(evidence.handlings, story) if h.message not in story.poison]
    once = not story.forgotten
    return found + wrongly_dead(bodies, others, once=once, repeated=story.repeated, gone=story.gone)


def _queues_of_readers(lane: LaneOnStage) -> list[str]:
    return [f"{PREFIX}.{lane.name}.consumer.{who}" for who in READERS]


def arrived(fetched: list[Fetched]) -> tuple[Arrived, ...]:
    """What the target of moves got, in its order."""
    origins = ((read_properties(m.properties).headers or {})["x-dispatch-origin"] for m in fetched)
    return tuple(Arrived(MessageKey.of(m.body), str(o)) for m, o in zip(fetched, origins, strict=True))


def _decided(stage: Stage, lane: LaneOnStage, there: Found) -> dict[str, int]:
    """What operators did with messages."""
    decisions = stage.decisions[lane.name]

    def messages(*commands: str) -> int:
        return sum(d.messages or 0 for d in decisions if d.command in commands)

    def done(command: str) -> int:
        return sum(d.command == command and d.messages != 0 for d in decisions)

    return {
        "purged": messages(PURGE),
        "moved or rerouted": messages(*SENDING),
        "copies in their target": len(there.arrived),
        "operations that took none": sum(d.messages == 0 for d in decisions if d.command in TAKING),
        "stopped groups released": done(RELEASE),
        "stopped groups skipped": done(SKIP),
        "messages dropped": messages(DROP),
    }


def _counts(stage: Stage, evidence: Evidence, dead: list[Fetched]) -> dict[str, int]:
    """What there was, so that a reader sees how much was tried."""
    handlings, story = evidence.handlings, evidence.story
    by_message: Counter[MessageKey] = Counter(handling.message for handling in handlings)
    return {
        "published and confirmed": len(story.published),
        "perhaps published twice": len(story.repeated),
        "handled, never confirmed to its producer": len(by_message.keys() - story.published),
        "handled": len(handlings),
        "messages handled more than once": sum(count > 1 for count in by_message.values()),
        "handlings cancelled": sum(handling.cancelled is not None for handling in handlings),
        "settles known to be confirmed": sum(handling.confirmed for handling in handlings),
        "in the dead queue": len(dead),
        "given up as poison": len(story.poison),
        "incarnations": len({handling.life for handling in handlings}),
        "incarnations that ended badly": len(story.killed_at),
        "groups": len({handling.message.group for handling in handlings}),
        "evicted for being late": _told_to_be_late(stage, evidence.lane),
        "parking queues made": _parking_queues(stage, evidence.lane),
        "times of which no process knew": len(story.forgotten),
    }


def _parking_queues(stage: Stage, lane: LaneOnStage) -> int:
    return sum(record["event"] == "parking_begins" for record in _told(stage, lane))


def _told_to_be_late(stage: Stage, lane: LaneOnStage) -> int:
    evictions = [record for record in _told(stage, lane) if record["event"] == "consumer_evicted"]
    return sum(record["by"] == ACK_TIMEOUT for record in evictions)


def _told(stage: Stage, lane: LaneOnStage) -> list[dict[str, Any]]:
    """What the logs of all dispatchers that were ever started say of a lane."""
    records = [record for replica in stage.replicas for record in log_records(replica.process.whole_log())]
    return [record for record in records if "event" in record and record.get("lane") == lane.name]


def lives_of(verdict: LaneVerdict) -> list[str]:
    """The whole lives of the messages that the first violations name."""
    by_name: dict[str, list[HandlingRecord]] = {}
    for handling in verdict.evidence.handlings:
        m = handling.message
        by_name.setdefault(f"{m.group}#{m.producer}.{m.publish}.{m.number} of {m.queue}", []).append(handling)
    shown = []
    for text in verdict.violations:
        for name in [name for name in by_name if f"{name} " in text or text.endswith(name)]:
            if len(shown) >= LIVES_SHOWN_MAX:
                return shown
            message = by_name[name][0].message
            published = verdict.evidence.confirmed.get(message)
            when = f"confirmed to its producer at {published:.3f}" if published else "not confirmed"
            story = "".join(f"\n    {say(handling)}" for handling in by_name.pop(name))
            shown.append(f"{name}: {when}{story}")
    return shown
