"""The lane's own exchanges and queues on the broker, and its inbound queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog
from pamqp import commands

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import ExchangeDeclare, QueueBind, QueueDeclare
from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    ChannelRefused,
    ConfigurationError,
    is_out_of_reach,
)
from dispatcher.service.queue_kinds import (
    CLASSIC,
    QUORUM,
    DeliveryLimit,
    has_priorities,
    kind_of_queue,
    low_delivery_limit,
    unusable,
)
from dispatcher.settings import LaneSettings, QueueKind
from dispatcher.wire.protocol import KEY_COMMAND, KEY_CONTROL, KEY_HEARTBEAT, LaneNames
from dispatcher.wire.shards import shard_number

log = structlog.get_logger()

#: A vhost may have another default queue type, under which `exclusive` means nothing.
_CLASSIC: Final[dict[str, Any]] = {"x-queue-type": "classic"}
#: Old messages are removed one segment at a time, and never the last segment: with RabbitMQ's own 500 MB a
#: slow lane's messages would stay for years.
_SEGMENT_BYTES: Final = 50_000_000
#: RabbitMQ before 3.12 keeps the messages of a classic queue in its memory, as long as there is room: over a
#: gigabyte for a million parked ones. Later versions know the argument and do what it says with every queue.
_PARKING: Final[dict[str, Any]] = {**_CLASSIC, "x-queue-mode": "lazy"}
_HEARTBEAT: Final[dict[str, Any]] = {"x-message-ttl": 15_000, "x-max-length": 10_000}
#: RabbitMQ 4 drops a message at its 21st delivery unless the queue says otherwise. -1, which means never, is
#: refused by RabbitMQ 3, which without a limit puts what is given back at the end of the queue.
_QUORUM: Final[dict[str, Any]] = {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000}
#: On a quorum queue `exclusive` means nothing.
_ONE_READER: Final[dict[str, Any]] = {**_QUORUM, "x-single-active-consumer": True}
#: Its message is laid down again and again: older ones are pushed out.
_QUORUM_LOCK: Final[dict[str, Any]] = {**_ONE_READER, "x-max-length": 1}


class Kinds(NamedTuple):
    """Which of the lane's own queues are to be quorum queues."""

    own: bool  # those without which the lane stands still
    messages: bool  # those that keep messages


class OwnQueues(NamedTuple):
    """The lane's own queues, as they are on the broker."""

    is_new: bool  # the lane was not there before
    wants_quorum: bool
    quorum: frozenset[str]  # those that are quorum queues
    kept: tuple[str, ...]  # those that are of another kind than the lane wants, and in use or not empty


def own_queues(names: LaneNames, lane: LaneSettings, kinds: Kinds) -> dict[str, dict[str, Any]]:
    """The arguments of every queue that is declared before a lane is led. Where they are quorum queues the
    leader declares the witness, see `Witness`."""
    if kinds.own:
        queues = {
            names.control: _ONE_READER, names.command: _ONE_READER, names.lock: _QUORUM_LOCK,
            names.heartbeat: {**_ONE_READER, **_HEARTBEAT},
        }  # fmt: skip
    else:
        durable = (names.control, names.command, names.lock, names.witness)
        queues = {**dict.fromkeys(durable, _CLASSIC), names.heartbeat: {**_CLASSIC, **_HEARTBEAT}}
    queues[names.dead] = _QUORUM if kinds.messages else _CLASSIC
    if lane.history is not None:
        max_age = f"{-(-lane.history.max_age_ms // 1_000)}s"
        queues[names.history] = {
            "x-queue-type": "stream", "x-max-age": max_age,
            "x-stream-max-segment-size-bytes": _SEGMENT_BYTES,
        }  # fmt: skip
    if lane.handover:
        queues[names.rejected] = _CLASSIC
        rejects = {"x-dead-letter-exchange": names.exchange, "x-dead-letter-routing-key": names.rejected}
        queues |= {names.consumer(consumer.id): {**_CLASSIC, **rejects} for consumer in lane.consumers}
    return queues


