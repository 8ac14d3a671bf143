"""Everything that runs in a scenario: the models, and the processes that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.lane import Lane
from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.dispatchers import DispatcherMachine
from dispatcher.sim.environment import Environment
from dispatcher.sim.producers import Producer
from dispatcher.sim.readers import ReaderMachine
from dispatcher.sim.refusals import PublishRefusals
from dispatcher.sim.scenario import RunScenario


class World(Environment):
    """The simulated world. A `Run` adds the faults that strike it and the checkers that watch it."""

    def __init__(self, scenario: RunScenario, *, plants: Sequence[Any] = (), verbose: bool = False) -> None:
        super().__init__(scenario, plants=plants, verbose=verbose)
        self.dispatchers = [
            DispatcherMachine(self, f"d{index}", way_ms) for index, way_ms in enumerate(scenario.redis_ms)
        ]
        machine: type[ConsumerMachine | ReaderMachine] = (
            ReaderMachine if scenario.hands_over else ConsumerMachine
        )
        self.consumers = [machine(self, plan) for plan in scenario.consumers]
        self.producer = Producer(self)
        self.refusals = PublishRefusals(self)
        self.broker.refuses = self.refusals.cost

    def start(self) -> None:
        """Each process when the scenario says so."""
        for index, dispatcher in enumerate(self.dispatchers):
            self.scheduler.after(index * 20, dispatcher.start)
        for consumer in self.consumers:
            self.scheduler.after(consumer.plan.starts_at_ms, consumer.start)
        self.producer.start()

    def kill(self) -> None:
        """End every process."""
        machines: list[DispatcherMachine | ConsumerMachine | ReaderMachine] = [
            *self.dispatchers,
            *self.consumers,
        ]
        for machine in machines:
            machine.kill()

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

    def met(self) -> Counter[tuple[str, str]]:
        """How often each thing happened: faults that hit, acts of servers, what the core counted."""
        met = Counter(self.history.met)
        met["theme", self.scenario.theme] += 1
        met.update({("redis", answer): count for answer, count in self.redis.answers.items()})
        for lane in self.lanes:
            met.update({("core", name): count for name, count in lane.state.counters.items()})
        return +met
