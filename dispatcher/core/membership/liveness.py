"""Which consumers are there: pings, missing heartbeats, queues that are gone or take nothing more.

A consumer queue exists exactly as long as its connection. When it is seen to be gone, the incarnation is
LOST, and after the grace a marker goes through the control queue. A queue that refuses a copy (a policy
with `reject-publish`, say) is there and full: its consumer is REFUSING, keeps all that it has, and is asked
to join again, at growing intervals, until there is room.
"""

from __future__ import annotations

from typing import Final

from dispatcher.core.consumer_life import PRESENT, REACHABLE, ConsumerState
from dispatcher.core.forwarding.rules import may_be_reclaimed
from dispatcher.core.holds import HoldKind
from dispatcher.core.model import Consumer
from dispatcher.core.notices import send_notice
from dispatcher.core.orders import PublishMarker
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import TYPE_PING, TYPE_REJOIN

#: A consumer that has to be pinged within a quarter of a liveness interval is pinged with the others:
#: rounds are at least so far apart.
PINGED_TOGETHER_PART: Final = 4
#: After a take-over a consumer whose connection went with the broker may take this long to return (G-6).
RETURN_GRACE_MS_MIN: Final = 5_000
#: Missing this many heartbeats, a consumer gets no new groups.
FROZEN_AFTER_HEARTBEATS: Final = 3
#: Before a consumer whose queue was full gets something again: longer with each refusal, until it settles
#: something. A queue that is too small for good must not keep broker and dispatcher busy.
REFUSAL_PAUSE_MS_MIN: Final = 500
REFUSAL_PAUSE_MS_MAX: Final = 10_000


