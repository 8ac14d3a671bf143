"""One run of a scenario: its world, the faults that strike it and the checkers that watch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.core.membership.membership import Membership
from dispatcher.sim.checkers import make_checkers
from dispatcher.sim.faults import Faults
from dispatcher.sim.faults.operators import decide_stops, undo_everything
from dispatcher.sim.logs import captured
from dispatcher.sim.queues import keeps_originals
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.world import World

#: Longer than anything may take once faults have ended: two heartbeats, the return grace …
CALM_MS_MAX: Final = 90_000
#: … and all the work, one message at a time: each takes this many ways to Redis and back, and the handling.
WAYS_PER_MESSAGE: Final = 3
#: How often the run looks whether everything is done.
_LOOK_MS: Final = 10
#: A pause when everything is done: acks get proven, and pings come back.
SETTLING_MS: Final = 1_500
#: How long a leader waits for a consumer that died while no dispatcher led.
RETURN_GRACE_MS: Final = 8_000


class SimulatedRun:
    """From the first start to the end, when everything has to be done. `plants`: see Environment."""

    def __init__(self, scenario: RunScenario, *, plants: Sequence[Any] = (), verbose: bool = False) -> None:
        self.world = World(scenario, plants=plants, verbose=verbose)
        self.faults = Faults(self.world)
        self.checkers = make_checkers(self.world)
        self.world.history.watchers = self.checkers
        self._look_at_ms = 0

    def carry_out(self) -> BaseException | None:
        """The whole run. Returns the failure: a Violation, or an exception that no code handled."""
        world, scheduler = self.world, self.world.scheduler
        world.start()
        self.faults.schedule()
        if world.scenario.stops_failed:
            decide_stops(self.faults)
        with captured(world.history):
            scheduler.run(self.faults.over_at_ms, lambda: False)
            if not scheduler.failures:
                self.faults.stop()
                undo_everything(self.faults)
                self._calm_down()
            failure = scheduler.failures[0][1] if scheduler.failures else None
            world.kill()
        return failure

    def _calm_down(self) -> None:
        scheduler = self.world.scheduler
        scheduler.run(scheduler.now_ms + self._calm_ms_max(), self._looks_done)
        if scheduler.failures:
            return
        if not self._all_done():
            for checker in self.checkers:
                checker.not_done()
            return
        scheduler.run(scheduler.now_ms + SETTLING_MS, lambda: False)
        until_ms = scheduler.now_ms + RETURN_GRACE_MS
        is_quiet = False
        while not is_quiet and scheduler.now_ms < until_ms:  # a consumer taken back may make room for another
            scheduler.run(until_ms, self._nobody_is_awaited)
            scheduler.run(scheduler.now_ms + SETTLING_MS, lambda: False)
            is_quiet = self._nobody_is_awaited()
        for checker in self.checkers:
            if not scheduler.failures:
                checker.at_end()

    def _looks_done(self) -> bool:
        """The same as `_all_done`, looked up only now and then: the loop asks whenever time moves."""
        if self.world.scheduler.now_ms < self._look_at_ms:
            return False
        self._look_at_ms = self.world.scheduler.now_ms + _LOOK_MS
        return self._all_done()

    def _calm_ms_max(self) -> int:
        scenario = self.world.scenario
        slowest_ms = max(consumer.work_ms for consumer in scenario.consumers)
        one_ms = WAYS_PER_MESSAGE * 2 * max(scenario.redis_ms) + 2 * slowest_ms
        return CALM_MS_MAX + len(scenario.messages) * one_ms

    def _nobody_is_awaited(self) -> bool:
        lane = self.world.leader_lane()
        if lane is None or not lane.is_complete():  # it still asks the consumers what Redis has forgotten
            return False
        if lane.state.feature(Membership).liveness.missing or lane.state.parking:
            return False
        return not lane.state.stale_owners

    def _all_done(self) -> bool:
        world, names = self.world, self.world.names
        if not world.producer.finished or not world.history.all_over():
            return False
        if any(consumer.is_busy for consumer in world.consumers):  # perhaps with what has expired meanwhile
            return False
        queues = [world.broker.queues[name] for name, _, _ in world.scenario.inbounds]
        queues += [queue for name, queue in world.broker.queues.items() if keeps_originals(names, name)]
        control = world.broker.queues.get(names.control)
        if any(queue.ready_count() or queue.unacked_count for queue in queues):
            return False
        lane = world.leader_lane()
        return lane is not None and control is not None and not control.ready_count() + control.unacked_count
