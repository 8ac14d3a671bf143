"""One leadership of one lane on one connection: from the fence to the loss of either.

Reads, decisions, the journal commit and writes are batched per wake-up. Incoming events are gathered; a tick
hands them to the core; the commit goes to Redis; when Redis has answered, the tick's actions are carried
out. Several ticks may be under way, and are finished in their order. Any loss of the connection or the
fence ends the session with everything it remembers: the next one recovers from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import structlog

from dispatcher.alarm import Alarm
from dispatcher.amqp.events import (
    Blocked,
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConsumerCancelled,
    Delivery,
    Returned,
    Unblocked,
)
from dispatcher.amqp.link import Link
from dispatcher.core.effects import Effects
from dispatcher.core.events import (
    CommandReceived,
    Event,
    MessagesArrived,
    PublishersBlocked,
    QueueReturned,
)
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions
from dispatcher.core.orders import Reply
from dispatcher.core.views.views import Views
from dispatcher.errors import (
    BrokerUnavailable,
    CommandRefused,
    DispatcherError,
    Fenced,
    InvalidTransition,
    NoAnswer,
)
from dispatcher.http.views import Buckets, LaneSample
from dispatcher.ledger.recorder import Recorder
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.channels import Channels
from dispatcher.service.clock import Clock
from dispatcher.service.control_inbox import ControlInbox
from dispatcher.service.dead_letter_count import DeadLetterCount
from dispatcher.service.durations import MessageDurations
from dispatcher.service.forwarding import ForwardingQueues
from dispatcher.service.group_history import GroupHistory
from dispatcher.service.group_listings import GroupListings
from dispatcher.service.history import History
from dispatcher.service.inbound_feed import InboundFeed
from dispatcher.service.message_preview import preview
from dispatcher.service.message_reader import MessageReader, by_queue
from dispatcher.service.operators import Operators, ReloadCall
from dispatcher.service.original_acks import OriginalAcks
from dispatcher.service.outbox import Outbox
from dispatcher.service.parking_feeds import DEFINED_S, FORMER_S, ParkingFeeds
from dispatcher.service.parking_probe import OpenProbe, ParkingProbe
from dispatcher.service.publications import Relay
from dispatcher.service.publish_bisect import BLAMES_A_PUBLISH, BisectState, ended_over_a_publish
from dispatcher.service.replicas import Replicas
from dispatcher.service.ticks import Tick, Ticks
from dispatcher.service.transfer_targets import TransferTargets
from dispatcher.settings import LaneSettings, SequenceCheck
from dispatcher.wire.group_text import parse_group
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: What a stop waits for Redis and the last acks.
DRAIN_S: Final = 2.0
DRAIN_POLL_S: Final = 0.005
#: How long a command of this process waits for Redis.
ANSWER_S: Final = 10.0


class Session:
    """Leads a lane until the connection or the fence is lost. `ended` holds why."""

    dead_letters_type: type[DeadLetterCount] = DeadLetterCount
    #: How long a new parking queue waits before it is used.
    defined_s: float = DEFINED_S
    #: How long one that a former leader was reading may wait for that one's end.
    former_s: float = FORMER_S

    def __init__(
        self,
        lane: LaneSettings,
        names: LaneNames,
        link: Link,
        channels: Channels,
        store: LaneStore,
        clock: Clock,
        recorder: Recorder,
        bisect_state: BisectState,
        replicas: Replicas,
        reload: ReloadCall | None = None,
        user: str | None = None,
        answer: Callable[[Reply], None] | None = None,
        *,
        open_probe: OpenProbe,
    ) -> None:
        self._open_probe = open_probe
        self._settings = lane
        self._names = names
        self._link = link
        self._channels = channels
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._ticks = Ticks(store, recorder, finish=self._finish, go_on=self._schedule, fail=self.end)
        self._tick_scheduled = self._restoring = False
        self._durations = MessageDurations()
        self._alarm = Alarm(self._call_later, partial(self._if_alive, self._wake))
        self._step_due_ms: int | None = None  # the core's next deadline, as of the latest step
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.dead_letters = self.dead_letters_type(link, names)
        self.since_ms = clock.now_ms()
        #: What the next session must know of publishes over which RabbitMQ ended a connection.
        self._bisect_before, self.bisect_state = bisect_state, bisect_state._replace(candidates=frozenset())
        self._replicas = replicas
        self._reload = reload
        self._answer = answer  # None: on the connection that the lane is led through
        self._user = user  # whom RabbitMQ takes us for; None: its name is not known

    # -- life --

    def begin(
        self, lane: Lane, lane_epoch: int, feeds: list[InboundFeed], *, redis_complete: bool,
        misleading: Collection[bytes],
    ) -> None:  # fmt: skip
        """Start with a core that has been loaded; what arrived meanwhile is taken in. `misleading`: see
        `InboundFeed`."""
        self.lane = lane
        self._known_complete = redis_complete
        self.views = Views(
            lane.state, preview, lambda inbound: feeds[inbound].settled_unacked(self._clock.now_ms())
        )
        self.listings = GroupListings(self.views)
        self._history_of_groups = GroupHistory(self._clock.now_ms, self._consumer_of)
        self._feeds = feeds
        self._reader = MessageReader(
            self._settings, self._recorder, lane_epoch=lane_epoch, frame_max=self._link.frame_max,
            now_ms=self._clock.now_ms, names=self._names, user=self._user,
        )  # fmt: skip
        parking = lane.state.options.parking_queues
        self._parking = ParkingFeeds(
            self._link, parking, self._names, self._channels, self._reader,
            quorum=not all(inbound.replaceable for inbound in lane.state.inbounds),
            probe=ParkingProbe(self._open_probe, self._names, self._link), defined_s=self.defined_s,
            former_s=self.former_s, misleading=misleading, report=self.report, fail=self.end,
        )  # fmt: skip
        self._originals = OriginalAcks(feeds, self._parking)
        relay = Relay(
            self._link, self._names, lane_epoch, self._settings.first_header,
            tuple(inbound.queue for inbound in self._settings.inbound), parking, self._settings.handover,
        )  # fmt: skip
        self._forwarding = ForwardingQueues(
            self._link, self._names, self._channels, self._settings, report=self.report, fail=self.end
        )
        # Through an exchange of others they may come back: then they say that they were here.
        signs = self._user if self._settings.dedup or self._keeps_place() else None
        self._targets = TransferTargets(relay, self._bisect_before.transfers, signs, report=self.report)
        self._history = History(
            relay, self._channels, feeds, lane.state.counters, sent_back=self._reader.sent_back, fail=self.end
        )  # fmt: skip
        self._outbox = Outbox(
            relay, self._channels.publish, self._bisect_before, self._recorder, ack=self._originals.settle,
            on_window=lambda inbound, originals: feeds[inbound].set_window(originals), report=self.report,
            on_parking=self._parking.perform, on_target=self._targets.perform, later=self._later,
            on_forwarding=self._forwarding.perform, bundle_limits=lane.state.bundle_limits,
            answer=self._answer,
        )  # fmt: skip
        self._operators = Operators(
            self.views, self._outbox, self._clock, listings=self.listings, describe=self._describe,
            why=self.why, commands=lane.commands, reload=self._reload,
        )  # fmt: skip
        self._control = ControlInbox(
            self._names, self._link, self._channels, self._outbox, self._operators, lane.state.counters,
            strict_identity=self._settings.strict_identity,
            is_consumers=lambda queue: queue in lane.state.by_queue,
        )  # fmt: skip
        self._commit(lane.start(self._clock.now_ms()))
        self._schedule()

    def _keeps_place(self) -> bool:
        return self._settings.history is not None or self._settings.sequence_check is not SequenceCheck.OFF

    async def command(self, name: str, arguments: dict[str, Any], uuid: str, user: str) -> dict[str, Any]:
        """Have an operator's command done that came another way than through the command queue. Raises
        CommandRefused, NoAnswer."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self.report(CommandReceived(answer, uuid, name, arguments, user))
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await answer
        except TimeoutError:
            raise NoAnswer(f"{name} may be done, or may yet be done: ask again with this uuid") from None
        if reply.error is not None:
            raise CommandRefused(reply.error)
        return reply.result

    def reconfigure(self, options: LaneOptions) -> None:
        """Go on with other weights and timeouts; see Lane.reconfigure."""
        self.lane.reconfigure(options)
        self._schedule()

    def end(self, reason: BaseException | None) -> None:
        """Stop: `ended` yields the reason. This session sends nothing more."""
        self._alarm.cancel()
        self._ticks.stop()
        self.leave()
        if self.ended.done():
            return
        if reason is None:  # on purpose
            self.ended.set_result(None)
        else:
            self.ended.set_exception(reason)

    def leave(self) -> None:
        """Whatever comes of the session: nothing of it goes on in the background."""
        self._parking.close()
        self._forwarding.close()
        self._targets.close()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._if_alive, act)

    def _if_alive(self, act: Callable[[], None]) -> None:
        if not self.ended.done():
            try:
                act()
            except Exception as failure:
                self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        """A step may be half done: end the session, and the lane starts afresh from the committed state."""
        if isinstance(failure, InvalidTransition) or not isinstance(failure, DispatcherError):
            log.error("lane_failed", lane=self._names.lane, exc_info=failure)
        self.end(failure)

    # -- events of the connection --

    def receive(self, events: list[Any]) -> None:
        """All that one read of the connection brought."""
        try:
            self._receive(events)
        except Exception as failure:
            self._fail(failure)

    def _receive(self, events: list[Any]) -> None:
        deliveries, others = by_queue(events, self._channels.inbound_index)
        for event in others:
            if self.ended.done():
                break
            kind = type(event)
            if kind is Delivery:
                if not self._forwarding.receive(event):
                    # What can't be answered came together with the end of the connection, which is next.
                    with contextlib.suppress(BrokerUnavailable):
                        self._control.receive(event, self._events)
            elif kind is Confirmed and event.channel == self._channels.publish:
                self._outbox.answered(event, self._events)
            elif not (self._history.receive(event) or self._targets.receive(event, self._events)):
                self._receive_rare(event)
        if self.ended.done():  # RabbitMQ delivers these again to the next session
            return
        for index, arrived in deliveries.items():
            self._feeds[index].delivered(len(arrived))
            messages = self._reader.messages(index, arrived)
            again = self._feeds[index].delivered_again(messages)
            if again is not None:
                return self.end(again)
            self._history.keep(arrived, messages)
            self._events.append(MessagesArrived(self._feeds[index].in_order(messages)))
        self._schedule()

    def _receive_rare(self, event: Any) -> None:
        match event:
            case Returned():
                self._returned(event.routing_key.decode(errors="replace"))
            case ConsumerCancelled():
                tag = event.consumer_tag.decode()
                self.end(BrokerUnavailable(f"RabbitMQ cancelled our consumer {tag!r}"))
            case ChannelClosed(channel=channel, code=code) if (
                channel == self._channels.publish and code in BLAMES_A_PUBLISH
            ):
                self._reopen_publishing(event)
            case ChannelClosed():
                if event.channel in self._channels.essential:
                    self.end(BrokerUnavailable(f"RabbitMQ closed our channel: {event.code} {event.text}"))
            case ConnectionClosed():
                problem = f"{event.code} {event.text}"
                if ended_over_a_publish(event):
                    self.bisect_state = self._outbox.connection_closed(problem, self._targets.withheld)
                self.end(BrokerUnavailable(f"connection lost: {problem}"))
            case Blocked():
                log.warning("rabbitmq_blocks_publishers", lane=self._names.lane, reason=event.reason)
                self._events.append(PublishersBlocked(True))
            case Unblocked():
                log.info("rabbitmq_unblocked", lane=self._names.lane)
                self._events.append(PublishersBlocked(False))

    def _reopen_publishing(self, closed: ChannelClosed) -> None:
        """Open another channel: with the closed one only the answers to its publishes are lost."""
        problem = f"{closed.code} {closed.text}"
        log.warning("publishing_refused", lane=self._names.lane, problem=problem)
        self._channels.publish = 0
        self._outbox.channel_closed(problem)
        reopen = self._channels.reopen_publishing(self._outbox.use, fail=self.end)
        self._reopening = self._loop.create_task(reopen)

    def _returned(self, queue: str) -> None:
        if self._names.is_ours(queue):
            self.end(
                BrokerUnavailable(f"another program deleted the queue {queue!r}; it will be declared again")
            )
        else:
            self._events.append(QueueReturned(queue))

    # -- ticks --

    def _schedule(self) -> None:
        if not self._tick_scheduled and not self.ended.done():
            self._tick_scheduled = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_scheduled = False
        if self.ended.done() or self._restoring or not self._ticks.has_room():
            return
        try:
            events, self._events = self._events, []
            now_ms = self._clock.now_ms()
            effects, self._step_due_ms = self.lane.step(events, now_ms), self.lane.next_deadline_ms()
            self._durations.decided(effects, now_ms)
            self._commit(effects)
            if not self._known_complete and self.lane.is_complete():
                self._known_complete = True
                self._ticks.confirm_complete()
            if self.lane.checkpoint_is_due():
                self._commit(self.lane.checkpoint())
            self._set_alarm(now_ms)
        except Exception as failure:
            self._fail(failure)

    def _commit(self, effects: Effects) -> None:
        self._ticks.add(effects, self._control.take_read())

    async def decided_is_done(self) -> None:
        """Return once all that the core has decided so far is in Redis and carried out."""
        await self._ticks.all_finished()

    def _finish(self, tick: Tick) -> None:
        try:
            self._history_of_groups.committed(tick.effects)
            self._outbox.perform(tick.effects.actions)
            self._flush_acks()
            self._control.ack(tick.read)
            self._set_alarm(self._clock.now_ms())
        except Exception as failure:
            self._fail(failure)

    def _consumer_of(self, incarnation: int) -> str | None:
        consumer = self.lane.state.by_number.get(incarnation)
        return consumer.id if consumer is not None else None

    def group(self, text: str) -> dict[str, Any]:
        """The results of `groups.show`, without headers, and of `groups.why`, and what has happened to it
        lately. Raises CommandRefused, ValueError."""
        named = {"group": text}
        show, why = self.views.group(named, headers=False), self.why(named)
        group_id = parse_group(text)
        history = self._history_of_groups.of(group_id, self.lane.state.group_map.named(group_id))
        return {"show": show, "why": why, "history": history}

    def latest_dead_letters(self) -> dict[str, Any]:
        """The latest messages that went to the dead queue, with their reasons."""
        return {"messages": self._history_of_groups.dead_letters()}

    def why(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of `groups.why`. Raises CommandRefused, also for a group that only has dead letters."""
        group, since_ms = arguments.get("group"), self._clock.now_ms() - self.since_ms
        dead = self._history_of_groups.dead_lettered(parse_group(group)) if isinstance(group, str) else 0
        try:
            why = self.views.why(arguments)
        except CommandRefused as refused:
            raise CommandRefused(f"{refused}{_went_before(dead, since_ms)}") from None
        return {**why, "dead_lettered": {"count": dead, "since_ms": since_ms}}

    def _set_alarm(self, now_ms: int) -> None:
        """For the core's next deadline, or for acks that wait."""
        at_ms = self._originals.deadline_ms()
        if at_ms is None or (self._step_due_ms is not None and self._step_due_ms < at_ms):
            at_ms = self._step_due_ms
        self._alarm.set(at_ms, now_ms)

    def _call_later(self, delay_ms: int, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, act)

    def _wake(self) -> None:
        self._flush_acks()
        now_ms = self._clock.now_ms()
        if self._step_due_ms is None or self._step_due_ms > now_ms:
            self._set_alarm(now_ms)
        else:
            self._schedule()

    def _flush_acks(self, *, everything: bool = False) -> None:
        self._originals.flush_acks(self._clock.now_ms(), everything=everything)

    # -- inbound --

    def report(self, event: Event) -> None:
        """Something that a feed found out."""
        self._events.append(event)
        self._schedule()

    # -- Redis --

    def restore(self) -> None:
        """Redis came back without our last writes: write everything back before going on."""
        if self.ended.done() or self._restoring:
            return
        self._restoring = True
        log.warning("redis_lost_writes", lane=self._names.lane)
        self._restore_task = self._loop.create_task(self._restore())

    async def _restore(self) -> None:
        try:
            await self._store.restore(self.lane.checkpoint(everything=True))
        except Exception as failure:
            self.end(failure)
            return
        self._restoring = False
        log.info("redis_restored", lane=self._names.lane)
        self._schedule()

    def redis_changed(self) -> None:
        """Redis became available or unavailable: the session ends if that is because another one leads."""
        if self._store.fenced:
            self.end(Fenced(f"another dispatcher leads lane {self._names.lane} now"))
        elif self._store.available:
            log.info("redis_available", lane=self._names.lane)
        else:
            log.warning("redis_unavailable", lane=self._names.lane, problem=self._store.problem)

    # -- views --

    def _describe(self) -> dict[str, Any]:
        """What the lane's status says beyond the core's own view."""
        return {
            "lane": self._names.lane,
            "since_ms": self._clock.now_ms() - self.since_ms,
            "unanswered_publishes": self._outbox.unanswered,
            "problem": self.readiness()[1] if not self.readiness()[0] else None,
            "publishers_blocked": self._link.blocked is not None,
            "redis_unavailable": not self._store.available,
            "dead_letters": self.dead_letters.count,
            **self._replicas.status(),
        }

    def status(self) -> dict[str, Any]:
        """The result of the command `status`; of each inbound queue also what is `ready` there."""
        status = self._operators.status()
        for row, feed in zip(status["inbound"], self._feeds, strict=True):
            row["ready"] = feed.ready
        return status

    def sample(self) -> LaneSample:
        """The lane's numbers, and its latencies since the last sample. What is ready is as of that one."""
        ready = [feed.ready for feed in self._feeds if feed.ready is not None]
        for feed in self._feeds:
            feed.count_ready()
        return LaneSample(
            **self.views.totals()._asdict(), ready=sum(ready) if ready else None,
            commit=self._ticks.commits.take(), confirm=self._outbox.confirms.take(),
        )  # fmt: skip

    def durations(self) -> dict[str, Buckets]:
        """Histograms of what has taken how long in this session; see http.metrics.HISTOGRAMS."""
        histograms = {
            "wait": self._durations.wait, "commit": self._ticks.commits.all,
            "confirm": self._outbox.confirms.all, "process": self._durations.process,
        }  # fmt: skip
        return {name: histogram.buckets() for name, histogram in histograms.items()}

    def readiness(self) -> tuple[bool, str]:
        """Whether the lane dispatches, and one line that says so or why not."""
        if not self._store.available:
            return False, f"Redis: {self._store.problem}"
        if self._link.blocked is not None:
            return False, f"RabbitMQ blocks publishers: {self._link.blocked}"
        if self._restoring:
            return False, "writing everything back to Redis, which had lost writes"
        problem = self._originals.problem
        return (False, problem) if problem else (True, "leading")

    # -- stopping --

    async def drain(self) -> None:
        """Dispatch nothing more; wait until all that was read is committed and acked, or until the time is
        up."""
        self.lane.suspend()
        self._schedule()
        read = self._events
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while self._events is read and not self.ended.done():  # noqa: ASYNC110 - until the next tick
                    await asyncio.sleep(DRAIN_POLL_S)
                await self.decided_is_done()
                while self._settings.handover and self._outbox.unanswered:  # noqa: ASYNC110 - confirms settle
                    await asyncio.sleep(DRAIN_POLL_S)
                await self.decided_is_done()
        if not self.ended.done():
            self._flush_acks(everything=True)


def _went_before(dead: int, since_ms: int) -> str:
    if not dead:
        return ""
    messages = "1 message" if dead == 1 else f"{dead} messages"
    return f"; at least {messages} of it went to the dead queue in the last {since_ms // 1000} s"