class Liveness:
    """The state of each consumer's queue and connection, and the probes to learn it."""

    def __init__(self, state: LaneState, reports: ConsumerReports) -> None:
        self._state = state
        self._reports = reports
        self.lost: dict[Consumer, None] = {}  # LOST and MARKED
        self.refusing: dict[Consumer, None] = {}
        self.wakes_at_ms = 0
        self._return_until_ms = 0
        self._grant_return()

    def _grant_return(self) -> None:
        grace_ms = max(self._state.options.reconnect_grace_ms, RETURN_GRACE_MS_MIN)
        self._return_until_ms = max(self._return_until_ms, self._state.now_ms + grace_ms)

    # -- what becomes of a consumer --

    def queue_gone(self, queue: str) -> None:
        """A return counts only if the queue is the incarnation's present one."""
        consumer = self._state.by_queue.get(queue)
        if consumer is None or consumer.state not in PRESENT:
            return
        grace_ms = self._state.options.reconnect_grace_ms
        until_ms = self._state.now_ms + grace_ms
        # Its connection may have gone with the broker. But if another process has its id, it has ended.
        if consumer.state is ConsumerState.EXPECTED and consumer.waiting is None:
            until_ms = max(until_ms, self._return_until_ms)
        self.refusing.pop(consumer, None)
        consumer.become(ConsumerState.LOST)
        consumer.lost_until_ms = until_ms
        self.lost[consumer] = None
        self._state.pool.discard(consumer)
        self._state.counters["consumers_lost"] += 1
        self._state.log_event("consumer_lost", consumer=consumer.id, in_flight=len(consumer.in_flight))

    def successor_waits(self, consumer: Consumer) -> None:
        """Another incarnation of its id has asked to join: so it is given no more time than
        `reconnect_grace`, also after a take-over."""
        if consumer.state is ConsumerState.LOST:
            until_ms = self._state.now_ms + self._state.options.reconnect_grace_ms
            consumer.lost_until_ms = min(consumer.lost_until_ms, until_ms)
        elif consumer.state in PRESENT:
            self.ping(consumer)

    def mark(self, consumer: Consumer) -> None:
        """It is to be taken back: publish the marker behind which its word counts no more."""
        self.refusing.pop(consumer, None)
        self.lost[consumer] = None
        self._state.pool.discard(consumer)
        if consumer.state is not ConsumerState.MARKED:
            consumer.become(ConsumerState.MARKED)
            self._state.effects.actions.append(PublishMarker(consumer.uuid, consumer.n))

    def queue_refused(self, queue: str) -> None:
        """A nack: the queue exists and did not take a copy, mostly because it is full.

        Its consumer gets nothing for a while and is then asked to join again; messages that it misses are
        sent again.
        """
        consumer = self._state.by_queue.get(queue)
        if consumer is None:
            return
        consumer.ping_unanswered = False
        if consumer.state not in REACHABLE:
            return
        consumer.become(ConsumerState.REFUSING)
        consumer.refused_n = consumer.n
        self._pause(consumer)
        self.refusing[consumer] = None
        self._state.pool.discard(consumer)
        self._state.counters["consumers_refused"] += 1
        self._state.log_event(
            "consumer_refused", consumer=consumer.id, in_flight=len(consumer.in_flight),
            pause_ms=consumer.refused_until_ms - self._state.now_ms,
        )  # fmt: skip

    def _pause(self, consumer: Consumer) -> None:
        pause_ms = min(REFUSAL_PAUSE_MS_MIN << consumer.refusals, REFUSAL_PAUSE_MS_MAX)
        consumer.refusals = min(consumer.refusals + 1, 10)
        consumer.refused_until_ms = self._state.now_ms + pause_ms

    def must_pause(self, consumer: Consumer) -> bool:
        """It has joined again, but its queue was full a moment ago."""
        return consumer.state is ConsumerState.REFUSING and self._state.now_ms < consumer.refused_until_ms

    def found(self, consumer: Consumer) -> None:
        """It has joined: forget former doubts about it."""
        if consumer.state not in (ConsumerState.LIVE, ConsumerState.LEAVING):
            consumer.become(consumer.resumes_as)
        consumer.last_heard_ms = self._state.now_ms
        self.forget(consumer)

    def forget(self, consumer: Consumer) -> None:
        self.lost.pop(consumer, None)
        self.refusing.pop(consumer, None)

    def publishers_blocked(self, blocked: bool) -> None:
        """The broker reads nothing from connections that publish: no settle, join or heartbeat of a consumer
        either. Meanwhile a consumer's silence means nothing, and all time limits begin again afterwards.
        """
        state = self._state
        state.lane_holds.set(HoldKind.PUBLISHERS_BLOCKED, stands=blocked)
        if blocked:
            return
        self._reports.wait()
        self._grant_return()
        state.patience_from_ms = state.now_ms
        for consumer in state.by_uuid.values():
            consumer.last_heard_ms = state.now_ms
        for consumer in self.lost:
            until_ms = state.now_ms + state.options.reconnect_grace_ms
            consumer.lost_until_ms = max(consumer.lost_until_ms, until_ms)

    @property
    def missing(self) -> int:
        """How many consumers have to join again, or will be taken back."""
        return len(self.lost) + len(self.refusing)

    # -- time --

    def next_deadline_ms(self) -> int | None:
        if not self._state.by_uuid or self._state.lane_holds.publishers_blocked:
            return None
        if not self.lost and not self.refusing:
            return self.wakes_at_ms
        lost = (c.lost_until_ms for c in self.lost if self._is_given_up(c))
        return min([self.wakes_at_ms, *lost, *(c.refused_until_ms for c in self.refusing)])

    def _is_given_up(self, consumer: Consumer) -> bool:
        """Whether it is taken back when its time has passed."""
        may_go = consumer.depth is None or may_be_reclaimed(self._state, consumer)
        return consumer.state is ConsumerState.LOST and may_go

    def run_timers(self) -> list[Consumer]:
        """Returns those that joined again after their queue was full, and may get something now."""
        now_ms = self._state.now_ms
        if self._state.lane_holds.publishers_blocked:
            return []
        for consumer in list(self.lost):
            if self._is_given_up(consumer) and consumer.lost_until_ms <= now_ms:
                self.mark(consumer)
        if now_ms >= self.wakes_at_ms:
            self.wakes_at_ms = now_ms + self._state.options.liveness_interval_ms
            for consumer in self._state.by_uuid.values():
                self._look_after(consumer, now_ms)
            self._state.ignored_settles.log_event()
        return self._run_pauses(now_ms) if self.refusing else []

    def _run_pauses(self, now_ms: int) -> list[Consumer]:
        over = [consumer for consumer in self.refusing if consumer.refused_until_ms <= now_ms]
        for consumer in over:
            if consumer.n == consumer.refused_n:
                self._pause(consumer)
                send_notice(self._state, consumer, TYPE_REJOIN)
        return [consumer for consumer in over if consumer.n > consumer.refused_n]

    def _look_after(self, consumer: Consumer, now_ms: int) -> None:
        """Ping it if it has messages, or is silent, and got nothing meanwhile; notice missing heartbeats."""
        if consumer.depth is not None:  # it says nothing: its queue is looked at
            return
        options = self._state.options
        silent_ms = now_ms - consumer.last_heard_ms
        is_silent = silent_ms > 2 * options.heartbeat_ms
        if (
            (consumer.in_flight or consumer.groups or is_silent)
            and consumer.state in PRESENT
            and not consumer.ping_unanswered
        ):
            self._ping_in_time(consumer, now_ms)
        if (
            consumer.state is ConsumerState.LIVE
            and silent_ms > FROZEN_AFTER_HEARTBEATS * options.heartbeat_ms
        ):
            consumer.become(ConsumerState.FROZEN)
            self._state.pool.discard(consumer)
            self._state.counters["consumers_frozen"] += 1
            self._state.warn("consumer_frozen", consumer=consumer.id, silent_ms=silent_ms)

    # -- pings --

    def _ping_in_time(self, consumer: Consumer, now_ms: int) -> None:
        """Now, or in a round that comes before a liveness interval has passed since it got something."""
        interval_ms = self._state.options.liveness_interval_ms
        due_at_ms = consumer.last_sent_ms + interval_ms
        if due_at_ms - now_ms <= interval_ms // PINGED_TOGETHER_PART:
            self.ping(consumer)
        else:
            self.wakes_at_ms = min(self.wakes_at_ms, due_at_ms)

    def ping(self, consumer: Consumer) -> None:
        """Ask RabbitMQ whether its queue is there."""
        if consumer.depth is not None:  # that of a hand-over consumer always is
            return
        consumer.last_sent_ms = self._state.now_ms
        consumer.ping_unanswered = True
        send_notice(self._state, consumer, TYPE_PING)