def own_exchanges(names: LaneNames) -> tuple[str, ...]:
    """The lane's exchanges, all of them direct and durable."""
    own = (names.exchange, names.control_exchange, names.command_exchange)
    return own if shard_number(names.lane) is None else (*own, names.entrance)


def possible_queues(names: LaneNames) -> tuple[str, ...]:
    """All queues of its own that a lane may have, but those of its hand-over consumers. The lock is the last
    one: who removes a lane holds it meanwhile."""
    own = (names.control, names.command, names.heartbeat, names.witness)
    messages = (names.dead, names.history, names.rejected, *parking_queues(names, PARKING_QUEUES_MAX))
    return *own, *messages, names.lock


def kinds_of(lane: LaneSettings, inbound: Sequence[bool]) -> Kinds:
    """`inbound`: which of its inbound queues are quorum queues, all of them or as far as they are there.

    What came in replicated is never kept in one place only, whatever the lane asks for.
    """
    own = lane.queue_type is QueueKind.QUORUM
    if lane.queue_type is QueueKind.AUTO:
        own = len(inbound) == len(lane.inbound) and all(inbound)
    return Kinds(own, own or any(inbound))


def one_place_problem(lane: LaneSettings, inbound: Sequence[bool]) -> str | None:
    """Why a lane with such inbound queues is not led; see kinds_of. The queues of hand-over consumers are
    classic ones: X-4 needs an exclusive reader, which a quorum queue has not."""
    if not (lane.handover and any(inbound)) or lane.queue_type is QueueKind.CLASSIC:
        return None
    return (
        f"lanes.{lane.name}.queue_type: an inbound queue is a quorum queue, but what a lane with handover "
        "gives to its consumers lies in classic queues, and is lost with their node; write queue_type: "
        "classic if that may be"
    )


async def quorum_inbound(link: Link, lane: LaneSettings) -> list[bool]:
    """Which of the lane's inbound queues are quorum queues. They must exist."""
    return [await kind_of_queue(link, inbound.queue) == QUORUM for inbound in lane.inbound]


async def declare_lane(
    link: Link, names: LaneNames, lane: LaneSettings, inbound: Sequence[bool]
) -> OwnQueues:
    """Declare everything that the lane needs, all of it idempotent.

    `inbound`: which of its inbound queues are quorum queues.

    Raises ConfigurationError for what an operator has to change: a queue of ours that exists with other
    properties, missing rights, and what `one_place_problem` says. Raises ChannelRefused while the node of a
    classic one is away.
    """
    if (problem := one_place_problem(lane, inbound)) is not None:
        raise ConfigurationError(problem)
    is_new = not await exchange_exists(link, names.exchange)
    kinds = kinds_of(lane, inbound)
    wanted = own_queues(names, lane, kinds)
    others = own_queues(names, lane, Kinds(not kinds.own, not kinds.messages))
    kept: list[str] = []
    channel = await link.open_channel()
    try:
        for exchange in own_exchanges(names):
            await link.call(
                channel, commands.Exchange.Declare(exchange=exchange, exchange_type="direct", durable=True)
            )
        for queue, arguments in wanted.items():
            channel, is_wanted = await _declare_own(link, channel, queue, arguments, others.get(queue))
            if not is_wanted:
                kept.append(queue)
        bindings = [
            (names.control, names.control_exchange, KEY_CONTROL),
            (names.heartbeat, names.control_exchange, KEY_HEARTBEAT),
            (names.command, names.command_exchange, KEY_COMMAND),
        ]
        are_quorum = _quorum_ones(wanted, others, kept)
        named = [names.control, names.dead, *([names.history] if lane.history else ())]
        named += [queue for queue in (names.lock, names.witness) if queue in are_quorum or queue in wanted]
        if lane.handover:
            named += [names.rejected, *(names.consumer(consumer.id) for consumer in lane.consumers)]
        bindings += [(queue, names.exchange, queue) for queue in named]
        if lane.history is not None:  # a reader marks its end
            bindings.append((names.history, names.command_exchange, names.history))
        for queue, exchange, key in bindings:
            await link.call(channel, commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key))
        await link.call(channel, commands.Channel.Close(200, "declared", 0, 0))
    except ChannelRefused as refused:
        if is_out_of_reach(refused):
            raise
        raise ConfigurationError(
            f"lanes.{lane.name}: RabbitMQ refused to declare its queues: {refused}"
        ) from refused
    return OwnQueues(is_new, kinds.own, are_quorum, tuple(kept))


