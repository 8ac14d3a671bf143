"""Carries out the core's orders: publishes, inbound acks, replies. Called only after their commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final

import structlog

from dispatcher.amqp.events import Confirmed
from dispatcher.core.events import (
    CopiesConfirmed,
    CopyRefused,
    DeadLetterConfirmed,
    DeadLetterRefused,
    Event,
    IdsLookedUp,
    PingRouted,
    QueueNacked,
)
from dispatcher.core.forwarding.events import CopiesStored, ReclaimedForwarded, ReclaimedRefused
from dispatcher.core.forwarding.orders import (
    AckReclaimed,
    DeadLetterReclaimed,
    ForwardingAction,
    ForwardReclaimed,
    InspectQueue,
    ReclaimQueue,
    ReleaseQueue,
)
from dispatcher.core.model import Original
from dispatcher.core.operations.orders import (
    CloseTarget,
    OpenTarget,
    PublishBarrier,
    SendTransfer,
    TargetAction,
)
from dispatcher.core.orders import (
    AckInbound,
    Action,
    DeadLetter,
    LogEvent,
    LookUp,
    PublishMarker,
    Reply,
    SendCopy,
    SendNotice,
    SetWindow,
)
from dispatcher.core.parking.events import RelocationConfirmed, RelocationImpossible, RelocationRefused
from dispatcher.core.parking.orders import (
    AbandonParkingQueue,
    DeleteParkingQueue,
    GiveBack,
    OpenParkingQueue,
    ParkCopy,
    ParkingAction,
    ReadParkingQueue,
)
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import Dispatched
from dispatcher.errors import ChannelRefused
from dispatcher.ledger.recorder import Recorder
from dispatcher.service.bundling import Bundle, OpenBundles, copy_by_copy
from dispatcher.service.confirms import PublishWindow
from dispatcher.service.durations import Durations
from dispatcher.service.publications import Publications, Relay, StoreInQueue
from dispatcher.service.publish_bisect import BisectState, PublishBisector
from dispatcher.service.refused_publish_retry import RefusedPublishRetry
from dispatcher.service.resends import Resends
from dispatcher.wire.bundle import BundleLimits
from dispatcher.wire.group_text import format_group
from dispatcher.wire.protocol import TYPE_PING

log = structlog.get_logger()

#: A publish that the broker did not take (a nack) is tried again after this long.
RETRY_S: Final = 1.0


class Outbox:
    """Carries out the core's orders on one connection, in their order. A published order is the token of its
    publish: the broker's answer comes back with it.

    `channel` has confirms on and no consumer; another one takes its place when the broker closed it over a
    publish. `later` calls a function after a number of seconds, `on_window` changes a consumer, `on_parking`
    carries out orders about one parking queue, `on_target` those about targets of operators. `bundle_limits`
    says which bundles the consumer of a queue takes, `report` takes events for the core, `answer` what
    operators are answered, if that goes another way.
    """

    def __init__(
        self,
        relay: Relay,
        channel: int,
        bisect_state: BisectState,
        recorder: Recorder,
        *,
        ack: Callable[[list[Original]], None],
        later: Callable[[float, Callable[[], None]], None],
        on_window: Callable[[QueueId, int], None],
        on_parking: Callable[[ParkingAction], None],
        on_target: Callable[[TargetAction], None],
        on_forwarding: Callable[[ForwardingAction], None],
        bundle_limits: Callable[[str], BundleLimits | None],
        report: Callable[[Event], None],
        answer: Callable[[Reply], None] | None = None,
    ) -> None:
        self._relay = relay
        self._channel = channel  # 0: there is none for the moment
        self._publications = Publications(relay)
        self._recorder = recorder
        self._ack = ack
        self._later = later
        self._on_window = on_window
        self._on_parking = on_parking
        self._on_target = on_target
        self._on_forwarding = on_forwarding
        self._report = report
        self._answer = answer
        self._window = PublishWindow()
        self._resends = Resends()
        self._bundles = OpenBundles(bundle_limits, self._bundle)
        self._frames: list[bytes] = []
        self._orders: list[Any] = []  # those that the frames are of
        self._withdrawn: list[Dispatched] = []  # copies that are no longer wanted: never sent
        self._bisector = PublishBisector(bisect_state)
        self._reported: list[Dispatched] = []  # rejected ones of which the core may not know yet
        #: From a publish to the broker's answer. One publish at a time is timed: that costs next to nothing.
        self.confirms = Durations()
        self._timed_tag, self._timed_from_s = 0, 0.0  # 0: none is
        self._retry = RefusedPublishRetry(later, self._publish_with_care)

    @property
    def unanswered(self) -> int:
        """How many publishes the broker has not answered yet, those that it has not been sent included."""
        return len(self._window) + len(self._bisector) + len(self._resends)

    def perform(self, actions: Iterable[Action | StoreInQueue]) -> None:
        """Carry out actions in order; everything published in one write."""
        careful = not self._channel or self._bisector.is_needed or bool(self._reported)
        for action in actions:
            kind = type(action)
            if kind is Dispatched:
                if careful:
                    self._wait(action)
                else:
                    self._copy(action, self._bundles.open(action.queue))  # type: ignore[arg-type, union-attr]
            elif kind is AckInbound:
                self._ack(action.messages)  # type: ignore[union-attr]
            else:
                self._perform_rare(action, careful=careful)
        if careful:
            self._go_on()
        else:
            self._bundles.close_all()
            self.flush()
        self._tell_withdrawn()

    def _perform_rare(self, action: Action | StoreInQueue, *, careful: bool) -> None:
        match action:
            case SetWindow():
                self._on_window(action.inbound, action.originals)
            case (
                ReadParkingQueue()
                | GiveBack()
                | OpenParkingQueue()
                | DeleteParkingQueue()
                | AbandonParkingQueue()
            ):
                self._on_parking(action)
            case OpenTarget() | SendTransfer() | CloseTarget():
                self._on_target(action)
            case InspectQueue() | ReclaimQueue() | ReleaseQueue() | AckReclaimed():
                self._on_forwarding(action)
            case Reply() if not self._is_published(action):
                pass
            case LookUp():
                self._report(IdsLookedUp(action))
            case LogEvent():
                tell = log.error if action.is_error else log.warning if action.is_warning else log.info
                tell(action.event, lane=self._relay.names.lane, **action.fields)
            case _:
                order = action.copy if isinstance(action, SendCopy) else action
                if careful:
                    self._wait(order)
                else:
                    self._bundles.close_all()  # its queue gets the copies before it first
                    if type(action) is SendCopy:
                        self._resends.sent(action.copy)
                    self._publish(order)

    def _is_published(self, reply: Reply) -> bool:
        """Else it is answered at once, in this process or on another connection."""
        if isinstance(reply.token, asyncio.Future):  # asked in this process
            _answer(reply)
        elif self._answer is not None:
            self._answer(reply)
        else:
            return True
        return False

    def _publish(self, order: Any) -> None:
        if type(order) is Dispatched:
            self._copy(order)
            return
        frames = self._publications.of(order, self._channel)
        if frames:
            self._frames.append(frames)
            self._orders.append(order)

    # -- publishes --

    def _copy(self, copy: Dispatched, bundle: Bundle | None = None) -> None:
        # Settled while its commit was under way, or another order for it comes, with its present numbers.
        if copy.message.content is None or not _is_wanted(copy):
            self._withdrawn.append(copy)
            self._answered_again(copy, nacked=False)
            self._bundles.acquit()
        elif self._resends and self._resends.keeps(copy):
            pass
        elif bundle is not None and copy.message.size < bundle.limits.bytes:
            self._bundles.add(bundle, copy, self._publications.entry(copy))
        else:
            if bundle is not None:  # it travels alone, behind those before it
                self._bundles.close(bundle)
            self._frames.append(self._publications.copy(copy, self._channel))
            self._orders.append(copy)

    def _bundle(self, bundle: Bundle) -> None:
        if bundle.copies:  # else all of them are withdrawn, or wait
            self._frames.append(self._publications.bundle(bundle, self._channel))
            self._orders.append(bundle if len(bundle.copies) > 1 else bundle.copies[0])
            bundle.entries.clear()  # they are in the frames

    def flush(self) -> None:
        """Write the gathered frames."""
        if not self._frames:
            return
        frames, orders = self._frames, self._orders
        self._frames, self._orders = [], []
        try:
            last = self._relay.link.write(self._channel, b"".join(frames), len(orders))
        except ChannelRefused:  # the event that says so comes a moment later
            self._channel = 0
            for order in copy_by_copy(orders):
                self._bisector.add(order)
            return
        add = self._window.add
        for tag, order in enumerate(orders, last - len(orders) + 1):
            add(tag, order)
        if not self._timed_tag:
            self._timed_tag, self._timed_from_s = last, monotonic()

    def _tell_withdrawn(self) -> None:
        """Copies that were never sent count as answered."""
        if self._withdrawn:
            withdrawn, self._withdrawn = self._withdrawn, []
            self._report(CopiesConfirmed(len(withdrawn), sum(copy.message.size for copy in withdrawn)))

    # -- answers --

    def answered(self, confirmed: Confirmed, events: list[Event]) -> None:
        """Tell the core what this confirm or nack means."""
        copies = size = 0
        orders = list(copy_by_copy(self._window.answered(confirmed)))
        if self._timed_tag and not self._window.awaits(self._timed_tag):
            self.confirms.add(monotonic() - self._timed_from_s)
            self._timed_tag = 0
        if not confirmed.nacked:
            self._recorder.confirmed(orders)
        for order in orders:
            if type(order) is Dispatched:
                copies += 1
                size += order.message.size
                if confirmed.nacked:
                    events.append(QueueNacked(order.queue))
                self._answered_again(order, nacked=confirmed.nacked)
            else:
                self._answered_rare(order, confirmed.nacked, events)
        if copies:
            former = events[-1] if events else None
            if type(former) is CopiesConfirmed:  # single copies have many confirms in one read
                events.pop()
                copies, size = copies + former.count, size + former.size
            events.append(CopiesConfirmed(copies, size))
            if self._relay.hands_over and not confirmed.nacked:
                events += _stored(orders)
        self.flush()
        if self._bisector.is_needed:
            self._go_on()
        self._tell_withdrawn()

    def _answered_again(self, copy: Dispatched, *, nacked: bool) -> None:
        """If it was sent again: what waited behind it may go now, or is not to be sent."""
        if not self._resends:
            return
        behind, may_go = self._resends.answered(copy, nacked=nacked)
        for waiting in behind:
            if may_go:
                self._copy(waiting)
            else:
                self._withdrawn.append(waiting)

    def _answered_rare(self, order: Any, nacked: bool, events: list[Event]) -> None:
        match order:
            case SendNotice(type=kind) if kind == TYPE_PING:
                events.append(QueueNacked(order.queue) if nacked else PingRouted(order.queue))
            case ParkCopy():
                answer = RelocationRefused if nacked else RelocationConfirmed
                events.append(answer(order.message, order.term))
            case (
                DeadLetter()
                | StoreInQueue()
                | PublishMarker()
                | PublishBarrier()
                | ForwardReclaimed()
                | DeadLetterReclaimed()
            ) if nacked:
                self._later(RETRY_S, lambda: self.perform([order]))
            case DeadLetter():
                events.append(DeadLetterConfirmed(order.message))
                self._retry.confirmed(order)
            case StoreInQueue():
                order.done()
                self._retry.confirmed(order)
            case ForwardReclaimed(handed):
                events.append(ReclaimedForwarded(handed))
            case DeadLetterReclaimed(handed):
                events.append(ReclaimedForwarded(handed))
                self._retry.confirmed(order)

    # -- when the broker closes the channel, or the connection, over one of them --

    def channel_closed(self, problem: str) -> None:
        """The broker closed the channel over something that it did not answer, with these words."""
        self._channel = self._timed_tag = 0
        tokens = self._window.take_all()
        self._bundles.suspect(tokens)
        unanswered = list(copy_by_copy(tokens))
        found = self._bisector.closed(unanswered)
        for copy in self._resends.take_all():
            self._wait(copy)
        if found is not None:
            self._refused(found, problem)
            return
        # The broker may have refused some and taken those behind them: new terms void what it has.
        parked = [order for order in unanswered if type(order) is ParkCopy]
        self._bisector.withdraw(parked)
        for order in parked:
            self._report(RelocationRefused(order.message, order.term))

    def use(self, channel: int) -> None:
        """Go on, on this channel."""
        self._channel = channel
        self._go_on()
        self._tell_withdrawn()

    def connection_closed(self, problem: str, transfers: Callable[[str], dict[bytes, str]]) -> BisectState:
        """The broker ended the whole connection over something that it did not answer; what the next session
        must know."""
        found = self._bisector.closed(list(copy_by_copy(self._window.take_all())))
        if found is not None:
            self._bisector.reject(found, problem)
        return self._bisector.state()._replace(transfers=transfers(problem))

    def _wait(self, order: Any) -> None:
        problem = self._bisector.rejection(order)
        if problem is not None:
            self._refused(order, problem)
        else:
            self._bisector.add(order)

    def _publish_with_care(self, order: Any) -> None:
        self._bisector.add_candidate(order)
        self._go_on()

    def _go_on(self) -> None:
        """Publish what may go now of what waits: nothing before the core knows of a rejected one, for what it
        decided before that has numbers with a gap."""
        bisector, window = self._bisector, self._window
        self._reported = [copy for copy in self._reported if _is_wanted(copy)]
        if self._reported:
            return
        while self._channel:
            if not len(window):
                bisector.all_answered()
                if not bisector.is_searching:
                    self._bundles.convict()
            orders = bisector.take(under_way=len(window))
            if not orders:
                return
            for order in orders:
                self._publish(order)
            self.flush()

    def _refused(self, order: Any, problem: str) -> None:
        """The broker can't be made to take it: what becomes of it."""
        self._bundles.acquit()
        lane = self._relay.names.lane
        match order:
            case Dispatched():
                self._report(CopiesConfirmed(1, order.message.size))
                self._report(CopyRefused(order, problem))
                self._reported.append(order)
            case ParkCopy():
                self._report(RelocationImpossible(order.message, problem))
                self._bisector.clear(order)
            case DeadLetter(message, reason):
                group = None if message.group_id is None else format_group(message.group_id)
                log.warning(
                    "message_undeliverable", lane=lane, group=group, size=message.size, reason=reason,
                    problem=problem,
                )  # fmt: skip
                self._retry_later(order)
                self._report(DeadLetterRefused(message, problem))
            case ForwardReclaimed(handed):
                self._report(ReclaimedRefused(handed, problem))
                self._bisector.clear(order)
            case DeadLetterReclaimed(handed):
                log.warning("message_undeliverable", lane=lane, size=handed.size, problem=problem)
                self._retry_later(order)
            case StoreInQueue():
                log.warning("control_message_undeliverable", lane=lane, size=len(order.body), problem=problem)
                self._retry_later(order)
            case _:
                log.warning("publish_refused", lane=lane, what=type(order).__name__, problem=problem)
                self._bisector.clear(order)

    def _retry_later(self, order: Any) -> None:
        if self._bisector.rejection(order) is None:  # else it would end the connection again
            self._retry.refused(order)


def _stored(orders: list[Any]) -> list[Event]:
    """The copies among these, by their consumers: they are in its queue."""
    seqs: dict[int, list[int]] = {}
    for order in orders:
        if type(order) is Dispatched:
            seqs.setdefault(order.incarnation, []).append(order.seq)
    return [CopiesStored(incarnation, numbers) for incarnation, numbers in seqs.items()]


def _answer(reply: Reply) -> None:
    if not reply.token.done():
        reply.token.set_result(reply)


def _is_wanted(copy: Dispatched) -> bool:
    """Whether its message is still in those hands, under those numbers."""
    message = copy.message
    return message.consumer is not None and message.seq == copy.seq and message.epoch == copy.epoch
