"""Leads producers to the shards of a lane: one exchange, a consistent-hash exchange behind it (the ring), and
behind that an entrance for each shard, which leads on to the inbound queues of that shard.

So the group decides on the shard, and the routing key on the inbound queue there: all inbound queues of a
lane agree where a group belongs. RabbitMQ keeps a durable ring over a restart, but not the order of its
bindings (seen with 3.10.8), and then groups have other shards. So the exchange and the ring are not durable:
after a restart nobody can publish before a dispatcher has made them again, with the bindings in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog
from pamqp import base, commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import (
    BasicGet,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
)
from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    BrokerUnavailable,
    ChannelRefused,
    CommandRefused,
    ConfigurationError,
    is_missing,
)
from dispatcher.service.parking_feeds import find_parking_queues
from dispatcher.service.topology import exchange_exists, parking_queues
from dispatcher.settings import LaneSettings
from dispatcher.settings.units import format_duration
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import (
    FINGERPRINT_CHARACTERS,
    SHARDS_MAX,
    Shard,
    ShardNames,
    shard_name,
    whole_name,
)

log = structlog.get_logger()

#: What the leader of this shard has, in words; nothing, if it has nothing.
AskLeader = Callable[[LaneNames], Awaitable[list[str]]]
OpenLink = Callable[[], Awaitable[Link]]

RING_TYPE: Final = "x-consistent-hash"
#: What RabbitMQ says of a type that it does not know; 3.10 ends the connection with that, 4.0 the channel.
UNKNOWN_RING: Final = f"exchange type '{RING_TYPE}'"
PLUGIN: Final = "rabbitmq_consistent_hash_exchange"
PLUGIN_IS_MISSING: Final = f"RabbitMQ has no exchanges of type {RING_TYPE}: rabbitmq-plugins enable {PLUGIN}"
#: Instead of a fingerprint of where groups are.
_NOBODY_KNOWS: Final = "unknown"
#: Every shard has as many points on the ring, one: this is the binding's key.
_WEIGHT: Final = "1"
#: So many groups are tried. That all are in one shard by chance happens once in 2^31 times.
_PROBES: Final = 32
#: So often in a row former shards must be seen to be empty, and what is between two looks.
_EMPTY_LOOKS: Final = 3
_EMPTY_LOOK_S: Final = 0.2


def fingerprint(*parts: object) -> str:
    """The same for the same parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:FINGERPRINT_CHARACTERS]


async def open_shards(link: Link, lane: LaneSettings, prefix: str, anew: OpenLink, *, at_start: bool) -> bool:
    """Lead producers to the shards of the lane that `lane` is one of, if all its inbound queues are there.

    If they are led there already, only the start looks closer: it proves that all inbound queues agree.
    False: a start could not do that yet. `anew` opens another link, if `link` is lost because a former shard
    can't be looked into. Raises ConfigurationError for what an operator has to change.
    """
    shard = lane.shard
    path = f"lanes.{whole_name(lane.name)}.shards"
    try:
        if shard is not None:
            return await _Way(link, lane, shard, prefix).open(anew, at_start=at_start)
        if at_start:
            await _no_longer_shards(link, lane, prefix)
        return True
    except BrokerUnavailable as refused:
        if UNKNOWN_RING in str(refused):
            raise ConfigurationError(f"{path}: {PLUGIN_IS_MISSING}") from refused
        if _lacks_right(refused):
            raise ConfigurationError(f"{path}: {refused}") from refused
        raise


async def change_shards(
    link: Link, lane: LaneSettings, prefix: str, ask_leader: AskLeader, *, timeout_ms: int, anew: OpenLink
) -> bool:
    """Let groups go to as many shards as `lane`, which is one of them, says. False: they do already.

    RabbitMQ refuses publishes meanwhile, until all former shards are empty. Groups go where they went before,
    if that takes longer than `timeout_ms`, if it is cancelled, or if a shard can't be looked into. If `link`
    is lost, `anew` opens another one for that. Raises CommandRefused, if nothing changes.
    """
    assert lane.shard is not None
    return await _Way(link, lane, lane.shard, prefix).change(ask_leader, timeout_ms, anew)


