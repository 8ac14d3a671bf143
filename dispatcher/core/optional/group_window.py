"""How many messages of a group may be out at once: a slow or stuck group leaves its consumer to others.

It works as a TCP sender does, with messages instead of segments (RFC 5681). A group begins with a small
window. *Slow start*: each message that is settled quickly lets one more out. A message is quick if it was out
for at most `QUICK_MS` longer than one and a half times what a message of the group takes that is out alone,
on its way and at its consumer (as in TCP Vegas, RFC 6297: what it is out for beyond that it has spent
waiting). The first one that is not ends slow start and shrinks the window; from then on it grows by one a
round, and shrinks at most once a round. So of a group there waits about as much at its consumer as that does
in `QUICK_MS`. One in hand and one on its way are out at least. *Time-out*: if nothing of it is settled for
four times as long as usual, its window is one, and slow start begins again with the next settle, up to half
of the former window.

Only a window that was full grows (RFC 7661): what a group doesn't use says nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.core.events import CopiesConfirmed
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.holds import HoldKind
from dispatcher.core.model import NEVER_FULL, Consumer, Group, Original
from dispatcher.core.options import LaneOptions
from dispatcher.core.state import LaneState

#: So much work of a group may wait at its consumer.
QUICK_MS: Final = 100
#: A message is not quick if it was out for so many times as long as one that is out alone, and `QUICK_MS`.
TIMES_ALONE: Final = 1.5
#: A window shrinks no further while something is settled: one message in hand, one on its way.
LEAST: Final = 2
#: A group stands still when nothing of it was settled for so many times the usual time between two settles.
TIMES_USUAL: Final = 4
#: How often the lane looks for groups that stand still.
LOOK_MS: Final = 100
#: Weight of the latest sample in a smoothed time (RFC 6298).
GAIN: Final = 1 / 8


class _Window:
    """A group whose window was full, until it has neither waiting messages nor any in flight."""

    __slots__ = (
        "alone_ms", "first_is_alone", "full_at_ms", "grown_at_ms", "pace_ms", "settled_at_ms", "shrunk_at_ms",
        "threshold",
    )  # fmt: skip

    def __init__(self, now_ms: int) -> None:
        self.full_at_ms = now_ms  # when it was last full
        self.grown_at_ms = now_ms  # after slow start it grows by what was handed over since then …
        self.shrunk_at_ms = now_ms  # … and shrinks by what was handed over since then
        self.settled_at_ms = now_ms
        self.pace_ms = float(QUICK_MS)  # between two settles, smoothed
        self.threshold = NEVER_FULL  # slow start ends at this window
        self.first_is_alone = True  # the next message to be settled was handed over when nothing else was out
        self.alone_ms = 0.0  # for how long such a message is out, smoothed

    def note_alone(self, out_ms: int) -> None:
        """A message that was out alone took this time. One that hung says little of those to come."""
        self.first_is_alone = False
        gain = GAIN if self.alone_ms else 1
        self.alone_ms += gain * (min(out_ms, 2 * self.alone_ms + QUICK_MS) - self.alone_ms)

    def quick_ms(self, way_ms: float) -> float:
        """A message is quick that was out for at most this time. `way_ms`: until a copy is confirmed."""
        return QUICK_MS + 2 * way_ms + TIMES_ALONE * self.alone_ms


class GroupWindows(Feature):
    """The windows of one lane's groups."""

    @staticmethod
    def are_adapted(options: LaneOptions) -> bool:
        """Whether the lane has windows, and they change."""
        window = options.group_window
        return window is not None and window.most != window.initial

    def __init__(self, state: LaneState) -> None:
        window = state.options.group_window
        assert window is not None
        self._state = state
        self._initial = window.initial
        self._most = window.most if window.most is not None else NEVER_FULL
        self._windows: dict[Group, _Window] = {}
        self._settled: dict[Group, None] = {}  # in this step
        self.pending = (self._windows,)
        self._look_at_ms = 0
        self._way_ms = 0.0  # until RabbitMQ has confirmed a copy, smoothed
        self._confirmed = 0  # copies, since this leader's start
        self._sample: tuple[int, int] | None = None  # (confirmed copies, time) of the copy that is timed
        state.on_hold[HoldKind.WINDOW_FULL] = lambda group, _: self._is_full(group)
        state.signals.full_while_parked.append(self._is_full)
        state.signals.settling.append(self._settle)
        state.signals.goes_soon.append(self._goes_soon)
        state.signals.stands_still.append(self._stands_still)

    def events(self) -> Mapping[type, Handler]:
        return {CopiesConfirmed: self._confirm}

    def _is_full(self, group: Group) -> None:
        now_ms = self._state.now_ms
        window = self._windows.get(group)
        if window is None:
            self._windows[group] = _Window(now_ms)
        else:
            window.full_at_ms = now_ms
        if self._sample is None and self._state.unconfirmed:
            self._sample = (self._confirmed + self._state.unconfirmed, now_ms)

    def _confirm(self, event: CopiesConfirmed) -> None:
        self._confirmed += event.count
        if self._sample is not None and self._confirmed >= self._sample[0]:
            gain = GAIN if self._way_ms else 1
            took_ms = min(self._state.now_ms - self._sample[1], 2 * self._way_ms + QUICK_MS)
            self._way_ms += gain * (took_ms - self._way_ms)
            self._sample = None

    def _settle(self, _: Consumer, messages: list[Original]) -> None:
        windows = self._windows
        if not windows:
            return
        now_ms = self._state.now_ms
        for message in messages:
            group = message.group
            if group is not None and (window := windows.get(group)) is not None and message.dispatched_at_ms:
                self._adapt(group, window, message.dispatched_at_ms, now_ms)

    def _adapt(self, group: Group, window: _Window, out_since_ms: int, now_ms: int) -> None:
        """A message of it is settled, which was out since then."""
        if group not in self._settled:
            self._settled[group] = None
            window.pace_ms += GAIN * (now_ms - window.settled_at_ms - window.pace_ms)
            window.settled_at_ms = now_ms
            # Only of a small window: a consumer that settles in batches may have kept it for the others.
            if window.first_is_alone and (group.window <= LEAST or not window.alone_ms):
                window.note_alone(now_ms - out_since_ms)
        quick_ms = window.quick_ms(self._way_ms)
        if now_ms - out_since_ms <= quick_ms:
            if group.window < window.threshold:
                grows = out_since_ms <= window.full_at_ms
            else:
                changed_at_ms = max(window.grown_at_ms, window.shrunk_at_ms)
                grows = changed_at_ms <= out_since_ms <= window.full_at_ms
                if grows:
                    window.grown_at_ms = now_ms
            if grows and group.window < self._most:
                group.window += 1
        elif out_since_ms >= window.shrunk_at_ms or window.threshold == NEVER_FULL:
            window.shrunk_at_ms = now_ms
            fitting = int(group.window * quick_ms / (now_ms - out_since_ms))
            least = min(LEAST, self._initial)
            group.window = window.threshold = max(least, group.window // 2, fitting)

    def _goes_soon(self, group: Group) -> bool:
        """It is in slow start: its messages don't wait for long."""
        window = self._windows.get(group)
        return window is not None and 1 < group.window < window.threshold

    def _stands_still(self, group: Group) -> bool:
        window = self._windows.get(group)
        return window is not None and group.in_flight > 0 and self._is_late(window)

    def _is_late(self, window: _Window) -> bool:
        """Nothing was settled for longer than usual."""
        still_ms = max(QUICK_MS + 2 * self._way_ms, TIMES_USUAL * window.pace_ms)
        return self._state.now_ms - window.settled_at_ms > still_ms

    def before_pass(self) -> None:
        state = self._state
        for group in self._settled:
            if not group.in_flight and (window := self._windows.get(group)) is not None:
                window.first_is_alone = True
            state.relist_backlogs(group)
        self._settled.clear()
        if state.now_ms >= self._look_at_ms:
            self._look_at_ms = state.now_ms + LOOK_MS
            self._look()

    def _look(self) -> None:
        """Find groups that stand still, and forget those that need no window."""
        now_ms = self._state.now_ms
        for group, window in list(self._windows.items()):
            if not group.in_flight:
                if group.backlogs is None:
                    group.window = self._initial
                    del self._windows[group]
                window.settled_at_ms = now_ms
            elif group.window > 1 and self._is_late(window):
                window.threshold = max(LEAST, group.window // 2)
                window.shrunk_at_ms = now_ms  # messages in flight tell nothing of those to come
                group.window = 1
                self._state.relist_backlogs(group)
                self._state.counters["groups_stalled"] += 1

    def next_deadline_ms(self) -> int | None:
        return self._look_at_ms
