"""One inbound queue on the connection: its consumer, its acks, and their proof."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final, NamedTuple

import structlog
from pamqp import commands

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.core.events import AcksProven, Event, RedeliveriesEnded
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Original
from dispatcher.core.views.views import NOTHING_UNACKED, SettledUnacked
from dispatcher.errors import (
    ACCESS_REFUSED,
    BrokerUnavailable,
    ChannelRefused,
    ConfigurationError,
    DeliveredAgain,
)
from dispatcher.service.ack_window import ROOM_PART, UNPROVEN_MAX, AckWindow
from dispatcher.service.fencing import GONE_S, Fence
from dispatcher.service.queue_kinds import CLASSIC, kind_of_queue

log = structlog.get_logger()

#: How often acks are proven by a passive declare on their channel. Entries whose ack is not proven stay in
#: memory and in the journal: a shorter interval costs round trips, a longer one costs memory.
PROOF_INTERVAL_S: Final = 0.25
#: How often to look whether the redeliveries are through: behind a long backlog that takes as long as the
#: backlog, so they are found at most a tenth later than they could be, or by this much.
RECOVERY_POLL_S: Final = 0.03
RECOVERY_POLL_S_MAX: Final = 0.25
RECOVERY_POLL_PART: Final = 10
#: How long a former leader's consumer may still be there.
FORMER_LEADER_S: Final = 1.0
FORMER_LEADER_POLL_S: Final = 0.02
#: The same for a quorum queue if the former leader's node is away. Its consumer is counted until that node is
#: back, but its messages are returned as soon as the queue's leader gives the node up. Each node does that by
#: itself: of a node that stands still they find out up to half of Erlang's net_ticktime apart.
FORMER_NODE_S: Final = 4.0
#: More than that if that node may stand still. Who becomes the queue's leader after it has given the node up
#: first tries to connect to it, for the 7 s of Erlang's net_setuptime. Until then the dead consumer counts as
#: alive, keeps its messages, and gets new ones (seen with 3.10 and 4.0).
STILL_NODE_S: Final = 8.0
#: From a restart of the broker until its quorum queues have elected a leader. That took 0.2 s on a busy
#: machine, and AMQP has no message for its end.
ELECTION_S: Final = 2.0
#: RabbitMQ asks the leader of a quorum queue for this long, and then says that the queue is empty.
NO_ANSWER_S: Final = 0.25
#: How soon a message in a queue that seemed to be empty is seen.
SILENCE_POLL_S: Final = 0.1
#: How long a lane waits for an inbound queue before the log says so. Elections and lost nodes take less.
AWAITED_S: Final = 10.0
#: How many messages of a classic queue are fetched before their size is known.
FIRST_WINDOW: Final = 16
#: A look-ahead up to this is taken at once.
SMALL_LOOK_AHEAD: Final = 64
#: A consumer whose prefetch is used up by settled originals is replaced if that gives room for this many.
RENEWED_FOR: Final = 500
#: A consumer is replaced only while fewer look-aheads than this are unacked, most of them settled: a new
#: leader is given all of them once more. With the new prefetch one more may be, and at most UNPROVEN_MAX
#: deliveries.
UNACKED_WINDOWS: Final = 3


class InboundSource(NamedTuple):
    """An inbound queue that is being consumed."""

    channel: int
    consumer_tag: str
    classic: bool  # else `exclusive` means nothing on it, and its consumer must never be replaced
    window: int  # its prefetch
    ghosts: int = 0  # consumers that are counted, and whose nodes are away


async def awaited(
    lane: str,
    queue: str,
    opening: Callable[[], Coroutine[Any, Any, InboundSource]],
    told_after_s: float = AWAITED_S,
) -> InboundSource:
    """What `opening` returns. If that takes long, the log names the queue, and says when it has answered."""
    loop = asyncio.get_running_loop()
    begun_s, told = loop.time(), False

    def tell() -> None:
        nonlocal told
        told = True
        log.warning("inbound_queue_awaited", lane=lane, queue=queue, seconds=told_after_s)

    timer = loop.call_later(told_after_s, tell)
    try:
        source = await opening()
    finally:
        timer.cancel()
    if told:
        took_s = round(loop.time() - begun_s, 1)
        log.info("inbound_queue_answers", lane=lane, queue=queue, seconds=took_s)
    return source


async def open_inbound(
    link: Link, queue: str, consumer_tag: str, look_ahead: int, *, election_s: float, ghosts: int = 0,
    silent_s: float = 0.0, fence: Fence | None = None,
) -> InboundSource:  # fmt: skip
    """Consume an inbound queue on a channel of its own, as its only consumer.

    Raises ConfigurationError when another program consumes it. A former leader's consumer may be there for
    a moment after its lock is gone, and for longer if its node is away. `election_s`: to be waited for if the
    queue is a quorum queue; not 0 if the broker has restarted since the last recovery. Until such a queue has
    elected a leader, a passive declare tells what it knew some seconds before, perhaps without a consumer
    that came later, and a consume waits to be the first that the new leader hears of. Only then the messages
    of the later consumer are returned: a consume that comes this early gets newer messages before them
    (seen).

    `ghosts`: up to so many consumers of a quorum queue may belong to former leaders whose nodes are away.
    `fence` ends a former leader if such a queue has other consumers: that leader may have lost the lock
    without knowing it, and still have messages of the queue. `silent_s`: RabbitMQ says that a quorum queue
    without a leader has neither messages nor consumers; a leader of the lane believes that only after this
    time. A node that is cut off from the queue's leader says so for as long as it is cut off. So, if
    `silent_s` is not 0, an answer counts only directly after a proof of the lock, which takes a majority of
    the nodes.
    """
    classic = await kind_of_queue(link, queue) == CLASSIC
    window = FIRST_WINDOW if classic and look_ahead > SMALL_LOOK_AHEAD else look_ahead
    patience_s = FORMER_LEADER_S
    ghosts, silent_s, fence = (0, 0.0, None) if classic else (ghosts, silent_s, fence)
    if election_s and not classic:
        ghosts, patience_s = max(1, ghosts), FORMER_NODE_S - election_s
        await asyncio.sleep(election_s)
    now = asyncio.get_running_loop().time
    deadline, silence = now() + patience_s, _Silence(silent_s, now())
    is_fenced, is_proven = fence is None, False
    while True:
        channel = await link.open_channel()
        try:
            asked_s = now()
            declared = await link.call(channel, QueueDeclare(queue=queue, passive=True))
            others, is_late = int(declared.consumer_count), now() > deadline
            may_be_silent = silence.lasts(others + declared.message_count, now() - asked_s, now())
            was_proven, is_proven = is_proven, False
            if fence is not None and others and not is_fenced:
                await fence.raise_epoch()
                is_fenced, is_late = True, False
                deadline = max(deadline, now() + GONE_S)
            elif may_be_silent or (others and not (is_late and others <= ghosts)):
                pass  # nothing yet
            elif fence is not None and silent_s and not was_proven:
                await fence.prove()
                is_proven, is_late = True, False  # RabbitMQ's answer from before the proof does not count
            else:
                await link.call(channel, commands.Basic.Qos(prefetch_count=window))
                await _consume(link, channel, queue, consumer_tag, exclusive=classic)
                return InboundSource(channel, consumer_tag, classic, window, others)
            await link.call(channel, commands.Channel.Close(200, "in use", 0, 0))
        except ChannelRefused as refused:
            if refused.code != ACCESS_REFUSED:
                raise
            others, is_late, may_be_silent = 1, now() > deadline, False
        if is_late and others:
            raise ConfigurationError(_others_problem(queue, others))
        if not is_proven:
            await asyncio.sleep(SILENCE_POLL_S if may_be_silent else FORMER_LEADER_POLL_S)


class _Silence:
    """How long an answer that a queue has nothing may be that of RabbitMQ about a queue without a leader."""

    def __init__(self, seconds: float, now_s: float) -> None:
        self._seconds = seconds
        self._until_s = now_s + seconds

    def lasts(self, count: int, took_s: float, now_s: float) -> bool:
        """Whether it does after this answer: `count` messages and consumers, after `took_s`.

        It begins anew with an answer that had any, and with a late one: then no leader has answered.
        """
        if count or took_s >= NO_ANSWER_S:
            self._until_s = now_s + self._seconds
        return not count and now_s < self._until_s


def _others_problem(queue: str, others: int) -> str:
    return (
        f"inbound queue {queue!r} has {others} consumer(s) that are not this dispatcher: "
        "stop them, two readers would break the order"
    )


def _is_new(message: Original) -> bool:
    return not message.redelivered


async def _consume(link: Link, channel: int, queue: str, consumer_tag: str, *, exclusive: bool) -> None:
    consume = BasicConsume(queue=queue, consumer_tag=consumer_tag, exclusive=exclusive)
    await link.call(channel, consume)


class InboundFeed:
    """One inbound queue's acks, their proof, and whether it is fetched from."""

    def __init__(
        self,
        link: Link,
        source: InboundSource,
        inbound: Inbound,
        *,
        report: Callable[[Event], None],
        misleading: Collection[bytes] = (),
    ) -> None:
        self._link = link
        self._source = source
        self._channel = source.channel
        self._inbound = inbound
        self._report = report
        self._begun_s = asyncio.get_running_loop().time()
        self._consumer_tag, self._consumers = source.consumer_tag, 1
        self._ghosts = source.ghosts
        self._acks = AckWindow(prefetch=source.window)
        self._delivered = 0
        self._misleading = misleading  # fingerprints of messages whose counts say nothing
        self._out: dict[int, Original] = {}  # of a quorum queue: the unsettled ones, by their tags
        self._returned_are_through = False  # all that earlier sessions had has been delivered again
        self._is_late = False  # of the latest deliveries one has come late, see `in_order`
        self._not_in_history: set[int] = set()
        self._over: deque[int] = deque()  # to be acked, in the order of their settles, once in the history
        self._wake = asyncio.Event()
        self._window = self._wanted = source.window  # what the core wanted when it was fetched, and wants now
        self._renewed_for = RENEWED_FOR
        self._refetch = asyncio.Event()
        #: RabbitMQ's queue answers a consume, its channel a declare: of two at a time the later may be first.
        self._one_request = asyncio.Lock()
        #: How many messages wait in the queue that the dispatcher has not got, as RabbitMQ said last.
        self.ready: int | None = None
        self._is_to_count = False
        #: What an operator must change: another program reads a quorum queue, which nothing can forbid.
        self.problem: str | None = None

    # -- deliveries and acks --

    def delivered(self, count: int) -> None:
        self._delivered += count
        self._acks.deliver(count)

    def delivered_again(self, messages: Iterable[Original]) -> DeliveredAgain | None:
        """What to end the session with, if one of these deliveries is an original that it has already.

        A quorum queue whose leader has lost sight of this node gives back all that is unacked here, and
        delivers it again on the same channel when it sees the node again. What was given back is delivered
        first. So behind a message without the flag, or when nothing was ready any more, the flag means that.
        Before, it may mean an earlier session: then a higher count than the one that is here says so.
        """
        if self._source.classic:  # it takes unacked messages back only when their channel ends
            return None
        unsettled: dict[bytes, int] | None = None
        settled: set[bytes] | None = None
        self._is_late = False
        for message in messages:
            if not message.redelivered:
                self._returned_are_through = True
            elif self._returned_are_through or message.deliveries > 1:
                if unsettled is None:
                    unsettled = {known.fingerprint: known.deliveries for known in self._out.values()}
                count = unsettled.get(message.fingerprint)
                if self._returned_are_through:
                    settled = self._settled_fingerprints() if settled is None else settled
                    if count is not None or message.fingerprint in settled:
                        return self._again()
                    self._is_late = True
                elif (
                    count is not None
                    and message.deliveries > count
                    and message.fingerprint not in self._misleading
                ):
                    return self._again(by_message=message.fingerprint)
            if unsettled is not None:
                unsettled[message.fingerprint] = message.deliveries
            self._out[message.tag] = message
        return None

    def in_order(self, messages: list[Original]) -> list[Original]:
        """The latest deliveries, after `delivered_again`, in the order of the queue.

        A quorum queue hands out what it got back before all else. But if its leader and this node lose sight
        of each other for a moment, messages that were on their way are taken back, and come behind some that
        are newer (3.10, when a node of the cluster came back): with the flag, and for the first time.
        """
        return sorted(messages, key=_is_new) if self._is_late else messages

    def _again(self, by_message: bytes = b"") -> DeliveredAgain:
        queue = self._inbound.name
        return DeliveredAgain(f"RabbitMQ delivers again what is unacked of {queue!r}", by_message)

    def _settled_fingerprints(self) -> set[bytes]:
        """Of originals whose ack may not have reached the queue's leader. That an ack is proven does not say
        so: a node that doesn't see the leader answers a declare all the same."""
        settled = self._inbound.settled
        return {fingerprint for entries in (settled.unproven, settled.proven) for _, fingerprint in entries}

    def settle(self, tag: int) -> None:
        """This original has ended: ack it with the next flush."""
        if self._out:
            self._out.pop(tag, None)
        if self._over or tag in self._not_in_history:  # acks are counted in the order of the settles
            self._over.append(tag)
        else:
            self._acks.settle(tag)

    def await_history(self, tag: int) -> None:
        """This original is not acked before `in_history` says so."""
        self._not_in_history.add(tag)

    def in_history(self, tag: int) -> None:
        self._not_in_history.discard(tag)
        while self._over and self._over[0] not in self._not_in_history:
            self._acks.settle(self._over.popleft())

    def flush_acks(self, now_ms: int, *, everything: bool = False) -> None:
        """Send the acks that are due, in order."""
        awaited = bool(self._inbound.unowned.pool)  # somebody has free capacity, and nothing to do
        if awaited and self._can_renew():
            self._refetch.set()
            awaited = False
        for ack in self._acks.take(now_ms, awaited=awaited, everything=everything):
            self._link.ack(self._channel, ack.tag, ack.multiple)
        if self._acks.unproven:
            self._wake.set()

    def settled_unacked(self, now_ms: int) -> SettledUnacked:
        """Settled originals whose acks wait for others."""
        since_ms = self._acks.waits_since_ms()
        return NOTHING_UNACKED if since_ms is None else SettledUnacked(self._acks.waiting, now_ms - since_ms)

    def deadline_ms(self) -> int | None:
        """When acks that wait are due."""
        return self._acks.deadline_ms()

    # -- consuming --

    def set_window(self, originals: int) -> None:
        """Fetch this many at a time. Not for a quorum queue: its consumer is never replaced, because its
        messages would come back out of order."""
        self._wanted = originals
        self._refetch.set()

    async def keep_window(self) -> None:
        """Give the consumer the window that is wanted, and room in it: until the connection ends."""
        try:
            while True:
                await self._refetch.wait()
                self._refetch.clear()
                if self._wanted != self._window:
                    self._window = self._wanted
                    await self._fetch(self._window)
                elif self._can_renew():
                    log.debug("inbound_renewed", queue=self._inbound.name, unacked=self._acks.unacked)
                    await self._fetch(self._window - self._acks.unsettled)
        except BrokerUnavailable:
            return  # the session hears of it itself

    def _can_renew(self) -> bool:
        """Whether settled originals take the room of others, and another consumer would have it: RabbitMQ
        counts against a prefetch what that consumer was given. The look-ahead stays what it is."""
        acks, window = self._acks, self._window
        if not self._source.classic or self._inbound.recovery is not None or window != self._wanted:
            return False
        if not acks.is_nearly_full or acks.unacked >= UNACKED_WINDOWS * window:
            return False
        if acks.unacked + window - acks.unsettled > UNPROVEN_MAX:
            return False
        return window - acks.unsettled >= max(self._renewed_for, window // ROOM_PART)

    # -- upkeep --

    async def look_after(self, now_ms: Callable[[], int]) -> None:
        """Prove acks, notice the end of the redeliveries: until the connection ends."""
        try:
            while True:
                if self._inbound.recovery is not None:
                    await self._look_for_end_of_redeliveries()
                    continue
                await self._wake.wait()
                self._wake.clear()
                proves = self._acks.unproven > 0
                if proves:
                    await self._prove(now_ms())
                if self._is_to_count:
                    await self._ready()
                if proves:
                    await asyncio.sleep(PROOF_INTERVAL_S)
        except BrokerUnavailable:
            return  # the session hears of it itself

    def count_ready(self) -> None:
        """Have `ready` counted anew: one round trip, in the background."""
        self._is_to_count = True
        self._wake.set()

    async def _fetch(self, prefetch: int) -> None:
        """Put another consumer, with this prefetch, in the place of the present one.

        Without a consumer RabbitMQ would let a successor in before it has given back the messages that are
        unacked here, and the successor would get newer messages first; so it is done in one piece. The tag is
        a new one, or acks of the former consumer's messages would count as room of this one.
        """
        former, self._consumer_tag = self._consumer_tag, f"{self._source.consumer_tag}-{self._consumers}"
        self._consumers += 1
        tag, queue = self._consumer_tag, self._inbound.name
        methods = (
            commands.Basic.Qos(prefetch_count=prefetch),
            commands.Basic.Cancel(consumer_tag=former),
            BasicConsume(queue=queue, consumer_tag=tag, exclusive=True),
        )
        async with self._one_request:
            # Messages on their way to the former consumer count for this one, which is replaced earlier by
            # that.
            self._acks.begin_consumer(prefetch)
            await asyncio.gather(*(self._link.call(self._channel, method) for method in methods))

    async def _look_for_end_of_redeliveries(self) -> None:
        """Nothing ready, twice, and nothing delivered between: a quorum queue counts, then delivers."""
        before = self._delivered
        # `None` is no answer.
        if await self._ready() == 0 and await self._ready() == 0 and self._delivered == before:
            self._returned_are_through = True
            self._report(RedeliveriesEnded(self._inbound.index))
        lasts_s = asyncio.get_running_loop().time() - self._begun_s
        await asyncio.sleep(min(RECOVERY_POLL_S_MAX, RECOVERY_POLL_S + lasts_s / RECOVERY_POLL_PART))

    async def _ready(self) -> int | None:
        """How many messages wait. None when nobody knows: if the leader of a quorum queue does not answer at
        once, RabbitMQ says that there are neither messages nor consumers. But we are one."""
        async with self._one_request:
            declare = QueueDeclare(queue=self._inbound.name, passive=True)
            declared = await self._link.call(self._channel, declare)
        if not self._source.classic:
            if not declared.consumer_count:
                return None
            self._watch_for_others(int(declared.consumer_count) - 1)
        self.ready, self._is_to_count = int(declared.message_count), False
        return self.ready

    def _watch_for_others(self, others: int) -> None:
        self._ghosts = min(self._ghosts, others)
        others -= self._ghosts
        problem = _others_problem(self._inbound.name, others) if others > 0 else None
        if problem != self.problem and problem is not None:
            log.warning("inbound_queue_shared", queue=self._inbound.name, consumers=others)
        self.problem = problem

    async def _prove(self, now_ms: int) -> None:
        """Acks sent before a passive declare on their channel are processed when that is answered."""
        self.flush_acks(now_ms)
        count = self._acks.take_acked()
        if count:
            while await self._ready() is None:  # noqa: ASYNC110 - the queue's leader may not have them yet
                await asyncio.sleep(PROOF_INTERVAL_S)
            self._report(AcksProven(self._inbound.index, count))