class _Way:
    """From the exchange that producers publish to, to the inbound queues of all shards."""

    def __init__(self, link: Link, lane: LaneSettings, shard: Shard, prefix: str) -> None:
        self._link, self._lane, self._shard = link, lane, shard
        self._names = ShardNames(shard.lane, prefix)
        self._header = lane.group_header[0]
        self._ring = self._names.ring(shard.shards, fingerprint(self._header))
        ending = shard_name("", shard.number)
        self._queues = [inbound.queue.removesuffix(ending) for inbound in lane.inbound]  # as configured
        self._path = f"lanes.{shard.lane}.shards"

    async def open(self, anew: OpenLink, *, at_start: bool) -> bool:
        if not at_start and await exchange_exists(self._link, self._names.exchange):
            await self._bind_own()
            return True
        if not await self._make():  # whoever makes the queue that is missing leads producers here
            if self._is_fewer_than(await self._kept()):
                raise BrokerUnavailable(
                    f"{self._path}: can't look into former shards: an inbound queue is away"
                )
            return False
        placed = await self._placed()
        if not await exchange_exists(self._link, self._names.kept_ring):
            whole = LaneNames(self._shard.lane, self._names.prefix)
            self._refuse(await _remains(self._link, whole, self._queues))
        if await self._keep(placed):
            is_led = await self._lead()
        else:
            is_led = await self._leave_former(anew) and await self._lead_anew(placed)
        if is_led:
            self._tell()
        return True

    async def change(self, ask_leader: AskLeader, timeout_ms: int, anew: OpenLink) -> bool:
        if not await self._make():
            raise CommandRefused(f"{self._path}: an inbound queue of a shard is missing, or its node is away")
        placed = await self._placed()
        if not await exchange_exists(self._link, self._names.kept_ring):
            raise CommandRefused(f"{self._path}: no dispatcher has led producers to shards yet")
        if await self._keep(placed) and await self._lead():
            return False
        before = await self._led_now()
        result = "nothing changed" if before else "publishes are still refused"
        try:
            await _delete(self._link, self._names.exchange)
            if left := await self._until_empty(ask_leader, timeout_ms):
                raise CommandRefused(f"not empty within {format_duration(timeout_ms)}, so {result}: {left}")
        except BaseException as problem:
            if before is not None:
                await before._lead_back(anew)
            if isinstance(problem, BrokerUnavailable):
                raise CommandRefused(f"can't look into the shards, so {result}: {problem}") from problem
            raise
        if not await self._lead_anew(placed):
            raise CommandRefused(f"{self._path}: a dispatcher has begun to lead meanwhile; try again")
        return True

    async def _led_now(self) -> _Way | None:
        """Where the exchange leads to. None: it is not there, or nobody knows."""
        if not await exchange_exists(self._link, self._names.exchange):
            return None
        unknown = self._names.placed(_NOBODY_KNOWS)
        if await self._declare_leading(self._names.placement, unknown, durable=True):
            return None
        if (kept := await self._kept()) is None:
            raise CommandRefused(f"{self._path}: {self._names.exchange} leads to something else")
        return kept

    async def _until_empty(self, ask_leader: AskLeader, timeout_ms: int) -> str:
        """What is left after that time, in words. A message may be on its way to a leader while nobody counts
        it: so nothing must be left several times."""
        former, left, looks = _Former(self._link, self._names, self._queues), dict[int, list[str]](), 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                while looks < _EMPTY_LOOKS:
                    left = await former.remains(ask_leader)
                    looks = 0 if left else looks + 1
                    await asyncio.sleep(_EMPTY_LOOK_S)
                return ""
        if remains := "; ".join(each for of_shard in left.values() for each in of_shard):
            return remains
        if former.looks_into:
            return f"no answer yet about {former.looks_into}"
        return "there was no time to see several times that nothing is left"

    def _tell(self) -> None:
        names, shard = self._names, self._shard
        log.info("shards_reached", lane=shard.lane, exchange=names.exchange, shards=shard.shards)

    def _refuse(self, remains: list[str]) -> None:
        if remains:
            raise ConfigurationError(f"{self._path}: {_left(remains)}")

    async def _make(self) -> bool:
        """Everything but the exchange itself. False: an inbound queue of another shard is missing."""
        numbers = range(1, self._shard.shards + 1)
        channel = await self._link.open_channel()
        try:
            for number in numbers:
                await self._bind(channel, number)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            return False
        arguments = {"hash-header": self._header}
        await self._declare(channel, self._ring, RING_TYPE, durable=False, arguments=arguments)
        for number in numbers:  # several dispatchers that do this at once bind in the same order, too
            bind = ExchangeBind(
                destination=self._names.entrance(number), source=self._ring, routing_key=_WEIGHT
            )
            await self._link.call(channel, bind)
        await self._link.call(channel, commands.Channel.Close(200, "made", 0, 0))
        return True

    async def _bind_own(self) -> None:
        """The file may have got more inbound queues while producers are led here."""
        channel = await self._link.open_channel()
        await self._bind(channel, self._shard.number)
        await self._link.call(channel, commands.Channel.Close(200, "bound", 0, 0))

    async def _bind(self, channel: int, number: int) -> None:
        entrance = self._names.entrance(number)
        await self._declare(channel, entrance, "direct")
        for queue in self._queues:
            name = shard_name(queue, number)
            await self._link.call(channel, QueueBind(queue=name, exchange=entrance, routing_key=queue))

    async def _declare(self, channel: int, exchange: str, kind: str, **more: Any) -> None:
        await self._link.call(
            channel, ExchangeDeclare(exchange=exchange, exchange_type=kind, **{"durable": True, **more})
        )

    async def _probe(self) -> list[int]:
        """The shards of some groups. Raises ConfigurationError if two inbound queues don't agree on them, or
        if it is not the group that decides."""
        keys = [f"probe-{uuid.uuid4()}" for _ in range(2)]  # as if they were two inbound queues
        numbers = range(1, self._shard.shards + 1)
        channel = await self._link.open_channel()
        places = {number: f"{self._names.entrance(number)}.{uuid.uuid4().hex[:8]}" for number in numbers}
        for number, queue in places.items():
            declare = QueueDeclare(queue=queue, exclusive=True, auto_delete=True)
            await self._link.call(channel, declare)
            for key in keys:
                entrance = self._names.entrance(number)
                await self._link.call(channel, QueueBind(queue=queue, exchange=entrance, routing_key=key))
        for probe in range(_PROBES):
            properties = commands.Basic.Properties(headers={self._header: f"probe {probe}"}).marshal()
            for key in keys:
                self._link.publish(
                    channel, exchange=self._ring, routing_key=key, properties=properties,
                    body=str(probe).encode(), mandatory=False,
                )  # fmt: skip
        found: dict[int, list[int]] = {probe: [] for probe in range(_PROBES)}
        for number, queue in places.items():
            # A queue answers how many it has before what came just now; a get comes after that.
            get = commands.Basic.Get(queue=queue, no_ack=True)
            while isinstance(got := await self._link.call(channel, get), Fetched):
                found[int(got.body)].append(number)
            await self._link.call(channel, commands.Queue.Delete(queue=queue))
        await self._link.call(channel, commands.Channel.Close(200, "probed", 0, 0))
        return self._judged(found, len(keys))

    def _judged(self, found: dict[int, list[int]], keys: int) -> list[int]:
        if any(len(shards) != keys or len(set(shards)) > 1 for shards in found.values()):
            text = f"the inbound queues don't agree where a group belongs; delete the exchange {self._ring}"
            raise ConfigurationError(f"{self._path}: {text}")
        placed = [shards[0] for shards in found.values()]
        if len(set(placed)) == 1:
            text = f"the exchange {self._ring} does not spread by the header {self._header}; delete it"
            raise ConfigurationError(f"{self._path}: {text}")
        return placed

    async def _lead(self) -> bool:
        """Lead producers to the ring; False: they are led to another one.

        The ring takes everything that the exchange has no binding for, so both begin at once.
        """
        return await self._declare_leading(self._names.exchange, self._ring, durable=False)

    async def _lead_back(self, anew: OpenLink) -> None:
        """Also if the connection is lost: RabbitMQ ends it when somebody reads a queue that has no leader.
        Raises CommandRefused."""
        with contextlib.suppress(BrokerUnavailable):
            await self._lead()
            return
        try:
            self._link = await anew()
            try:
                await self._lead()
            finally:
                await self._link.close()
        except BrokerUnavailable as lost:
            raise CommandRefused(f"{self._path}: publishes are still refused: {lost}") from lost

    async def _lead_anew(self, placed: str) -> bool:
        """Once all former shards are empty. False: somebody else has led producers meanwhile.

        Until they are led it is kept that nobody knows where groups are. If this is cut short, producers are
        led nowhere else before all shards are empty once more.
        """
        await self._keep_instead(self._names.placement, self._names.placed(_NOBODY_KNOWS))
        await self._keep_instead(self._names.kept_ring, self._ring)
        if not await self._lead():
            return False
        await self._keep_instead(self._names.placement, placed)
        return True

    async def _keep(self, placed: str) -> bool:
        """Keep which groups are where, and the ring; False: they were elsewhere before."""
        return await self._declare_leading(
            self._names.kept_ring, self._ring, durable=True
        ) and await self._declare_leading(self._names.placement, placed, durable=True)

    async def _keep_instead(self, exchange: str, alternate: str) -> None:
        while not await self._declare_leading(exchange, alternate, durable=True):
            await _delete(self._link, exchange)

    async def _placed(self) -> str:
        """Tells apart which groups are where. A few groups don't tell many shards from one more."""
        found = fingerprint(self._header, self._shard.shards, await self._probe())
        return self._names.placed(found)

    async def _declare_leading(self, exchange: str, alternate: str, *, durable: bool) -> bool:
        channel = await self._link.open_channel()
        arguments = {"alternate-exchange": alternate}
        try:
            await self._declare(channel, exchange, "fanout", durable=durable, arguments=arguments)
        except ChannelRefused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            return False
        await self._link.call(channel, commands.Channel.Close(200, "declared", 0, 0))
        return True

    async def _leave_former(self, anew: OpenLink) -> bool:
        """Groups go to other shards from now on. False: not yet, for something is left in former ones that
        are shards of today as well, which hand it out; or one can't be looked into now. Raises
        ConfigurationError if something is left in others, or if another header had the group: a group of
        today may be in any shard then."""
        former = _Former(self._link, self._names, self._queues)
        for is_led_to in (True, False):
            try:
                remains = await former.remains()
            except BrokerUnavailable as problem:
                if _lacks_right(problem) or not await self._stay(anew, str(problem)):
                    raise
                return False
            self._refuse(
                [each for number, left in remains.items() for each in left if number > self._shard.shards]
            )
            if remains:
                left = [each for number in remains for each in remains[number]]
                kept = await self._kept()
                if kept is None:
                    self._refuse(left)
                    return False
                self._tell_kept(left)
                await kept._lead_again()
                return False
            if is_led_to:  # and somebody may have published since
                await _delete(self._link, self._names.exchange)
                await asyncio.sleep(_EMPTY_LOOK_S)  # what they have published may be on its way to its queue
        return True

    async def _stay(self, anew: OpenLink, problem: str) -> bool:
        """Lead producers to the former shards, over another link: RabbitMQ ends the one over which somebody
        reads a queue that has no leader. False: that can't be done now, or one of them would not be led."""
        link = await anew()
        try:
            kept = await _Way(link, self._lane, self._shard, self._names.prefix)._kept()
            if kept is None or self._is_fewer_than(kept) or not await kept._lead_again():
                return False
        finally:
            await link.close()
        self._tell_kept([problem])
        return True

    async def _kept(self) -> _Way | None:
        """To as many shards as are kept. None: another header had the group."""
        counts = range(2, SHARDS_MAX + 1) if await exchange_exists(self._link, self._names.kept_ring) else ()
        for shards in counts:
            way = _Way(self._link, self._lane, self._shard._replace(shards=shards), self._names.prefix)
            if await self._declare_leading(self._names.kept_ring, way._ring, durable=True):
                return way
        return None

    def _is_fewer_than(self, kept: _Way | None) -> bool:
        """Some of the shards that are kept are not led any more."""
        return kept is not None and kept._shard.shards > self._shard.shards

    def _tell_kept(self, left: list[str]) -> None:
        log.warning("shards_kept", lane=self._shard.lane, left=left)

    async def _lead_again(self) -> bool:
        """After a restart of RabbitMQ, or when the exchange was deleted just now. Nobody is led there by a
        version of RabbitMQ that spreads groups otherwise, nor while the node of a queue is away: False."""
        is_led = await self._make() and await self._keep(await self._placed()) and await self._lead()
        if is_led:
            self._tell()
        return is_led


