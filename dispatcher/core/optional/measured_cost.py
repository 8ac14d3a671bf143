"""How much work messages are, measured: for fair shares of it (`cost`) and for new groups (`placement`).

A settle tells how long its consumer was busy with what it names: since the settle before, or since the first
of them was handed over if that is later. What several messages took more or less than expected is divided in
proportion to what each kind was expected to take, so that kinds that are settled together are told apart
(proportionate normalised least mean squares; for one kind it is the moving average). Nothing else is known
of a consumer that works on several at a time: what counts is how soon it is free again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import log2
from typing import Final

from dispatcher.core.feature import Feature
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Consumer, Original
from dispatcher.core.options import Cost
from dispatcher.core.placement import Pool
from dispatcher.core.state import LaneState

#: Weight of the latest settle: a change is followed within some ten of them.
RATE: Final = 0.2
#: A settle counts for at most so many times what was expected: its consumer may have been stopped for hours.
SURPRISE_MAX: Final = 10
#: No message costs more than so many average ones, or a queue that was mistaken for an expensive one would
#: hardly get the chance to show that it is not.
COST_RATIO_MAX: Final = 100
#: A message costs at least this, in ms; nothing is free.
WORK_MS_MIN: Final = 0.001
#: Types are whatever producers write; those beyond count as one.
KINDS_MAX: Final = 1_000
#: Consumers within about 4 % of each other count as equally busy; and there are few levels.
LEVELS_PER_DOUBLING: Final = 16

Kind = tuple[int, bytes | None]


class MeasuredInbound(Inbound):
    """An inbound queue whose messages cost what `cost_of` finds now."""

    __slots__ = ("cost_of",)

    def __init__(self, plain: Inbound, pool: Pool, cost_of: Callable[[Original], int]) -> None:
        super().__init__(plain.index, plain.name, plain.weight, plain.window, pool)
        self.ungrouped = plain.ungrouped
        self.cost_of = cost_of

    def head(self) -> Original | None:
        message = super().head()
        if message is not None:
            message.cost = self.cost_of(message)
        return message


class _Pace:
    """How fast a consumer is."""

    def __init__(self) -> None:
        self.settled_at_ms = 0  # when it last said that it had done something …
        self.work_ms: float | None = None  # … and what a message takes it


class MeasuredWork(Feature):
    """What messages of a queue and type take, and consumers for any. All in ms."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        known = state.options.known_work
        messages = sum(each.messages for each in known)
        self._mean_ms: float | None = None
        if messages:
            self._mean_ms = sum(each.mean_ms * each.messages for each in known) / messages
        self.kinds_ms: dict[Kind, float] = {
            (each.inbound, each.kind): max(WORK_MS_MIN, each.mean_ms) for each in known
        }
        self._done: dict[Consumer, list[Original]] = {}  # in this step
        self.pending = (self._done,)
        state.signals.settling.append(self.done)
        if state.options.placement_is_measured:
            state.pool.level_of, state.pool.counts_messages = self.level, True
        if state.options.cost is Cost.MEASURED:
            state.signals.dispatching.append(self._set_cost)
            for index, plain in enumerate(state.inbounds):
                state.inbounds[index] = MeasuredInbound(plain, state.pool, self.cost_us)

    def _set_cost(self, message: Original) -> None:
        """A message of a batch need not have been its queue's head."""
        message.cost = self.cost_us(message)

    def done(self, consumer: Consumer, messages: list[Original]) -> None:
        """A consumer has settled these messages."""
        ours = [message for message in messages if message.dispatched_at_ms]  # not a former leader's
        if ours:
            self._done.setdefault(consumer, []).extend(ours)

    def before_pass(self) -> None:
        """Learn from the settles of this step."""
        now_ms = self._state.now_ms
        for consumer, messages in self._done.items():
            pace = consumer.note(_Pace)
            since_ms = max(pace.settled_at_ms, min(m.dispatched_at_ms for m in messages))
            pace.settled_at_ms = now_ms
            self._learn(pace, messages, max(0, now_ms - since_ms))
        for consumer in self._done:
            self._state.pool.level_changed(consumer)
        self._done.clear()

    def cost_us(self, message: Original) -> int:
        """The expected work of a message, in µs; before anything is known all are alike."""
        if self._mean_ms is None:
            return 1_000
        work_ms = self.kinds_ms.get(self._kind(message), self._mean_ms)
        return max(1, round(1_000 * min(work_ms, COST_RATIO_MAX * self._mean_ms)))

    def level(self, consumer: Consumer) -> int:
        """How much work one more message is for this consumer, on a scale of LEVELS_PER_DOUBLING."""
        each_ms = consumer.note(_Pace).work_ms or self._mean_ms or 1.0
        held = 1 + len(consumer.groups) + len(consumer.in_flight)
        return int(LEVELS_PER_DOUBLING * log2(1_000 * each_ms * held + 1))

    def _kind(self, message: Original) -> Kind:
        kind = (message.inbound, message.kind)
        if kind in self.kinds_ms or len(self.kinds_ms) < KINDS_MAX:
            return kind
        return message.inbound, None

    def _learn(self, pace: _Pace, messages: list[Original], busy_ms: int) -> None:
        each_ms = max(WORK_MS_MIN, busy_ms / len(messages))
        pace.work_ms = _moved(pace.work_ms, each_ms)
        self._mean_ms = _moved(self._mean_ms, each_ms)
        counts = Counter(self._kind(message) for message in messages)
        work_ms = {kind: self.kinds_ms.get(kind, each_ms) for kind in counts}
        expected_ms = sum(count * work_ms[kind] for kind, count in counts.items())
        unexpected_ms = min(busy_ms, SURPRISE_MAX * expected_ms) - expected_ms
        weight = sum(count * count * work_ms[kind] for kind, count in counts.items())
        for kind, count in counts.items():
            learnt_ms = RATE * unexpected_ms * count * work_ms[kind] / weight
            self.kinds_ms[kind] = max(WORK_MS_MIN, work_ms[kind] + learnt_ms)


def _moved(average_ms: float | None, latest_ms: float) -> float:
    if average_ms is None:
        return latest_ms
    return average_ms + RATE * (min(latest_ms, SURPRISE_MAX * average_ms) - average_ms)
