"""Once faults stop, everything is done within a bounded time."""

from __future__ import annotations

from dispatcher.core.views.views import Views
from dispatcher.core.waiting import count_waiting
from dispatcher.sim.checkers.checker import Checker


class LivenessChecker(Checker):
    name = "liveness"

    def not_done(self) -> None:
        world = self.world
        history = world.history
        history.all_over()
        open_lives = [life for life in history.lives.values() if not history.is_over(life)]
        queues = [q for q in world.broker.queues.values() if q.ready_count() or q.unacked_count]
        runners = [machine.runner for machine in world.dispatchers if machine.runner is not None]
        states = [f"{runner.state.value} ({runner.problem})" for runner in runners]
        text = f"{len(open_lives)} messages are not over: {open_lives[:2]}; queues {queues}; {states}"
        lane = world.leader_lane()
        if lane is not None:
            text += f"; {list(lane.state.by_uuid.values())}"
            for group in list(lane.state.groups.values())[:3]:
                text += f"; {group} owner={group.owner} unresolved={group.unresolved}"
                text += f" waits={count_waiting(group)}"
            text += f"; {Views(lane.state).status()}"
        self.violate(text)