class _Former:
    """The shards that a lane has, or had before."""

    def __init__(self, link: Link, names: ShardNames, queues: list[str]) -> None:
        self._link, self._names, self._queues = link, names, queues
        self._numbers: list[int] = []
        self.looks_into = "the shards"  # now; empty between two looks

    async def _find(self) -> None:
        numbers = range(1, SHARDS_MAX + 1)
        entrances = [self._names.entrance(number) for number in numbers]
        are_there = await asyncio.gather(*(exchange_exists(self._link, each) for each in entrances))
        self._numbers = [number for number, is_there in zip(numbers, are_there, strict=True) if is_there]

    async def remains(self, ask_leader: AskLeader | None = None) -> dict[int, list[str]]:
        """What is left in each, in words; only those in which something is left. Without `ask_leader` a
        leader is enough for that."""
        if not self._numbers:
            await self._find()
        found = {}
        for number in self._numbers:
            queues = [shard_name(queue, number) for queue in self._queues]
            self.looks_into = " and ".join(queues)
            if left := await _remains(self._link, self._names.shard(number), queues, ask_leader):
                found[number] = left
        self.looks_into = ""
        return found


async def _no_longer_shards(link: Link, lane: LaneSettings, prefix: str) -> None:
    names = ShardNames(lane.name, prefix)
    if not await exchange_exists(link, names.kept_ring):
        return
    remains = await _Former(link, names, [inbound.queue for inbound in lane.inbound]).remains()
    if remains:
        left = _left(each for of_shard in remains.values() for each in of_shard)
        raise ConfigurationError(f"lanes.{lane.name}.shards: {left}")
    await _delete(link, names.exchange, *names.kept)


