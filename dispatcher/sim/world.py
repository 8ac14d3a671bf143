"""One run: the models, the processes and the checkers of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from dispatcher.client.copies import Copy
from dispatcher.client.sending import GROUP_HEADER
from dispatcher.core.lane import Lane
from dispatcher.core.model import ConsumerState
from dispatcher.protocol import REASON_EXPIRED, LaneNames
from dispatcher.service.inbound_feed import ELECTION_S
from dispatcher.settings import InboundSettings, LaneSettings, Settings
from dispatcher.settings_parts import HandOverConsumerSettings, PlacementName, PolicyName
from dispatcher.settings_types import Chosen
from dispatcher.sim.broker import Broker
from dispatcher.sim.checkers import Checker
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.dispatchers import DispatcherMachine
from dispatcher.sim.history import History
from dispatcher.sim.life import Life
from dispatcher.sim.logs import captured
from dispatcher.sim.loop import ProcessLoop, Scheduler
from dispatcher.sim.producers import Producer
from dispatcher.sim.queues import REROUTED, SHOP, TARGET, keeps_originals
from dispatcher.sim.readers import ReaderMachine
from dispatcher.sim.redis import Redis
from dispatcher.sim.refusals import Refusals
from dispatcher.sim.scenario import Scenario

LANE: Final = "sim"
#: Longer than anything may take once faults are over: two heartbeats, the return grace …
CALM_MS_MAX: Final = 90_000
#: … and all the work, if it is done one by one: so many times the way to Redis and back, and the handling.
WAYS_PER_MESSAGE: Final = 3
#: How often somebody looks whether everything is over.
_LOOK_MS: Final = 10
#: After everything is over, so that acks are proven and pings have come back.
SETTLING_MS: Final = 1_500
#: Whoever died while nobody led is waited for so long.
RETURN_GRACE_MS: Final = 8_000


class World:
    """The simulated world. `plants` change the pieces of each leadership (tests only)."""

    _edits: dict[str, Any]  # what was changed in the configuration file

    def __init__(self, scenario: Scenario, *, plants: Sequence[Any] = (), verbose: bool = False) -> None:
        from dispatcher.sim.faults import Faults
        from dispatcher.sim.faults.operators import decide_stops, undo_everything

        self._undo_everything, self._decide_stops = undo_everything, decide_stops
        self.scenario = scenario
        self._look_at_ms = 0
        self.election_s = ELECTION_S  # what a leader waits for those of quorum queues
        self.scheduler = Scheduler(scenario.seed)
        self.begun_at_ms = self.scheduler.now_ms
        self.names = LaneNames(LANE)
        self._starts, self._edits = 0, {}
        self.checkers = self._make_checkers()
        self.history = History(self.scheduler, self.names, self.checkers, verbose=verbose)
        self.history.stops = self.stops
        self.broker = Broker(self.scheduler, self.history)
        self.redis = Redis(self.scheduler)
        self.redis.on_commit = self.history.committed
        self.redis.on_lead = self.history.raised
        self.plants = tuple(plants)
        self.disturbed = bool(scenario.faults)
        self.batch_max = scenario.batch_max
        self.machines: dict[ProcessLoop, Any] = {}
        self.lanes: list[Lane] = []  # the core of each leadership
        for name, _, quorum in scenario.inbounds:
            self.broker.declare(name, quorum=quorum)
        self.declare_targets()
        self.dispatchers = [
            DispatcherMachine(self, f"d{index}", way_ms) for index, way_ms in enumerate(scenario.redis_ms)
        ]
        machine: type[ConsumerMachine | ReaderMachine] = (
            ReaderMachine if scenario.hands_over else ConsumerMachine
        )
        self.consumers = [machine(self, plan) for plan in scenario.consumers]
        self.producer = Producer(self)
        self.faults = Faults(self)
        self.refusals = Refusals(self)
        self.broker.refuses = self.refusals.cost

    def _make_checkers(self) -> list[Checker]:
        from dispatcher.sim.checkers.bounds import Bounds
        from dispatcher.sim.checkers.deaths import Deaths
        from dispatcher.sim.checkers.duplicates import Duplicates
        from dispatcher.sim.checkers.fence import Fence
        from dispatcher.sim.checkers.kept import Kept
        from dispatcher.sim.checkers.limits import LimitsChecker
        from dispatcher.sim.checkers.liveness import Liveness
        from dispatcher.sim.checkers.loss import Loss
        from dispatcher.sim.checkers.moves import MovesChecker
        from dispatcher.sim.checkers.operations import OperationsChecker
        from dispatcher.sim.checkers.order import Order
        from dispatcher.sim.checkers.overdue import Overdue
        from dispatcher.sim.checkers.overlap import Overlap
        from dispatcher.sim.checkers.poison import Poison
        from dispatcher.sim.checkers.readings import Readings
        from dispatcher.sim.checkers.replies import Replies
        from dispatcher.sim.checkers.said import Said
        from dispatcher.sim.checkers.sequence import Sequence
        from dispatcher.sim.checkers.share import Share

        kinds: tuple[type[Checker], ...] = (
            Loss, Duplicates, Order, Overlap, Share, LimitsChecker, Fence, Deaths, Bounds, Poison, Said,
            OperationsChecker, MovesChecker, Replies, Sequence, Kept,
        )  # fmt: skip
        if self.scenario.options["ack_timeout_ms"] is not None:
            kinds = (*kinds, Overdue)
        self.liveness, self.readings = Liveness(self), Readings(self)
        if self.scenario.hands_over:  # what is promised there, and nobody says when a message is settled
            kinds = (Loss, Fence, Bounds, Replies, OperationsChecker, MovesChecker, Kept)
            return [*(kind(self) for kind in kinds), self.readings, self.liveness]
        return [*(kind(self) for kind in kinds), self.liveness]

    def declare_targets(self) -> None:
        """Where operators send groups."""
        self.broker.declare(TARGET)
        exchange, key = SHOP
        self.broker.exchanges[exchange] = {key: [self.broker.declare(REROUTED)]}

    # -- running --

    def run(self) -> BaseException | None:
        """The whole run. Returns what went wrong: a Violation, or an exception that nobody handled."""
        scheduler = self.scheduler
        for index, dispatcher in enumerate(self.dispatchers):
            scheduler.after(index * 20, dispatcher.start)
        for consumer in self.consumers:
            scheduler.after(consumer.plan.starts_at_ms, consumer.start)
        self.producer.start()
        self.faults.schedule()
        if self.scenario.stops_failed:
            self._decide_stops(self.faults)
        with captured(self.history):
            scheduler.run(self.faults.over_at_ms, lambda: False)
            if not scheduler.failures:
                self.faults.stop()
                self._undo_everything(self.faults)
                self._calm_down()
            failure = scheduler.failures[0][1] if scheduler.failures else None
            machines: list[DispatcherMachine | ConsumerMachine | ReaderMachine] = [
                *self.dispatchers,
                *self.consumers,
            ]
            for machine in machines:
                machine.kill()
        return failure

    def _calm_down(self) -> None:
        scheduler = self.scheduler
        scheduler.run(scheduler.now_ms + self._calm_ms_max(), self._looks_done)
        if scheduler.failures:
            return
        if not self._all_done():
            self.liveness.not_done()
            return
        scheduler.run(scheduler.now_ms + SETTLING_MS, lambda: False)
        until_ms = scheduler.now_ms + RETURN_GRACE_MS
        is_quiet = False
        while not is_quiet and scheduler.now_ms < until_ms:  # who is taken back may make room for another
            scheduler.run(until_ms, self._nobody_is_awaited)
            scheduler.run(scheduler.now_ms + SETTLING_MS, lambda: False)
            is_quiet = self._nobody_is_awaited()
        for checker in self.checkers:
            if not scheduler.failures:
                checker.at_end()

    def _looks_done(self) -> bool:
        """Asked whenever time moves, and answered now and then."""
        if self.scheduler.now_ms < self._look_at_ms:
            return False
        self._look_at_ms = self.scheduler.now_ms + _LOOK_MS
        return self._all_done()

    def _calm_ms_max(self) -> int:
        scenario = self.scenario
        slowest_ms = max(consumer.work_ms for consumer in scenario.consumers)
        one_ms = WAYS_PER_MESSAGE * 2 * max(scenario.redis_ms) + 2 * slowest_ms
        return CALM_MS_MAX + len(scenario.messages) * one_ms

    def _nobody_is_awaited(self) -> bool:
        lane = self.leader_lane()
        if lane is None or not lane.is_complete():  # it still asks the consumers what Redis has forgotten
            return False
        if lane._membership.liveness.awaited or lane.state.parking:
            return False
        return not lane.state.stale_owners

    def _all_done(self) -> bool:
        if not self.producer.finished or not self.history.all_over():
            return False
        queues = [self.broker.queues[name] for name, _, _ in self.scenario.inbounds]
        queues += [queue for name, queue in self.broker.queues.items() if keeps_originals(self.names, name)]
        control = self.broker.queues.get(self.names.control)
        if any(queue.ready_count() or queue.unacked_count for queue in queues):
            return False
        lane = self.leader_lane()
        return lane is not None and control is not None and not control.ready_count() + control.unacked_count

    # -- what others ask --

    def leader(self) -> DispatcherMachine | None:
        return next((machine for machine in self.dispatchers if machine.leads), None)

    def leader_lane(self) -> Lane | None:
        leader = self.leader()
        return leader.runner.lane if leader is not None and leader.runner is not None else None

    def is_working(self) -> bool:
        """Whether a consumer that is there has something in hand."""
        lane = self.leader_lane()
        return lane is not None and any(
            (consumer.in_flight or consumer.depth) and consumer.state is ConsumerState.LIVE
            for consumer in lane.state.by_uuid.values()
        )

    def next_settings(self) -> Settings:
        """What the next dispatcher that starts reads."""
        self._starts += 1
        maps = self.scenario.group_maps
        return _settings(self.scenario, maps[self._starts % len(maps)], self._edits)

    def edit_settings(self, number: int) -> Settings:
        """Change the file: other weights, every second time also what takes a new leadership."""
        weights = [weight for _, weight, _ in self.scenario.inbounds]
        shift = number % len(weights)
        self._edits["weights"] = [weight + number % 3 for weight in weights[shift:] + weights[:shift]]
        if number % 2:
            names = list(PlacementName)
            self._edits["placement"] = names[number // 2 % len(names)]
        return self.next_settings()

    def met(self) -> Counter[tuple[str, str]]:
        """What happened in this run how often: faults that hit, what the servers did, the core's counters."""
        met = Counter(self.history.met)
        met["theme", self.scenario.theme] += 1
        met.update({("redis", answer): count for answer, count in self.redis.answers.items()})
        for lane in self.lanes:
            met.update({("core", name): count for name, count in lane.state.counters.items()})
        return +met

    def prepare_lane(self, lane: Lane) -> None:
        self.lanes.append(lane)
        if lane._recovery._broker_restarted:
            self.history.met["leads", "after a restart of the broker"] += 1
        for checker in self.checkers:
            checker.leading(lane)

    def stops(self, life: Life, reason: str) -> bool:
        """Whether a failure of it stops its group, instead of being the end of it."""
        is_for_good = not self.scenario.stops_failed or reason == REASON_EXPIRED
        return not is_for_good and self.ordered_group(life.group) is not None

    def ordered_group(self, group: bytes | None) -> bytes | None:
        """The group that keeps the order of such messages; None: no order is promised."""
        if not self.scenario.groups:
            return None
        ungrouped: str = self.scenario.options["ungrouped"]
        if group is None and ungrouped.startswith("group:"):
            return ungrouped.removeprefix("group:").encode()
        return group

    def ordered_group_of(self, copy: Copy, life: Life) -> bytes | None:
        """The same of this copy: it may be of a repetition whose id is forgotten, and that of any group."""
        if life.uid not in self.history.forgotten:
            return self.ordered_group(life.group)
        text = copy.headers.get(GROUP_HEADER)
        return self.ordered_group(None if text is None else str(text).encode())

    def each_connection(self, wanted: Callable[[BrokerConnection], bool]) -> list[BrokerConnection]:
        return [connection for connection in self.broker.connections if wanted(connection)]


def _settings(scenario: Scenario, group_map: Chosen, edits: dict[str, Any]) -> Settings:
    weights = edits.get("weights") or [weight for _, weight, _ in scenario.inbounds]
    queues = zip(scenario.inbounds, weights, strict=True)
    options = {**scenario.options, **{key: value for key, value in edits.items() if key != "weights"}}
    lane = LaneSettings(
        name=LANE, policy=PolicyName(scenario.policy),
        inbound=tuple(InboundSettings(queue=name, weight=weight) for (name, _, _), weight in queues),
        group_map=group_map, handover=scenario.hands_over,
        consumers=tuple(
            HandOverConsumerSettings(id=plan.consumer_id, prefetch=plan.prefetch)
            for plan in scenario.consumers if scenario.hands_over
        ),
        **options,
    )  # fmt: skip
    return Settings(lanes={LANE: lane})
