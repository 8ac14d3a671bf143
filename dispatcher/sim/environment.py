"""What the processes of a run share: time, the servers, their settings and the run's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.client.copies import Copy
from dispatcher.client.sending import GROUP_HEADER
from dispatcher.core.lane import Lane
from dispatcher.core.recovery.matching import Recovery
from dispatcher.service.inbound_feed import ELECTION_S, STILL_NODE_S
from dispatcher.settings import (
    Chosen,
    HandOverConsumerSettings,
    InboundSettings,
    LaneSettings,
    PlacementName,
    PolicyName,
    QueueKind,
    Settings,
)
from dispatcher.sim.broker import Broker
from dispatcher.sim.history import RunHistory
from dispatcher.sim.life import Life
from dispatcher.sim.loop import ProcessLoop, Scheduler
from dispatcher.sim.nodes import Cluster
from dispatcher.sim.queues import REROUTED, SHOP, TARGET
from dispatcher.sim.redis import Redis
from dispatcher.sim.scenario import RunScenario
from dispatcher.wire.protocol import REASON_EXPIRED, LaneNames

LANE: Final = "sim"


class Environment:
    """`plants` change the pieces of each leadership (tests only)."""

    _edits: dict[str, Any]  # changes of the configuration file

    def __init__(self, scenario: RunScenario, *, plants: Sequence[Any] = (), verbose: bool = False) -> None:
        self.scenario = scenario
        self.election_s = ELECTION_S  # what a leader waits for those of quorum queues
        self.still_node_s = STILL_NODE_S  # and for a node that stands still
        self.scheduler = Scheduler(scenario.seed)
        self.begun_at_ms = self.scheduler.now_ms
        self.names = LaneNames(LANE)
        self._starts, self._edits = 0, {}
        self.history = RunHistory(self.scheduler, self.names, verbose=verbose)
        self.history.stops = self.stops
        self.broker = Broker(self.scheduler, self.history)
        if scenario.partitions:
            self.broker = cluster = Cluster(self.scheduler, self.history, scenario.seed, scenario.partitions)
            if scenario.hands_over:
                cluster.at_home = (self.names.consumer(""), self.names.rejected)
            cluster.is_all_at_home = not all(quorum for _, _, quorum in scenario.inbounds)
        self.redis = Redis(self.scheduler)
        self.redis.on_commit = self.history.committed
        self.redis.on_lead = self.history.raised
        self.plants = tuple(plants)
        self.machines: dict[ProcessLoop, Any] = {}  # by each one's process, while that lives
        self.lanes: list[Lane] = []  # the core of each leadership
        for name, _, quorum in scenario.inbounds:
            self.broker.declare(name, quorum=quorum)
        self.declare_targets()

    def declare_targets(self) -> None:
        """Where operators send groups."""
        self.broker.declare(TARGET)
        exchange, key = SHOP
        self.broker.exchanges[exchange] = {key: [self.broker.declare(REROUTED)]}

    def next_settings(self) -> Settings:
        """The settings that the next dispatcher reads when it starts."""
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

    def prepare_lane(self, lane: Lane) -> None:
        self.lanes.append(lane)
        if lane.state.feature(Recovery)._broker_restarted:
            self.history.met["leads", "after a restart of the broker"] += 1
        self.history.leading(lane)

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
        """The same for this copy: if its id is forgotten it may be a repetition, of any group."""
        if life.uid not in self.history.forgotten:
            return self.ordered_group(life.group)
        text = copy.headers.get(GROUP_HEADER)
        return self.ordered_group(None if text is None else str(text).encode())


def _settings(scenario: RunScenario, group_map: Chosen, edits: dict[str, Any]) -> Settings:
    weights = edits.get("weights") or [weight for _, weight, _ in scenario.inbounds]
    queues = zip(scenario.inbounds, weights, strict=True)
    options = {**scenario.options, **{key: value for key, value in edits.items() if key != "weights"}}
    if scenario.hands_over:  # over quorum queues no other such lane is led
        options["queue_type"] = QueueKind.CLASSIC
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