def _lacks_right(problem: BrokerUnavailable) -> bool:
    """An operator has to give it."""
    return isinstance(problem, ChannelRefused) and problem.code == ACCESS_REFUSED


def _left(remains: Iterable[str]) -> str:
    return f"{'; '.join(remains)}: that has to end first, with the configuration of before"


async def _remains(
    link: Link, names: LaneNames, queues: list[str], ask_leader: AskLeader | None = None
) -> list[str]:
    """What is left of a lane, in words. Without `ask_leader` nobody should lead it any more.

    The queues are asked first, and the leader after them: it knows the messages that have left its queues by
    then. A message is in its queue or with a reader, and RabbitMQ says both at once: so a leader that begins
    or ends between two questions hides nothing.
    """
    looks = {queue: await _asked(link, QueueDeclare(queue=queue, passive=True)) for queue in queues}
    there = {queue: declared for queue, declared in looks.items() if declared is not None}
    unread = [queue for queue, each in there.items() if not each.message_count and not each.consumer_count]
    found = [f"messages in {queue}" for queue, each in there.items() if each.message_count]
    is_led = await _is_led(link, names)
    if not is_led:
        found += [f"messages in {queue}" for queue in unread if await _gives_one(link, queue)]
        if await find_parking_queues(link, parking_queues(names, PARKING_QUEUES_MAX)):
            found.append(f"parked messages of {names.lane}")
    if not is_led and not await _is_led(link, names):
        return found + [f"a reader of {queue}" for queue, each in there.items() if each.consumer_count]
    if ask_leader is None:
        return [*found, f"a dispatcher leads {names.lane}"]
    return found + [f"no reader of {queue} yet" for queue in unread] + await ask_leader(names)


async def _is_led(link: Link, names: LaneNames) -> bool:
    declared = await _asked(link, QueueDeclare(queue=names.lock, passive=True))
    return declared is not None and declared.consumer_count > 0


async def _gives_one(link: Link, queue: str) -> bool:
    """For a queue of which RabbitMQ counts neither messages nor readers, as it does for a quorum queue that
    has no leader: fetches one, which goes back at once. That takes the right to read the queue."""
    return isinstance(await _asked(link, BasicGet(queue=queue)), Fetched)


async def _asked(link: Link, question: base.Frame) -> Any:
    """The answer about a queue; None: it is not there."""
    channel = await link.open_channel()
    try:
        answer = await link.call(channel, question)
    except ChannelRefused as refused:
        if not is_missing(refused):
            raise
        return None
    await link.call(channel, commands.Channel.Close(200, "asked", 0, 0))
    return answer


async def _delete(link: Link, *exchanges: str) -> None:
    channel = await link.open_channel()
    for exchange in exchanges:
        await link.call(channel, ExchangeDelete(exchange=exchange))  # also if it is not there
    await link.call(channel, commands.Channel.Close(200, "deleted", 0, 0))
