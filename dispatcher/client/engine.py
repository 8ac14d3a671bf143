"""Runs a LaneMembership over a link: carries out its orders and keeps its timer.

Everything here happens in the link's event loop, whichever that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from dispatcher.alarm import Alarm
from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import Copy
from dispatcher.client.links import NOT_TAKEN, REFUSAL_CODES, Loop, MakeLink, Publication
from dispatcher.client.losses import Losses
from dispatcher.client.membership import LaneMembership
from dispatcher.client.orders import Finish, Lose, MemberOrder, OpenQueue, Publish
from dispatcher.client.properties import Properties
from dispatcher.client.retries import RetryPolicy
from dispatcher.client.tap import TappedDelivery
from dispatcher.errors import NOT_FOUND, ConfigurationError
from dispatcher.wire import protocol
from dispatcher.wire.protocol import KEY_HEARTBEAT, LaneNames

LOG: Final = logging.getLogger("dispatcher.client")
#: AMQP's reply code for an exchange that does not exist.
M = TypeVar("M", bound=Copy)

EntryPoint = TypeVar("EntryPoint", bound=Callable[..., None])


def _ends_the_consumer_on_a_bug(method: EntryPoint) -> EntryPoint:
    """An event loop would log an error of ours and go on with a state that can't be trusted."""

    @wraps(method)
    def guarded(self: ConsumerEngine[Any], *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            LOG.exception("the consumer ends because of an error in its own machinery")
            self.end(error)

    return cast(EntryPoint, guarded)


class Listener(Protocol[M]):
    """The application's side of an engine."""

    def received(self, messages: list[M]) -> None:
        """New messages, in the order in which they came."""

    def lost(self, messages: list[M]) -> None:
        """These messages, received before, belong to another consumer now; their `lost` is set."""

    def changed(self) -> None:
        """Something happened for which a caller may wait: a welcome, a confirm."""

    def ended(self, error: Exception | None) -> None:
        """The last call: the connection is closed. `error` is why, unless it was asked for."""


class ConsumerEngine(Generic[M]):
    """The life of one consumer."""

    def __init__(
        self,
        membership: LaneMembership[M],
        names: LaneNames,
        loop: Loop,
        listener: Listener[M],
        make_link: MakeLink,
        *,
        user: str | None = None,
    ) -> None:
        self._membership = membership
        self._user = user  # that RabbitMQ validates; None: it is not asked to
        self._names = names
        self._loop = loop
        self._listener = listener
        self._link = make_link(self)
        self._step_asked = False
        self._alarm = Alarm(loop.call_later, self._step)
        self._message_ids = count(1)
        self._error: Exception | None = None
        self._losses = Losses()
        self._joined_as = ("", 0)
        self._waits_as = ""  # the incarnation that has said that it waits for another consumer of its id
        membership.wake = self._ask_step

    # --- the application's facts ----------------------------------------------------------------------

    def start(self) -> None:
        """Connect and join."""
        self._step()

    def settle(self, message: M, reason: str | None, attempts: int) -> bool:
        """The application's word on a message; see Copy.settle."""
        settled = self._membership.settle(message, reason, attempts, self._loop.now_ms())
        self._ask_step()
        return settled

    def share(self, prefetch: int) -> None:
        """Take so many messages at a time from now on."""
        self._membership.share(prefetch, self._loop.now_ms())
        self._ask_step()

    def limit(self, concurrency: int) -> None:
        """The application processes at most `concurrency` messages at a time, one of each group."""
        self._membership.limit(concurrency)

    def wake_through(self, submit: Callable[[Callable[[], None]], None]) -> None:
        """Messages begin in other threads than the loop's; `submit` runs a call in the loop's."""
        self._membership.wake = lambda: submit(self._ask_step)

    def leave(self) -> None:
        """Get nothing new; `ended` comes when everything in hand is settled."""
        self._membership.member.leave()
        self._ask_step()

    def abandon(self) -> None:
        """Leave at once: settles are still confirmed, the messages in hand go to others."""
        if abandoned := self._membership.abandon():
            self._listener.lost(abandoned)
        self.leave()

    def end(self, error: Exception | None = None) -> None:
        """Close without waiting for anything."""
        if not self._membership.over:
            self._carry_out_all(self._membership.end(error))

    @property
    def joined(self) -> bool:
        return self._membership.joined

    @property
    def shards(self) -> int:
        """How many shards the lane has, as far as a welcome has told it."""
        return self._membership.member.shards

    @property
    def retry(self) -> RetryPolicy:
        """The lane's policy, as far as a welcome has told it."""
        return self._membership.retry

    def flushed(self) -> bool:
        """No settle of the present incarnation so far is in doubt any more."""
        return self._membership.member.flushed()

    @property
    def doubts(self) -> int:
        """Grows whenever an incarnation has ended with settles that may not count."""
        return self._membership.doubts

    # --- the link's facts -----------------------------------------------------------------------------

    @_ends_the_consumer_on_a_bug
    def opened(self, queue: str) -> None:
        self._membership.member.queue_opened(queue, self._loop.now_ms())
        self._step()  # at once: the join must be on its way before the link drops an older queue

    @_ends_the_consumer_on_a_bug
    def lost(self, reason: str, code: int) -> None:
        if self._membership.over:
            return
        if code in REFUSAL_CODES and not self._membership.ever_welcomed:
            self.end(ConfigurationError(f"RabbitMQ refuses this consumer: {reason}"))
            return
        if code == NOT_FOUND:
            reason += (
                f": lane {self._names.lane} is not there; a dispatcher declares {self._names.exchange} and "
                f"{self._names.control_exchange} when it first runs it; compare lane, prefix and vhost with "
                "its configuration"
            )
        level = self._losses.level(code)
        LOG.log(level, "consumer %s of lane %s: %s", self._membership.consumer, self._names.lane, reason)
        self._membership.member.connection_lost(reason, self._loop.now_ms())
        self._ask_step()

    @_ends_the_consumer_on_a_bug
    def delivered(self, deliveries: list[TappedDelivery]) -> None:
        membership = self._membership
        if membership.over:
            return
        now_ms = self._loop.now_ms()
        messages: list[M] = []
        for delivery in deliveries:
            try:
                messages += membership.delivered(delivery, now_ms)
            except ValueError as error:
                LOG.warning("consumer %s ignores a message: %s", membership.consumer, error)
        if messages:
            self._listener.received(messages)
        self._say_if_joined()
        self._say_if_another_is_there()
        self._ask_step()

    def _say_if_another_is_there(self) -> None:
        member = self._membership.member
        if self._membership.waits_for_another and self._waits_as != member.incarnation:
            self._waits_as = member.incarnation
            LOG.warning(
                "consumer %s waits: lane %s has a consumer of this id; ids must be unique in a lane",
                member.consumer, self._names.lane,
            )  # fmt: skip

    def _say_if_joined(self) -> None:
        member = self._membership.member
        if self._membership.joined and (member.incarnation, member.n) != self._joined_as:
            self._joined_as = member.incarnation, member.n
            self._losses.over()
            held = len(member.in_hand)
            LOG.info("consumer %s joined lane %s, %d in hand", member.consumer, self._names.lane, held)

    @_ends_the_consumer_on_a_bug
    def confirmed(self, token: int) -> None:
        self._membership.member.confirmed(token)
        self._ask_step()

    def returned(self, token: int, reason: str) -> None:
        if not self._membership.over:
            # Without its control queue the lane is not there (yet); the next join asks again.
            problem = f"a control message did not arrive in lane {self._names.lane}: {reason}"
            self._link.reset(problem, NOT_TAKEN)

    def closed(self) -> None:
        self._listener.ended(self._error)

    # --- steps ----------------------------------------------------------------------------------------

    def _ask_step(self) -> None:
        """Poll once after everything that this turn of the loop brings: settles are coalesced."""
        if not self._step_asked:
            self._step_asked = True
            self._loop.call_soon(self._step)

    @_ends_the_consumer_on_a_bug
    def _step(self) -> None:
        self._step_asked = False
        now_ms = self._loop.now_ms()
        self._carry_out_all(self._membership.poll(now_ms))
        self._alarm.set(self._membership.next_deadline_ms(), now_ms)
        self._listener.changed()

    def _carry_out_all(self, orders: list[MemberOrder]) -> None:
        for order in orders:
            match order:
                case Publish():
                    self._publish(order)
                case OpenQueue():
                    level = logging.DEBUG if self._losses.ongoing else logging.INFO
                    LOG.log(level, "consumer %s opens a queue: %s", self._membership.consumer, order.reason)
                    self._link.open(self._names.exchange)
                case Lose():
                    LOG.warning(
                        "consumer %s lost %d messages: %s",
                        self._membership.consumer, len(order.messages), order.reason,
                    )  # fmt: skip
                    self._listener.lost(order.messages)
                case Finish():
                    self._error = order.error
                    self._link.close()

    def _publish(self, order: Publish) -> None:
        key = order.routing_key
        message_id = f"{self._membership.member.incarnation}-{next(self._message_ids)}"
        properties = Properties(
            content_type="application/json", message_id=message_id,
            delivery_mode=1 if key == KEY_HEARTBEAT else 2, user_id=self._user,
        )  # fmt: skip
        body = protocol.encode(order.message)
        raw = amqp_properties.write(properties, {})
        exchange = self._names.control_exchange
        self._link.publish(Publication(order.token, exchange, key, message_id, raw, body))
