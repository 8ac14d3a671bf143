"""The parking queues on the connection: declared, read on demand, acked, given back, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import structlog
from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.events import Event
from dispatcher.core.model import Original
from dispatcher.core.parking.events import (
    ParkingQueueDeleted,
    ParkingQueueOpened,
    ParkingQueueRead,
    ParkingQueueUnavailable,
)
from dispatcher.core.parking.orders import (
    AbandonParkingQueue,
    DeleteParkingQueue,
    GiveBack,
    OpenParkingQueue,
    ParkingAction,
    ReadParkingQueue,
)
from dispatcher.core.queue_ids import QueueId, parking_id, parking_place
from dispatcher.errors import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    BrokerUnavailable,
    ChannelRefused,
    DeliveredAgain,
    is_out_of_reach,
)
from dispatcher.service.ack_window import AckWindow
from dispatcher.service.channels import Channels
from dispatcher.service.message_reader import MessageReader
from dispatcher.service.parking_probe import ParkingProbe
from dispatcher.service.tasks import Tasks
from dispatcher.service.topology import Parked, open_parking
from dispatcher.wire.protocol import LaneNames

log = structlog.get_logger()

#: RabbitMQ answers a declare up to two seconds before the queue is on disk: one that was younger was seen to
#: be gone after a kill -9, with everything in it that had been confirmed.
DEFINED_S: Final = 3.0
#: Pauses between attempts to open one. It is told after these attempts that it can't be opened: leaders are
#: elected within them.
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 30.0
QUIET_ATTEMPTS: Final = 2
#: How long a former leader may still have messages of a quorum queue, see `_open`. One whose node is away may
#: be counted until that is back, though its messages are returned.
FORMER_S: Final = 4.0
#: How long a quorum queue may take for what was given back.
TAKEN_BACK_S: Final = 30.0
#: How often it is asked for either.
POLL_S: Final = 0.01
#: So many times in a row it must say that it is empty, before that is believed. See `ParkingFeed.fetch`.
EMPTY_LOOKS: Final = 100
#: For its acks it counts as full with this many unacked: a delivery settled behind a stuck one is acked
#: singly.
_UNACKED_MAX: Final = 1_000


#: The fingerprint of a parked original and the term of its copy: no copy is published twice under one.
_Copy = tuple[bytes, int]


class ReturnedMessages:
    """What a quorum queue got back and hands out again: nothing of it is acked before all of it is settled.

    Each `basic.get` is a consumer to RabbitMQ. Up to 4.1.0 the members of a quorum queue put the messages of
    many consumers that end together back in different orders (rabbitmq-server#13971). So to another member
    each of these tags stands for another one of these messages. If that member becomes the leader after some
    acks, other messages are gone than those that were settled, and a tag that is given back puts another
    message into the queue. All of them together are the same everywhere: they are acked or given back
    together. Until then one that is given back is kept here, and is part of the next fetch.
    """

    def __init__(self) -> None:
        self._unsettled: dict[int, Fetched] = {}  # by tag
        self._settled: list[int] = []
        self._kept: dict[int, Fetched] = {}  # of the unsettled

    def fetched(self, messages: list[Fetched]) -> None:
        """All that is flagged is read at once: then nothing of it is in the queue."""
        self._unsettled |= {message.tag: message for message in messages if message.redelivered}

    def settled(self, tag: int) -> list[int]:
        """This one is settled. Returns what may be acked now."""
        if tag not in self._unsettled:
            return [tag]
        del self._unsettled[tag]
        self._settled.append(tag)
        if self._unsettled:
            return []
        acked, self._settled = self._settled, []
        return acked

    def keep(self, tag: int) -> bool:
        """Keep it for the next fetch. False: it is none of these."""
        message = self._unsettled.get(tag)
        if message is not None:
            self._kept[tag] = message
        return message is not None

    def take_kept(self) -> list[Fetched]:
        """What was kept, in any order."""
        kept, self._kept = self._kept, {}
        return list(kept.values())

    def take_all(self) -> list[int]:
        """If nobody has any of them: what goes back to the queue. The settled ones are known when they come
        again."""
        if not self._kept or len(self._kept) < len(self._unsettled):
            return []
        tags = [*self._settled, *self._unsettled]
        self._settled, self._unsettled, self._kept = [], {}, {}
        return tags


class ParkingFeed:
    """One parking queue: its channel and its acks."""

    def __init__(
        self, link: Link, name: str, channel: int, read: Callable[[list[Fetched]], list[Original]], *,
        quorum: bool = False, has_others: bool = False, misleading: Collection[bytes] = (),
    ) -> None:  # fmt: skip
        """`read` makes the originals. `has_others`: RabbitMQ may still count messages as a former leader's.
        `misleading`: fingerprints of messages that somebody may have stored twice."""
        self.name = name
        self.channel = channel
        self.quorum = quorum
        self.acks = AckWindow(prefetch=_UNACKED_MAX)
        self.has_others = has_others
        self._read = read
        self._returned = ReturnedMessages() if quorum else None
        self._misleading = misleading
        # Of a quorum queue: the copies that are here, by tag; those that were given back, and have not come
        # again; and messages that were read for nobody yet.
        self._out: dict[int, _Copy] = {}
        self._given_back: set[_Copy] = set()
        self._unread: list[Fetched] = []
        self._has_flagged = quorum  # or may have: messages that came back
        self._link = link
        self.left = 0  # messages in it, as the latest answer said: there is no other reader

    async def fetch(self, limit: int) -> tuple[list[Original], bool]:
        """Up to `limit` messages, and whether none was left after them.

        A quorum queue hands out first what it got back, in any order. So all of that is fetched together, and
        may be more; who takes it sorts it. If this feed has given back more than 32 messages, RabbitMQ (3.10
        and 4.0) answers a `basic.get` before it has taken them all back: the answer is a newer message, or
        that the queue is empty. So the feed fetches until each of them has come again. Raises DeliveredAgain.

        What does not come has expired, was dropped or purged: nobody else is counted as a reader then. A
        queue that counts neither messages nor readers may have no leader at this moment. But only a leader
        answers a `basic.get`, and one is sent after each look: after many such looks in a row it is empty.
        """
        fetched, self._unread = self._unread, []
        if self._returned is not None:
            fetched += self._returned.take_kept()
        messages = self._originals(fetched)
        wanted = limit - len(messages)
        clock = asyncio.get_running_loop().time
        deadline = clock() + TAKEN_BACK_S
        empty_looks = 0
        while True:
            is_last = not self._given_back or clock() >= deadline
            if not is_last:
                others = await self._other_readers()
                empty_looks = empty_looks + 1 if others is None else 0
                is_last = others == 0 or empty_looks >= EMPTY_LOOKS
            fetched, is_end = await self._fetch_flagged(wanted, limit)
            messages += self._originals(fetched)
            wanted = 1
            if is_last or not self._given_back:
                self._given_back.clear()
                return messages, is_end
            await asyncio.sleep(POLL_S)

    async def until_alone(self, limit_s: float) -> None:
        """Wait until a quorum queue has taken back all that others have: who reads before gets newer messages
        first, or hears that it is empty. Each message that a `basic.get` has counts as a reader.

        After `limit_s` whoever is still counted is waited for no more: somebody else may read the queue.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_s
        while await self._other_readers() != 0:
            if clock() >= deadline:
                self.has_others = True
                return
            await asyncio.sleep(POLL_S)

    async def _other_readers(self) -> int | None:
        """How many messages RabbitMQ counts as taken, beside ours; None: there may be no leader to count."""
        ours = self.acks.unacked  # now: acks that are sent meanwhile may count already
        declared = await self._link.call(self.channel, QueueDeclare(queue=self.name, passive=True))
        if not declared.message_count and not declared.consumer_count:
            return None
        return max(0, int(declared.consumer_count) - ours)

    def _originals(self, fetched: list[Fetched]) -> list[Original]:
        """The messages that were fetched, as the core takes them. Raises DeliveredAgain."""
        messages = self._read(fetched)
        if self._returned is not None:
            self._returned.fetched(fetched)
            again = self._delivered_again(messages)
            if again is not None:
                raise again
        return messages

    async def _fetch_flagged(self, wanted: int, at_once: int) -> tuple[list[Fetched], bool]:
        """Up to `wanted` messages; and all that came back to a quorum queue, `at_once` of them at a time."""
        fetched: list[Fetched] = []
        is_end = False
        while not is_end and (len(fetched) < wanted or self._has_flagged):
            more, is_end = await self._fetch(at_once if self._has_flagged else wanted)
            self._has_flagged = self.quorum and not is_end and more[-1].redelivered
            fetched += more
        self.acks.deliver(len(fetched))
        return fetched, is_end

    async def _fetch(self, limit: int) -> tuple[list[Fetched], bool]:
        get = commands.Basic.Get(queue=self.name)
        fetched: list[Fetched] = []
        is_end = False
        while not is_end and len(fetched) < limit:
            # One more than there should be, to find the end; each more would cost as much and find nothing.
            asked = min(self.left + 1, limit - len(fetched))
            answers: list[Any] = await asyncio.gather(
                *(self._link.call(self.channel, get) for _ in range(asked))
            )  # fmt: skip
            fetched += [answer for answer in answers if isinstance(answer, Fetched)]
            is_end = not isinstance(answers[-1], Fetched)
            self.left = 0 if is_end else answers[-1].message_count
        return fetched, is_end

    def _delivered_again(self, messages: Iterable[Original]) -> DeliveredAgain | None:
        """What to end the session with, if one of these fetched messages is here under another tag.

        A leader of the queue that loses sight of this node takes back all that was fetched here, and the
        channel stays open: an ack of the tag that is here means nothing then. And if another member becomes
        the leader while what came back is fetched, it goes on in its own order (see `ReturnedMessages`): each
        message that comes twice then hides another one, which is out under the first tag. The next session
        reads everything anew. No copy is ever published twice under one term.
        """
        known: dict[_Copy, int] | None = None
        for message in messages:
            copy = message.fingerprint, message.term
            if message.redelivered and known is None:
                known = {here: tag for tag, here in self._out.items()}
            is_again = known is not None and known.setdefault(copy, message.tag) != message.tag
            if is_again and message.redelivered and message.fingerprint not in self._misleading:
                problem = f"RabbitMQ delivers again what is unacked of {self.name!r}"
                return DeliveredAgain(problem, by_message=message.fingerprint)
            self._out[message.tag] = copy
            self._given_back.discard(copy)
        return None

    def settle(self, tag: int) -> None:
        """This original has ended: it is acked with a later flush."""
        for acked in [tag] if self._returned is None else self._returned.settled(tag):
            self._out.pop(acked, None)
            self.acks.settle(acked)
        self._give_back_all()

    def give_back(self, tags: tuple[int, ...]) -> None:
        """Put them back: into their places, or before all that was not read. Nothing that is sent later can
        ack them."""
        for tag in tags:
            if self._returned is None or not self._returned.keep(tag):
                self._nack(tag)
        self._give_back_all()

    def _give_back_all(self) -> None:
        """Give what came back to the queue again, as soon as all of it can be."""
        for tag in self._returned.take_all() if self._returned is not None else ():
            self._nack(tag)

    def _nack(self, tag: int) -> None:
        self._has_flagged = self.quorum
        if self.quorum:
            self._given_back.add(self._out.pop(tag))
        self.acks.give_back(tag)
        self._link.send(self.channel, commands.Basic.Nack(delivery_tag=tag, requeue=True))

    def flush_acks(self, now_ms: int, *, everything: bool = False) -> None:
        for ack in self.acks.take(now_ms, everything=everything):
            self._link.ack(self.channel, ack.tag, ack.multiple)
        self.acks.take_acked()  # nothing is proven of these: a fingerprint names one original

    async def delete_empty(self) -> bool:
        """False: something is in it. Raises ChannelRefused.

        RabbitMQ deletes no quorum queue on that condition, and may count nothing in one that has no leader.
        But nobody else publishes to it now: the next message is asked for.
        """
        if self.quorum:
            if self.acks.unsettled:
                return False
            self._unread, _ = await self._fetch_flagged(1, 1)
            # A leader has answered, so the count is one.
            if self._unread or (self.has_others and await self._other_readers()):
                return False
        delete = commands.Queue.Delete(queue=self.name, if_empty=not self.quorum)
        await self._link.call(self.channel, delete)
        return True


class ParkingFeeds:
    """All parking queues of a session. `report` takes what the core must know, `fail` ends the session."""

    def __init__(
        self,
        link: Link,
        names: tuple[str, ...],
        lane: LaneNames,
        channels: Channels,
        reader: MessageReader,
        *,
        quorum: bool,
        probe: ParkingProbe,
        defined_s: float,
        former_s: float,
        misleading: Collection[bytes],
        report: Callable[[Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._link = link
        self._defined_s = defined_s
        self._former_s = former_s
        self._misleading = misleading
        self._quorum = quorum  # what new ones are
        self._probe = probe
        self._opening: dict[QueueId, asyncio.Task[None]] = {}
        self._names = names
        self._lane = lane
        self._channels = channels
        self._reader = reader
        self._report = report
        self._feeds: dict[QueueId, ParkingFeed] = {}
        self._tasks = Tasks(fail)

    # -- orders --

    def perform(self, order: ParkingAction) -> None:
        """Carry out an order; an answer to it is reported as an event."""
        match order:
            case ReadParkingQueue():
                self._tasks.start(self._read, self._feeds[order.queue], order)
            case GiveBack():
                self._feeds[order.queue].give_back(order.tags)
            case OpenParkingQueue():
                self._opening[order.queue] = self._tasks.start(self._open, order.queue)
            case AbandonParkingQueue():
                self._opening.pop(order.queue).cancel()
            case DeleteParkingQueue():
                self._tasks.start(self._delete, order.queue)

    def close(self) -> None:
        """The session has ended: wait for nothing more."""
        self._tasks.close()
        self._probe.close()

    async def _open(self, queue: QueueId) -> None:
        name, attempts, pause_s = self._names[parking_place(queue)], 0, RETRY_S_MIN
        while isinstance(parked := await self._try_to_open(name), str):
            attempts += 1
            if attempts > QUIET_ATTEMPTS:
                self._report(ParkingQueueUnavailable(queue, parked))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)
        feed = self._feed(queue, parked.channel, quorum=parked.is_quorum)
        if parked.is_quorum and parked.readers:
            # Each channel of a former leader's connection ends when RabbitMQ has worked off what came on it.
            # That of the lock may be the first, and one that has fetches to do the last.
            log.info("parking_queue_is_read", lane=self._lane.lane, queue=name)
            await feed.until_alone(self._former_s)
        self._opening.pop(queue, None)
        if self._quorum and not parked.is_quorum:
            log.warning("parking_queue_is_classic", lane=self._lane.lane, queue=name)
        self._channels.parking.add(parked.channel)
        self._feeds[queue] = feed
        self._report(ParkingQueueOpened(queue))

    def _feed(self, queue: QueueId, channel: int, *, quorum: bool, has_others: bool = False) -> ParkingFeed:
        return ParkingFeed(
            self._link, self._names[parking_place(queue)], channel,
            lambda fetched: self._reader.parked(queue, fetched),
            quorum=quorum, has_others=has_others, misleading=self._misleading,
        )  # fmt: skip

    async def _try_to_open(self, name: str) -> Parked | str:
        """Why it can't be opened, if it can't."""
        if self._quorum and (problem := await self._probe.problem_of(name)) is not None:
            return problem
        try:
            parked = await open_parking(self._link, self._lane, name, quorum=self._quorum)
        except ChannelRefused as refused:
            return str(refused)
        if parked.was_there:
            return parked
        await asyncio.sleep(self._defined_s)
        if self._quorum and (problem := await self._probe.problem_of(name)) is not None:
            await self._link.call(parked.channel, commands.Channel.Close(200, "not used", 0, 0))
            return problem
        # It may have had no leader to count.
        declared = await self._link.call(parked.channel, QueueDeclare(queue=name, passive=True))
        return parked._replace(readers=int(declared.consumer_count))

    async def _read(self, feed: ParkingFeed, order: ReadParkingQueue) -> None:
        messages, is_end = await feed.fetch(order.limit)
        if feed.quorum:
            messages.sort(key=_place)
        self._report(ParkingQueueRead(order.queue, messages, is_end, feed.left))

    async def _delete(self, queue: QueueId) -> None:
        feed = self._feeds.pop(queue)
        feed.flush_acks(0, everything=True)
        self._channels.parking.discard(feed.channel)
        pause_s, is_deleted = RETRY_S_MIN, None
        while is_deleted is None:
            try:
                is_deleted = await feed.delete_empty()
            except ChannelRefused as refused:
                channel = await self._link.open_channel()
                if refused.code == PRECONDITION_FAILED:
                    return self._keep(queue, feed, channel)
                if refused.code != NOT_FOUND:
                    raise
                # The closed channel may have had something.
                feed = self._feed(queue, channel, quorum=feed.quorum, has_others=feed.quorum)
                if is_out_of_reach(refused):  # the queue is still there when that is back
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RETRY_S_MAX)
                else:  # somebody did that before
                    is_deleted = True
        if is_deleted:
            self._report(ParkingQueueDeleted(queue, True))
            await self._link.call(feed.channel, commands.Channel.Close(200, "deleted", 0, 0))
        else:
            self._keep(queue, feed, feed.channel)

    def _keep(self, queue: QueueId, feed: ParkingFeed, channel: int) -> None:
        """Something is in it: go on with it."""
        self._channels.parking.add(channel)
        if channel != feed.channel:
            feed = self._feed(queue, channel, quorum=feed.quorum, has_others=feed.has_others)
        self._feeds[queue] = feed
        self._report(ParkingQueueDeleted(queue, False))

    # -- acks --

    def settle(self, queue: QueueId, tag: int) -> None:
        """This original has ended: ack it with the next flush."""
        self._feeds[queue].settle(tag)

    def flush_acks(self, now_ms: int, *, everything: bool = False) -> None:
        for feed in self._feeds.values():
            feed.flush_acks(now_ms, everything=everything)

    def deadline_ms(self) -> int | None:
        """When acks that wait are due."""
        if not self._feeds:
            return None
        deadlines = (feed.acks.deadline_ms() for feed in self._feeds.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _place(message: Original) -> tuple[bool, int, tuple[int, int]]:
    """What a quorum queue got back comes before the rest, whose order it keeps. Of a group's messages from
    one inbound queue those that arrived first were parked first."""
    if not message.redelivered:
        return True, 0, (0, 0)
    return False, message.inbound, message.first_arrival


async def find_parking_queues(link: Link, names: tuple[str, ...]) -> tuple[QueueId, ...]:
    """The indexes of those that exist. Asked only when Redis may have forgotten some."""

    async def exists(name: str) -> bool:
        channel = await link.open_channel()
        try:
            await link.call(channel, QueueDeclare(queue=name, passive=True))
        except ChannelRefused as refused:
            if is_out_of_reach(refused):  # it may be full: its groups wait until it can be opened (P-11)
                return True
            if refused.code != NOT_FOUND:
                raise BrokerUnavailable(f"{name}: {refused}") from refused
            return False
        await link.call(channel, commands.Channel.Close(200, "asked", 0, 0))
        return True

    found = await asyncio.gather(*(exists(name) for name in names))
    return tuple(parking_id(place) for place, is_there in enumerate(found) if is_there)