def _quorum_ones(
    wanted: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]], kept: list[str]
) -> frozenset[str]:
    found = {queue: (others if queue in kept else wanted)[queue] for queue in wanted}
    return frozenset(queue for queue, arguments in found.items() if arguments["x-queue-type"] == "quorum")


async def _declare_own(
    link: Link, channel: int, queue: str, arguments: dict[str, Any], other: dict[str, Any] | None
) -> tuple[int, bool]:
    """Declare it with these arguments, or find it with the other ones, which are of the other kind. Returns
    an open channel, and whether it is what was wanted. Raises ChannelRefused.

    A classic queue that nobody reads and that is empty is replaced. RabbitMQ can't delete a quorum queue on
    these conditions.
    """
    try:
        await _declare(link, channel, queue, arguments)
        return channel, True
    except ChannelRefused as refused:
        if refused.code != PRECONDITION_FAILED or other == arguments:
            raise
        differs = refused
    channel = await link.open_channel()
    if other is not None:
        try:
            await _declare(link, channel, queue, other)
        except ChannelRefused as refused:
            raise (refused if is_out_of_reach(refused) else differs) from None
    if arguments["x-queue-type"] == "classic" and other is not None:
        return channel, False
    try:
        delete = commands.Queue.Delete(queue=queue, if_unused=True, if_empty=other is not None)
        await link.call(channel, delete)
        await _declare(link, channel, queue, arguments)
    except ChannelRefused as refused:
        if other is None or refused.code != PRECONDITION_FAILED:
            raise
        return await link.open_channel(), False
    log.info("queue_replaced", queue=queue, kind=arguments["x-queue-type"])
    return channel, True


async def exchange_exists(link: Link, exchange: str) -> bool:
    """Raises ChannelRefused for any other answer than yes or no."""
    channel = await link.open_channel()
    try:
        await link.call(channel, ExchangeDeclare(exchange=exchange, passive=True))
    except ChannelRefused as refused:
        if refused.code == NOT_FOUND:
            return False
        raise
    await link.call(channel, commands.Channel.Close(200, "asked", 0, 0))
    return True


async def _declare(link: Link, channel: int, queue: str, arguments: dict[str, Any]) -> Any:
    """Returns the answer, with `message_count` and `consumer_count`."""
    return await link.call(channel, QueueDeclare(queue=queue, durable=True, arguments=arguments))


def parking_queues(names: LaneNames, count: int) -> tuple[str, ...]:
    """The parking queues that there may be, in the order of their numbers."""
    return tuple(f"{names.exchange}.park.{number}" for number in range(1, count + 1))


class Parked(NamedTuple):
    """An open parking queue."""

    channel: int  # of its own
    was_there: bool  # something is in it
    is_quorum: bool
    readers: int  # that RabbitMQ counts; a quorum queue counts each message that a `basic.get` has


async def open_parking(link: Link, names: LaneNames, queue: str, *, quorum: bool) -> Parked:
    """Open a parking queue, which is declared unless it exists; `quorum`: as a quorum queue.

    One that exists stays as it is: a policy, an earlier version, or another kind of inbound queues, may have
    made it otherwise. It is deleted when nothing is left in it. Raises ChannelRefused.
    """
    channel, is_quorum = await link.open_channel(), quorum
    try:
        declared = await _declare(link, channel, queue, parking_arguments(quorum=quorum))
    except ChannelRefused as refused:
        if refused.code != PRECONDITION_FAILED:
            raise
        is_quorum = await kind_of_queue(link, queue) == QUORUM
        channel = await link.open_channel()
        declared = await link.call(channel, QueueDeclare(queue=queue, passive=True))
    bind = commands.Queue.Bind(queue=queue, exchange=names.exchange, routing_key=queue)
    await link.call(channel, bind)
    return Parked(channel, int(declared.message_count) > 0, is_quorum, int(declared.consumer_count))


