"""Where operations send messages: looked for, published to, each on a channel of its own.

RabbitMQ does not take what it can't route or store, so every answer counts. What it had not answered when it
closed the channel may be there or not; only of one that was alone it is known that it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from hashlib import blake2b
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.events import ChannelClosed, Confirmed, Returned
from dispatcher.amqp.methods import ExchangeDeclare, QueueBind, QueueDeclare, QueueUnbind
from dispatcher.amqp.transfer import origin_field, transfer_frames
from dispatcher.core.events import Event
from dispatcher.core.model import Original
from dispatcher.core.operations.events import TargetOpened, TargetRefused, TransferConfirmed, TransferRefused
from dispatcher.core.operations.orders import CloseTarget, OpenTarget, SendTransfer, Target, TargetAction
from dispatcher.errors import BrokerUnavailable, ChannelRefused, is_missing
from dispatcher.service.confirms import PublishWindow
from dispatcher.service.publications import Relay
from dispatcher.wire.origin import origin_text

#: Of RabbitMQ's reply codes: the queue is exclusive to somebody else's connection.
_RESOURCE_LOCKED: Final = 405
_KEY_BYTES: Final = 16


class OpenedTarget:
    """One target, and the messages that it was sent and has not answered."""

    def __init__(self, operation: str, target: Target, exchange: str) -> None:
        self.operation = operation
        self.target = target
        #: A queue is bound to the lane's exchange for the time being, by a key of the operation's own: the
        #: default exchange would obey `CC` and `BCC` headers, which were obeyed when the original came.
        self.exchange = target.exchange or exchange
        self.key = target.key if target.exchange else _own_key(operation)
        self.channel = 0
        self.is_bound = False
        self.window = PublishWindow()
        self.returned: set[Original] = set()
        self.problem: str | None = None  # why nothing more can be sent


class TransferTargets:
    """The targets of a session's open operations. `withheld`: fingerprints of messages that are sent to no
    target, with RabbitMQ's words: it ended a connection over one of them. Messages for an exchange of others
    are signed with the name of this `user`, which RabbitMQ validates."""

    def __init__(
        self,
        relay: Relay,
        withheld: Mapping[bytes, str],
        user: str | None = None,
        *,
        report: Callable[[Event], None],
    ) -> None:
        self._relay = relay
        self._user = b"" if user is None else user.encode()
        self._withheld = withheld
        self._link = relay.link
        self._report = report
        self._targets: dict[str, OpenedTarget] = {}  # by operation
        self._by_channel: dict[int, OpenedTarget] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- orders --

    def perform(self, order: TargetAction) -> None:
        """Carry out an order; an answer to it is reported as an event."""
        match order:
            case OpenTarget():
                opened = OpenedTarget(order.operation, order.target, self._relay.names.exchange)
                self._targets[order.operation] = opened
                self._start(self._open(opened))
            case SendTransfer():
                self._send(self._targets[order.operation], order.message)
            case CloseTarget():
                target = self._targets.pop(order.operation, None)
                if target is not None and (target.channel or target.is_bound):
                    self._start(self._close(target))

    def close(self) -> None:
        """The session has ended: wait for nothing more."""
        for task in self._tasks:
            task.cancel()

    def withheld(self, problem: str) -> dict[bytes, str]:
        """RabbitMQ ended the connection with these words, perhaps over a message that it had not answered
        here: the fingerprints of these messages, and of those withheld before."""
        unanswered = (message for target in self._by_channel.values() for message in target.window.tokens())
        return {**self._withheld, **{message.fingerprint: problem for message in unanswered}}

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, target: OpenedTarget) -> None:
        with contextlib.suppress(BrokerUnavailable):  # the session ends, and the next one looks again
            try:
                channel = await self._link.open_channel()
                await self._look_for(target, channel)
            except ChannelRefused as refused:
                target.problem = _why_refused(target.target, refused)
                self._report(TargetRefused(target.operation, target.problem))
                return
            target.channel = channel
            self._by_channel[channel] = target
            if target.operation in self._targets:
                self._report(TargetOpened(target.operation))
            else:  # it ended meanwhile
                await self._close(target)

    async def _look_for(self, target: OpenedTarget, channel: int) -> None:
        call, name = self._link.call, target.target.exchange
        await call(channel, commands.Confirm.Select())
        if name:  # of whatever type: a passive declare looks at the name only
            await call(channel, ExchangeDeclare(exchange=name, exchange_type="topic", passive=True))
            return
        queue = target.target.key
        await call(channel, QueueDeclare(queue=queue, passive=True))
        await call(channel, QueueBind(queue=queue, exchange=target.exchange, routing_key=target.key))
        target.is_bound = True

    async def _close(self, target: OpenedTarget) -> None:
        self._by_channel.pop(target.channel, None)
        with contextlib.suppress(BrokerUnavailable):  # then the queue is gone, or the connection
            channel = target.channel or await self._link.open_channel()  # RabbitMQ may have closed its own
            if target.is_bound:
                unbind = QueueUnbind(
                    queue=target.target.key, exchange=target.exchange, routing_key=target.key
                )
                await self._link.call(channel, unbind)
            await self._link.call(channel, commands.Channel.Close(200, "done", 0, 0))

    def _send(self, target: OpenedTarget, message: Original) -> None:
        if target.problem is not None:
            self._report(TransferRefused(target.operation, message, target.problem, True))
            return
        if message.fingerprint in self._withheld:
            problem = f"RabbitMQ ended the connection over it: {self._withheld[message.fingerprint]}"
            self._report(TransferRefused(target.operation, message, problem, False))
            return
        try:
            frames = transfer_frames(
                message.content, channel=target.channel, exchange=target.exchange, routing_key=target.key,
                group=message.group_id, origin=self._origin(message), frame_max=self._link.frame_max,
                user=self._user if target.target.exchange else b"",
            )  # fmt: skip
        except ValueError:
            problem = f"the headers of message {self._origin(message)} don't fit in a frame with ours"
            self._report(TransferRefused(target.operation, message, problem, True))
            return
        try:
            target.window.add(self._link.write(target.channel, frames, 1), message)
        except ChannelRefused as refused:  # the event that says so comes a moment later
            problem = _why_refused(target.target, refused)
            self._report(TransferRefused(target.operation, message, problem, True))

    def _origin(self, message: Original) -> str:
        return origin_text(self._relay.inbound_queues[message.inbound], message.arrival)

    # -- answers --

    def receive(self, event: Any, events: list[Event]) -> bool:
        """Tell the core what this event of the connection means; False when it is of no target's channel."""
        target = self._by_channel.get(getattr(event, "channel", 0))
        if target is None:
            return False
        match event:
            case Confirmed():
                self._answered(target, event, events)
            case Returned():
                self._returned(target, event)
            case ChannelClosed():
                self._closed(target, event, events)
        return True

    @staticmethod
    def _answered(target: OpenedTarget, confirmed: Confirmed, events: list[Event]) -> None:
        for message in target.window.answered(confirmed):
            if message in target.returned:
                target.returned.discard(message)
                events.append(TransferRefused(target.operation, message, _nowhere(target.target), True))
            elif confirmed.nacked:
                problem = f"{target.target} took no more (is it full?)"
                events.append(TransferRefused(target.operation, message, problem, True))
            else:
                events.append(TransferConfirmed(target.operation, message))

    def _returned(self, target: OpenedTarget, returned: Returned) -> None:
        """RabbitMQ found no queue for one of them, and confirms it next."""
        waiting = target.window.tokens()
        named = [m for m in waiting if origin_field(self._origin(m)) in returned.properties]
        target.returned.update(named or waiting)

    def _closed(self, target: OpenedTarget, closed: ChannelClosed, events: list[Event]) -> None:
        """RabbitMQ closed the channel over something that was sent."""
        del self._by_channel[target.channel]
        target.channel = 0
        target.problem = _why_refused(target.target, ChannelRefused(closed.code, closed.text))
        waiting = target.window.take_all()
        for message in waiting:
            is_known = len(waiting) == 1 or message in target.returned
            events.append(TransferRefused(target.operation, message, target.problem, is_known))
        events.append(TargetRefused(target.operation, target.problem))


def _own_key(operation: str) -> str:
    """A routing key that no consumer queue and no queue of the lane has."""
    return f"leaving.{blake2b(operation.encode(), digest_size=_KEY_BYTES).hexdigest()}"


def _nowhere(target: Target) -> str:
    if target.exchange:
        return f"{target} has no queue for key {target.key!r}"
    return f"{target} is gone"


def _why_refused(target: Target, refused: ChannelRefused) -> str:
    if is_missing(refused):
        return f"there is no {target}"
    if refused.code == _RESOURCE_LOCKED:
        return f"{target} is exclusive to another connection"
    return f"{target}: RabbitMQ refused it: {refused.code} {refused.text}"
