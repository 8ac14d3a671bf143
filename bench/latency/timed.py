"""A dispatcher that notes when each message passes: `python -m bench.latency.timed FILE run …`.

FILE gets of each message its number and, in ns, when it was sent (as its body says), read, decided, committed
and written to the link, which hands it to the socket at the next turn of the loop.
"""

from __future__ import annotations

import atexit
import json
import sys
from pathlib import Path
from time import monotonic_ns
from typing import Any

from bench.relay.load import number_and_time
from dispatcher.amqp.events import Delivery
from dispatcher.cli import main
from dispatcher.core.records import Dispatched
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.session import Session
from dispatcher.service.ticks import Tick


class TimedSession(Session):
    """Of one inbound queue: its deliveries count up from 1 on one channel."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.passed: dict[int, list[int]] = {}  # by delivery tag
        self._undecided: list[list[int]] = []

    def receive(self, events: list[Any]) -> None:
        now_ns, inbound = monotonic_ns(), self._channels.inbound_index
        for event in events:
            if type(event) is Delivery and event.channel in inbound:
                times = self.passed[event.tag] = [*number_and_time(event.body), now_ns]
                self._undecided.append(times)
        super().receive(events)

    def _tick(self) -> None:
        super()._tick()
        now_ns = monotonic_ns()
        for times in self._undecided:
            times.append(now_ns)
        self._undecided.clear()

    def _finish(self, tick: Tick) -> None:
        now_ns = monotonic_ns()
        copies = [action for action in tick.effects.actions if type(action) is Dispatched]
        super()._finish(tick)
        written_ns = monotonic_ns()
        for copy in copies:
            times = self.passed[copy.message.tag]
            if len(times) == _DECIDED:
                times += (now_ns, written_ns)


#: A message that has come so far has a number, and was sent, read and decided.
_DECIDED = 4


def run(file: Path) -> None:
    """The dispatcher, with the arguments that the process has."""
    sessions: list[TimedSession] = []

    def opened(*given: Any, **named: Any) -> TimedSession:
        sessions.append(TimedSession(*given, **named))
        return sessions[-1]

    def write() -> None:
        file.write_text(json.dumps([times for session in sessions for times in session.passed.values()]))

    LaneRunner.session_type = staticmethod(opened)  # type: ignore[assignment]
    atexit.register(write)
    main()


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
