"""Keeps one lane dispatched: connects, stands by, leads, and starts again after any loss."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

import structlog

from dispatcher.amqp.events import ChannelClosed, Delivery
from dispatcher.amqp.link import Link, until_it_answers
from dispatcher.amqp.tls import login
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions
from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.core.queue_ids import inbound_id
from dispatcher.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeliveredAgain,
    DispatcherError,
    Fenced,
    LoginRefused,
    NumbersBehind,
    StoreUnavailable,
)
from dispatcher.http.views import Buckets, LaneSample
from dispatcher.ledger.recorder import NO_LEDGER, OpensRecorders, Recorder
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.answers import Answers
from dispatcher.service.channels import LOCK_RETRY_S, Channels
from dispatcher.service.clock import Clock
from dispatcher.service.fencing import Fence, unless_fenced, until_fenced
from dispatcher.service.inbound_feed import (
    ELECTION_S,
    STILL_NODE_S,
    InboundFeed,
    InboundSource,
    awaited,
    open_inbound,
)
from dispatcher.service.lane_options import lane_options
from dispatcher.service.leader_look import LeaderLook
from dispatcher.service.operators import ReloadCall
from dispatcher.service.parking_feeds import find_parking_queues
from dispatcher.service.publish_bisect import NOTHING_REJECTED
from dispatcher.service.queue_kinds import DeliveryLimit
from dispatcher.service.reloading import Change, change_of
from dispatcher.service.replicas import Replicas
from dispatcher.service.session import Session
from dispatcher.service.shards import open_shards
from dispatcher.service.topology import (
    OwnQueues,
    bind_inbound,
    declare_lane,
    parking_queues,
    prepare_inbound,
    quorum_inbound,
    refuse_unusable,
)
from dispatcher.service.witness import Witness
from dispatcher.settings import LaneSettings, Settings
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: Between attempts after a loss: at once at first, so that a fail-over is quick, then slower.
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 1.0
#: How long a start waits for the answers about a lane's queues. As a rule they take less than a second; while
#: a node stands still, up to eight.
ANSWERS_S: Final = 10.0
#: So long a replica makes way for the one that is to lead.
WAY_S: Final = 2.0
#: Up to this part of a pause is left out: lanes that lost one server don't come back all at once.
RETRY_JITTER: Final = 0.5
#: A failure after this time without one begins another outage: no failing attempt takes longer.
OUTAGE_OVER_MS: Final = 60_000
#: So many leaderships in a row may end because one message seems to come again. Equal messages could look
#: like that for ever: each end flags them once more, and raises their counts.
DELIVERED_AGAIN_MAX: Final = 3


class RunnerState(Enum):
    CONNECTING = "connecting"
    STANDBY = "standing by"
    RECOVERING = "recovering"
    LEADING = "leading"
    WAITING = "waiting"  # to try again after a problem
    STOPPED = "stopped"


def _kind(failure: BaseException) -> object:
    """What makes two failures the same: system and servers word one outage in several ways."""
    return type(failure) if type(failure) in (BrokerUnavailable, StoreUnavailable) else str(failure)


class LaneRunner:
    """One lane's task. `problem` says why it neither dispatches nor stands by.

    The types, the numbers, the collection and the two `_open_…` are all that a simulation replaces.
    """

    lane_type: type[Lane] = Lane
    session_type: type[Session] = Session
    replicas_type: type[Replicas] = Replicas
    election_s: float = ELECTION_S
    lock_retry_s: float = LOCK_RETRY_S
    retry_jitter: float = RETRY_JITTER
    answers_s: float = ANSWERS_S
    parking_queues_max = PARKING_QUEUES_MAX

    def __init__(
        self, settings: Settings, lane: LaneSettings, reload: ReloadCall | None = None,
        ledger: OpensRecorders = NO_LEDGER, leads: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """`leads`: how many lanes this process leads."""
        self.name = lane.name
        self.state = RunnerState.CONNECTING
        self.problem: str | None = None
        self._settings = settings
        self._lane = lane  # as it is led, or going to be
        self._wanted = lane  # as the configuration has it now
        self._reload = reload
        self._ledger = ledger
        self._recorder = Recorder()
        self._names = LaneNames(lane.name, settings.prefix)
        self._clock = Clock()
        self._session: Session | None = None
        self._early: list[Any] = []  # events before the session takes over …
        self._writes_are_lost = False  # … and whether Redis lost what that has read
        self._link: Link | None = None
        self._channels: Channels | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.leaderships = 0
        self._lane_epoch_min = 0  # consumers have seen numbers below it
        self._bisect_state = NOTHING_REJECTED
        self._is_new = False  # its exchange was not there: no consumer can hold anything of it
        self._is_unproven = False  # the start could not look where groups belong
        self._delivered_again = 0  # times in a row that this has ended a leadership
        #: Of these: because of the message with this fingerprint, which may be another one.
        self._by_message: Counter[bytes] = Counter()
        self._leader_look = LeaderLook(settings.rabbitmq, self._names)
        self._replicas = self.replicas_type(
            settings.redis, lane.name, settings.prefix, self._clock.now_ms, leads
        )
        self._has_nodes = len(settings.rabbitmq.nodes()) > 1
        self._answers = Answers(settings.rabbitmq, self._names) if self._has_nodes else None
        self._url = ""  # of the node that it was connected to last
        self._kept: tuple[str, ...] = ()  # own queues that are not of the kind that is wanted
        self._unknown: tuple[str, ...] = ()  # inbound queues that may have priorities
        self._limits: tuple[DeliveryLimit, ...] = ()  # low ones of inbound queues
        self._redis_is_away = False  # it was what ended the last attempt to lead
        self._heir: str | None = None  # to whom the present leadership is given
        self._failed_at_ms: dict[object, int] = {}  # by the kind of failure, since this last led

    # -- life --

    async def prepare(self) -> None:
        """Try everything once that an operator may have to change first. Raises ConfigurationError,
        BrokerUnavailable or StoreUnavailable.

        RabbitMQ (4.0.5) does not answer about queues of a node that is there and has not started RabbitMQ.
        Then it is as if it were away, so that no lane waits for the queues of another one."""
        self._is_unproven = True
        try:
            link = await self._open_another()
        except LoginRefused as refused:
            raise ConfigurationError(f"{self._settings.rabbitmq.url_key}: {refused}") from None
        try:
            async with asyncio.timeout(self.answers_s):
                await prepare_inbound(link, self._lane)
                inbound = await quorum_inbound(link, self._lane)
                self._is_new |= (await declare_lane(link, self._names, self._lane, inbound)).is_new
                await bind_inbound(link, self._names, self._lane)
                await self._open_shards(link)
        except TimeoutError:
            silence = f"RabbitMQ has not answered about its queues within {self.answers_s:g} s"
            raise BrokerUnavailable(silence) from None
        finally:
            await link.close()
        await (await self._open_store()).close()

    async def run(self) -> None:
        """Until cancelled: lead, stand by, recover."""
        try:
            await self._lead_again_and_again()
        finally:
            try:
                await self._replicas.close()
            finally:  # whoever stops a lane may cancel this
                if self._answers is not None:
                    await self._answers.close()

    async def _lead_again_and_again(self) -> None:
        pause_s = RETRY_S_MIN
        while True:
            begun_ms = self._clock.now_ms()
            try:
                await self._lead_once()
                if self.state is RunnerState.STOPPED:
                    return
            except asyncio.CancelledError:
                raise
            except (DispatcherError, OSError) as failure:
                if self.state is RunnerState.STOPPED:
                    return
                self._note(failure)
            except Exception as failure:  # a bug of ours: the lane starts afresh from the committed state
                log.exception("lane_failed", lane=self.name)
                self._note(failure)
            if self._clock.now_ms() - begun_ms > 5_000:
                pause_s = RETRY_S_MIN
            await asyncio.sleep(pause_s * (1 - self.retry_jitter * random.random()))
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    def _note(self, failure: BaseException) -> None:
        if isinstance(failure, DeliveredAgain):
            self._delivered_again += 1
            self._by_message[failure.by_message] += bool(failure.by_message)
        elif self.state is RunnerState.LEADING:
            self._delivered_again = 0
            self._by_message.clear()
        self.state, self.problem = (
            RunnerState.WAITING,
            str(failure).splitlines()[0] if str(failure) else repr(failure),
        )
        self._redis_is_away = isinstance(failure, StoreUnavailable)
        if isinstance(failure, NumbersBehind):
            self._lane_epoch_min = failure.lane_epoch
        if isinstance(failure, Fenced):
            self.problem = None
        self._log(failure)

    def _log(self, failure: BaseException) -> None:
        """Attempts go on every second: an outage is told once."""
        kind, now_ms = _kind(failure), self._clock.now_ms()
        failed_at_ms = self._failed_at_ms.get(kind)
        tell = log.warning if failed_at_ms is None or now_ms - failed_at_ms > OUTAGE_OVER_MS else log.debug
        self._failed_at_ms[kind] = now_ms
        tell("lane_interrupted", lane=self.name, problem=str(failure))

    async def stop(self) -> None:
        """Stop dispatching: settled messages are acked, all others go back to their queues."""
        session, link = self._session, self._link
        if session is not None and not session.ended.done():
            await session.drain()
        self.state = RunnerState.STOPPED
        self._replicas.ended(None)
        if link is not None:
            await link.close()
        await self._replicas.end_told()
        if self._answers is not None:
            await self._answers.close()

    # -- another configuration --

    def reconfigure(self, lane: LaneSettings) -> None:
        """Go on with these settings: at once, or in a new leadership (dispatcher.service.reloading)."""
        self._wanted = lane
        if self.state is RunnerState.LEADING:
            self._use_wanted()

    def _use_wanted(self) -> None:
        session = self._session
        match change_of(self._lane, self._wanted):
            case Change.AT_ONCE if session is not None:
                self._lane = self._wanted
                session.reconfigure(self._options())
                self._recorder.changed(self._options())
            case Change.ANEW if session is not None:
                self._leaving = asyncio.create_task(self._leave(session))

    async def _leave(self, session: Session) -> None:
        """End a leadership that could go on: settled messages are acked first."""
        log.info("lane_led_anew", lane=self.name)
        with contextlib.suppress(DispatcherError):  # it has ended by itself
            await session.drain()
        session.end(None)

    # -- other replicas --

    @property
    def leads(self) -> bool:
        """Whether this process leads the lane, or is about to."""
        return self.state in (RunnerState.LEADING, RunnerState.RECOVERING)

    def others(self) -> dict[str, int]:
        """Who stands by for a lane that is led here, and how many lanes each leads."""
        return self._replicas.others() if self._leading() is not None else {}

    async def give_to(self, heir: str) -> None:
        """End this leadership, so that `heir` leads next: settled messages are acked first."""
        session = self._leading()
        if session is None or session.ended.done() or not await self._replicas.name_heir(heir):
            return
        log.info("lane_given", lane=self.name, to=heir)
        self._heir = heir
        with contextlib.suppress(DispatcherError):  # it has ended by itself
            await session.drain()
        session.end(None)

    # -- one leadership --

    async def _lead_once(self) -> None:
        self.state = RunnerState.CONNECTING
        if self._session is not None:
            self._collect_garbage()  # the last leadership was full of cycles; nothing else looks for them
        self._session, self._channels, self._early = None, None, []
        self._writes_are_lost = False
        self._lane = self._wanted
        link = self._link = await self._open_link(self._on_events)
        store: LaneStore | None = None
        try:
            await prepare_inbound(link, self._lane)
            own = await declare_lane(link, self._names, self._lane, await self._quorum_inbound(link))
            self._is_new |= own.is_new
            await bind_inbound(link, self._names, self._lane)
            await self._open_shards(link)
            self._tell_kept(own.kept)
            channels = self._channels = Channels(
                link, self._names, quorum=own.quorum, lock_retry_s=self.lock_retry_s
            )
            self.state, self.problem = RunnerState.STANDBY, None
            was_new, self._is_new = self._is_new, False  # another may lead during this wait
            self._is_new = await self._stand_by(channels) and was_new
            if await self._replicas.makes_way():
                await link.close()
                await asyncio.sleep(WAY_S)
                return
            if self._lane is not self._wanted:
                self._lane = self._wanted
                await prepare_inbound(link, self._lane)
                await self._quorum_inbound(link)
                await bind_inbound(link, self._names, self._lane)
                await self._open_shards(link)
            self.state = RunnerState.RECOVERING
            store = await self._open_store()
            session, witness = await self._take_over(link, channels, store, own)
            self.state, self.problem = RunnerState.LEADING, None
            self._failed_at_ms.clear()
            self.leaderships += 1
            log.info("lane_led", lane=self.name)
            self._tasks.append(asyncio.create_task(witness.renew_after_recovery(session.decided_is_done)))
            self._use_wanted()  # the file may have changed meanwhile
            try:
                await session.ended
            finally:
                why = self._why_over(session)
                self._recorder.ended(why)
                self._replicas.ended(why)
                self._bisect_state = session.bisect_state
                session.leave()
            await link.close()
        finally:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()
            link.abort()
            if store is not None:
                await store.close()

    async def _stand_by(self, channels: Channels) -> bool:
        """Until the lock is ours; True when no other one had it."""
        says = asyncio.create_task(self._replicas.stand_by())
        try:
            return await channels.take_lock()
        finally:
            says.cancel()

    def _why_over(self, session: Session) -> str | None:
        """Why a leadership has ended; None: on purpose."""
        heir, self._heir = self._heir, None
        if self.state is RunnerState.STOPPED:
            return None
        if heir is not None:
            return f"given to {heir}, which led fewer lanes"
        if not session.ended.done() or session.ended.cancelled():
            return "given up"
        return str(session.ended.exception() or "") or None

    async def _quorum_inbound(self, link: Link) -> list[bool]:
        """Which inbound queues are quorum queues, of which all can be used. Says what may be wrong with them.
        Raises ConfigurationError."""
        inbound = await refuse_unusable(link, self._lane)
        self._tell_unknown(inbound.unknown)
        self._tell_limits(inbound.limits)
        return inbound.quorum

    def _tell_kept(self, kept: tuple[str, ...]) -> None:
        """Say once which of the lane's own queues are not of the kind that it wants."""
        if kept != self._kept and kept:
            log.warning("queues_kept", lane=self.name, queues=list(kept))
        self._kept = kept

    def _tell_unknown(self, queues: tuple[str, ...]) -> None:
        """Say once which inbound queues may have priorities: the right that tells is missing."""
        if queues != self._unknown and queues:
            log.warning("inbound_priorities_unknown", lane=self.name, queues=list(queues), right="configure")
        self._unknown = queues

    def _tell_limits(self, limits: tuple[DeliveryLimit, ...]) -> None:
        """Say once of which inbound queues messages are dropped that came back too often."""
        for queue, times, is_default in (limit for limit in limits if limit not in self._limits):
            unless = ", unless a policy sets another limit" if is_default else ""
            problem = f"drops or dead-letters a message that came back more than {times} times{unless}"
            log.warning("delivery_limit_low", lane=self.name, queue=queue, limit=times, problem=problem)
        self._limits = limits

    def _collect_garbage(self) -> None:
        gc.collect()

    async def _open_link(self, on_events: Callable[[list[Any]], None]) -> Link:
        name, last = self._connection_name(), self._url
        link = await Link.open(self._settings.rabbitmq, name=name, on_events=on_events, last=last)
        self._url = link.url
        return link

    async def _open_shards(self, link: Link) -> None:
        prefix, anew = self._settings.prefix, self._open_another
        has_looked = await open_shards(link, self._lane, prefix, anew, at_start=self._is_unproven)
        self._is_unproven = self._is_unproven and not has_looked

    async def _open_another(self) -> Link:
        """A connection beside the lane's own."""
        rabbitmq, name = self._settings.rabbitmq, self._connection_name()
        return await Link.open(rabbitmq, name=name, on_events=lambda _: None)

    async def _open_probe(self, on_events: Callable[[list[Any]], None]) -> Link:
        """A connection to the node that the lane is led through."""
        nodes = self._settings.rabbitmq.nodes()
        node = next((node for node in nodes if node.url == self._url), nodes[0])
        return await Link.open(node, name=f"{self._connection_name()} parking", on_events=on_events)

    async def _until_nodes_answer(self) -> None:
        """Or refuse to: the former leader's may stand still."""
        name, nodes = self._connection_name(), self._settings.rabbitmq.nodes()
        others = [node for node in nodes if node.url != self._url]
        await asyncio.gather(*(until_it_answers(node, name, STILL_NODE_S) for node in others))

    async def _open_store(self) -> LaneStore:
        return await LaneStore.open(
            self._settings.redis, self.name, self._settings.prefix,
            on_gap=self._redis_lost_writes,
            on_available=self._redis_available,
        )  # fmt: skip

    async def _take_over(
        self, link: Link, channels: Channels, store: LaneStore, own: OwnQueues
    ) -> tuple[Session, Witness]:
        """Lock, inbound, epoch, then the journal: in this order no late write of a former leader can be
        missed. One broker round trip after it: the lock was ours all the time."""
        recorder = self._recorder = self._ledger.recorder(self.name)
        session = self.session_type(
            self._lane, self._names, link, channels, store, self._clock, recorder,
            self._bisect_state, self._replicas, self._reload, login(self._settings.rabbitmq, "").user,
            self._answers.give if self._answers is not None else None, open_probe=self._open_probe,
        )  # fmt: skip
        witness = Witness(link, self._names, moves=own.wants_quorum)
        restarted = await witness.is_gone()
        is_new, self._is_new = self._is_new, False  # events read from here on may be lost before it leads
        if restarted and not is_new and own.wants_quorum:
            await self._until_nodes_answer()
        inbounds, parking = [inbound.queue for inbound in self._lane.inbound], self._parking_queues()
        fence = Fence(channels.prove_fence, lambda: store.fence(self._epoch_seconds_ms(), inbounds, parking))
        sources = await asyncio.gather(*(
            awaited(self.name, inbound.queue, partial(
                open_inbound, link, inbound.queue, f"inbound-{index}", self._lane.look_ahead,
                election_s=self.election_s if restarted and not is_new else 0.0, ghosts=witness.ghosts,
                silent_s=self.election_s if self._has_nodes and not is_new else 0.0, fence=fence,
            ))
            for index, inbound in enumerate(self._lane.inbound)
        ))  # fmt: skip
        witness.ghosts = max(source.ghosts for source in sources)
        channels.inbound_index = {source.channel: inbound_id(index) for index, source in enumerate(sources)}
        snapshot = await store.lead(self._epoch_seconds_ms(), inbounds, parking)
        fenced = await self._prove_lock(channels, store)
        snapshot.broker_restarted = restarted or self._delivered_again > 0
        trusted = snapshot.complete
        if is_new and not snapshot.records and not snapshot.incarnations:
            snapshot.complete = True
        if not snapshot.complete:
            snapshot.parking_found = await find_parking_queues(link, parking)
        lane = self.lane_type(self._options(), snapshot, self._clock.now_ms())
        misleading = {known for known, times in self._by_message.items() if times >= DELIVERED_AGAIN_MAX}
        feeds = self._feeds(link, sources, lane, session, misleading)
        await channels.listen(keeps_history=self._lane.history is not None)
        vhost = self._settings.rabbitmq.address.vhost
        await channels.listen_to_broker_events(vhost, consumers=self._lane.handover)
        self._session = session
        witness.watch(lane)
        recorder.began(lane, snapshot)
        session.begin(lane, snapshot.lane_epoch, feeds, redis_complete=trusted, misleading=misleading)
        self._tasks.append(asyncio.create_task(self._replicas.lead(snapshot.lane_epoch)))
        early, self._early = self._early, []
        session.receive(early)
        if self._writes_are_lost:
            session.restore()
        self._look_after(session, channels, feeds, fenced)
        return session, witness

    def _look_after(
        self, session: Session, channels: Channels, feeds: list[InboundFeed],
        fenced: asyncio.Task[None] | None,
    ) -> None:  # fmt: skip
        """What goes on beside the lane as long as this leadership lasts."""

        def end(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                session.end(task.exception())

        self._tasks += [asyncio.create_task(feed.look_after(self._clock.now_ms)) for feed in feeds]
        self._tasks += [asyncio.create_task(feed.keep_window()) for feed in feeds]
        self._tasks.append(asyncio.create_task(session.dead_letters.look_after()))
        self._tasks.append(asyncio.create_task(channels.keep_lock(session.end)))
        if fenced is not None:
            fenced.add_done_callback(end)

    async def _prove_lock(self, channels: Channels, store: LaneStore) -> asyncio.Task[None] | None:
        """The lock is ours. Returns what fails with Fenced if it goes to another dispatcher unheard; None:
        that can't be. Raises Fenced."""
        if not channels.may_lose_lock_unheard:
            await channels.prove_fence()
            return None
        fenced = asyncio.create_task(until_fenced(store))
        self._tasks.append(fenced)
        await unless_fenced(channels.prove_fence(), fenced)
        return fenced

    def _epoch_seconds_ms(self) -> int:
        return max(self._clock.now_ms(), self._lane_epoch_min * 1_000)

    @staticmethod
    def _feeds(
        link: Link, sources: Sequence[InboundSource], lane: Lane, session: Session, misleading: set[bytes]
    ) -> list[InboundFeed]:
        feeds = []
        for source, inbound in zip(sources, lane.state.inbounds, strict=True):
            inbound.window, inbound.replaceable = source.window, source.classic
            feeds.append(InboundFeed(link, source, inbound, report=session.report, misleading=misleading))
        return feeds

    def _parking_queues(self) -> tuple[str, ...]:
        return parking_queues(self._names, self.parking_queues_max)

    def _options(self) -> LaneOptions:
        return lane_options(self._lane, self._settings.prefix, self._parking_queues())

    def _connection_name(self) -> str:
        return f"dispatcher {self.name}"

    def _on_events(self, events: list[Any]) -> None:
        if self._session is not None:
            self._session.receive(events)
            return
        channels = self._channels
        if channels is not None:
            of_lock = [event for event in events if channels.is_of_lock(event)]
            for event in of_lock:
                with contextlib.suppress(DeliveredAgain):  # the proof of the fence fails
                    channels.tell_lock(event)
            events = [e for e in events if not (isinstance(e, Delivery) and e in of_lock)]
        # A channel that was refused on purpose (the lock, a question) gave its number to another since.
        essential = channels.essential if channels is not None else set()
        self._early += [e for e in events if not isinstance(e, ChannelClosed) or e.channel in essential]

    def _redis_lost_writes(self) -> None:
        self._writes_are_lost = True
        if self._session is not None:
            self._session.restore()

    def _redis_available(self, _available: bool) -> None:
        if self._session is not None:
            self._session.redis_changed()

    # -- views --

    def readiness(self) -> tuple[bool, str]:
        """Whether the lane dispatches or stands by, and one line that says so or why not."""
        session = self._leading()
        if session is not None:
            return session.readiness()
        if self.state is RunnerState.STANDBY:
            return True, "standing by"
        return False, self.problem or self.state.value

    def leader(self) -> str | None:
        """Host and process id of the one that leads while this stands by, as far as that is known; it is
        looked up while somebody asks."""
        return self._leader_look.leader() if self.state is RunnerState.STANDBY else None

    def overview(self) -> dict[str, Any]:
        """The result of the command `status`."""
        head: dict[str, Any] = {
            "lane": self.name,
            "policy": str(self._lane.policy),
            "state": self.state.value,
        }
        session = self._leading()
        if session is not None:
            return {**head, **session.status()}
        if self._redis_is_away and self.state is not RunnerState.STANDBY:  # there another one asks it
            head["redis_unavailable"] = True
        return head

    def consumers(self) -> dict[str, Any] | None:
        """The result of `consumers.list`; None while the lane is not led here, as with all that follows."""
        session = self._leading()
        return session.views.consumers() if session is not None else None

    async def groups(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The result of `groups.list`, perhaps as of a moment ago. Raises CommandRefused, ValueError."""
        session = self._leading()
        return await session.listings.kept_groups(arguments) if session is not None else None

    def busiest_groups(self, count: int) -> dict[str, Any] | None:
        """The same of the busiest groups."""
        session = self._leading()
        return session.views.busiest_groups(count) if session is not None else None

    def group(self, group: str) -> dict[str, Any] | None:
        """The results of `groups.show`, without headers, and of `groups.why`, and its `history`. Raises
        CommandRefused, ValueError."""
        session = self._leading()
        return session.group(group) if session is not None else None

    def stopped(self, after: str | None) -> dict[str, Any] | None:
        """The result of `dead.stopped`. Raises CommandRefused, ValueError."""
        session = self._leading()
        return session.views.stopped({"after": after}) if session is not None else None

    def dead_letters(self) -> dict[str, Any] | None:
        """The latest messages that went to the dead queue, with their reasons."""
        session = self._leading()
        return session.latest_dead_letters() if session is not None else None

    async def command(
        self, name: str, arguments: dict[str, Any], uuid: str, user: str
    ) -> dict[str, Any] | None:
        """The result of a command that changes something. Raises CommandRefused, NoAnswer."""
        session = self._leading()
        return await session.command(name, arguments, uuid, user) if session is not None else None

    def operations(self) -> dict[str, Any] | None:
        """Operations on groups that are under way."""
        session = self._leading()
        return {"operations": session.views.operations()} if session is not None else None

    def sample(self) -> LaneSample | None:
        """The lane's numbers now, for a history of them."""
        session = self._leading()
        return session.sample() if session is not None else None

    def _leading(self) -> Session | None:
        return self._session if self.state is RunnerState.LEADING else None

    def counters(self) -> dict[str, float]:
        """Totals since this leadership began; those of the ledger, since the process began."""
        session = self._leading()
        totals = dict(session.lane.state.counters) if session is not None else {}
        return totals | self._ledger.counters(self.name)

    def durations(self) -> dict[str, Buckets]:
        """Histograms of what has taken how long in this leadership, by their names."""
        session = self._leading()
        return session.durations() if session is not None else {}