def parking_arguments(*, quorum: bool) -> dict[str, Any]:
    """Those of a new parking queue."""
    return _QUORUM if quorum else _PARKING


async def prepare_inbound(link: Link, lane: LaneSettings) -> None:
    """See to it that the inbound queues exist. Raises ConfigurationError, which names all that do not;
    ChannelRefused while the node of a classic one is away."""
    problems: list[str] = []
    for index, inbound in enumerate(lane.inbound):
        path = f"lanes.{lane.name}.inbound[{index}].queue"
        channel = await link.open_channel()
        try:
            await link.call(channel, QueueDeclare(queue=inbound.queue, passive=True))
        except ChannelRefused as refused:
            if is_out_of_reach(refused):
                raise
            if refused.code != NOT_FOUND:
                problems.append(f"{path}: {refused}")
                continue
            if not inbound.declare:
                problems.append(
                    f"{path}: there is no queue {inbound.queue!r}; declare it, or set `declare: true`"
                )
                continue
            channel = await link.open_channel()
            try:
                await _declare(link, channel, inbound.queue, {})
            except ChannelRefused as denied:
                if denied.code != ACCESS_REFUSED:
                    raise
                problems.append(f"{path}: RabbitMQ refused to declare it: {denied}")
                continue
        await link.call(channel, commands.Channel.Close(200, "prepared", 0, 0))
    if problems:
        raise ConfigurationError(problems)


async def bind_inbound(link: Link, names: LaneNames, lane: LaneSettings) -> None:
    """What operators release or replay comes by this way, which producers can't take. The lane goes on
    without it. The lane must be declared."""
    for inbound in lane.inbound:
        channel, queue = await link.open_channel(), inbound.queue
        try:
            await link.call(
                channel, QueueBind(queue=queue, exchange=names.command_exchange, routing_key=queue)
            )
        except ChannelRefused as refused:
            log.warning("inbound_queue_not_bound", lane=names.lane, queue=queue, problem=str(refused))
        else:
            await link.call(channel, commands.Channel.Close(200, "bound", 0, 0))


class InboundKinds(NamedTuple):
    """What RabbitMQ says of the inbound queues."""

    quorum: list[bool]  # which of them are quorum queues
    unknown: tuple[str, ...]  # classic ones that may have priorities: the right to find that out is missing
    limits: tuple[DeliveryLimit, ...]  # low ones of quorum queues


async def refuse_unusable(link: Link, lane: LaneSettings) -> InboundKinds:
    """Raises ConfigurationError, which names all inbound queues of a kind in which no order is kept, or of
    which the kind is not known."""
    problems, unknown, quorum, limits = [], [], [], []
    for index, inbound in enumerate(lane.inbound):
        path, queue = f"lanes.{lane.name}.inbound[{index}].queue", inbound.queue
        try:
            kind = await kind_of_queue(link, queue)
        except ChannelRefused as refused:
            if refused.code == NOT_FOUND:
                raise
            problems.append(f"{path}: the kind of {queue!r} can't be found out: {refused}")
            continue
        quorum.append(kind == QUORUM)
        if kind == QUORUM and (limit := await low_delivery_limit(link, queue)) is not None:
            limits.append(limit)
        has = await has_priorities(link, queue) if kind == CLASSIC else False
        if has is None:
            unknown.append(queue)
        elif (problem := unusable(kind, has_priorities=has)) is not None:
            problems.append(f"{path}: {queue!r} {problem}")
    if problems:
        raise ConfigurationError(problems)
    return InboundKinds(quorum, tuple(unknown), tuple(limits))
