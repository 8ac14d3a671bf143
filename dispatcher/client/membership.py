"""A consumer over all its incarnations: shared by the asynchronous and the blocking shell."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final, Generic, TypeVar

from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import Copy, Numbers, read_numbers
from dispatcher.client.member import End, Member, Standing, Wish
from dispatcher.client.orders import Finish, Lose, MemberOrder
from dispatcher.client.pacing import Chance
from dispatcher.client.retries import RetryPolicy
from dispatcher.client.tap import TappedDelivery
from dispatcher.errors import ConsumerRefused
from dispatcher.wire import protocol
from dispatcher.wire.bundle import BundleLimits, split_bundle
from dispatcher.wire.protocol import FailedMessage, Settle

M = TypeVar("M", bound=Copy)
#: Numbers, properties as they came, body.
MakeMessage = Callable[[Numbers, bytes, bytes], M]

#: What the Python client takes as one AMQP message.
BUNDLE: Final = BundleLimits(messages=64, bytes=65_536)
#: Without a connection for this long, messages in hand are given up: other consumers have them by now, or
#: soon. Long enough for a broker to restart, which moves nothing.
OFFLINE_LIMIT_MS: Final = 30_000
#: Who iterates may take so many messages before the dispatcher hears of it (M-1). One is enough: messages are
#: taken in the order of their numbers, so the first that it was not told is the one. An application that has
#: one message at a time, or settles as it takes, sends nothing more; one that collects messages sends a word
#: more, at most every COALESCE_MS. With a larger number a death would blame messages that were never taken.
TAKEN_UNSAID_MAX: Final = 1


class LaneMembership(Generic[M]):
    """Turns deliveries into messages and keeps one incarnation after the other going.

    A new incarnation follows when the old one was taken back, was offline for too long, or has too much
    to remember. The facts and `poll` are those of Member.
    """

    def __init__(
        self,
        consumer: str,
        prefetch: int,
        *,
        make_message: MakeMessage[M],
        new_incarnation: Callable[[], str],
        offline_limit_ms: int,
        now_ms: int,
        bundle: BundleLimits | None = BUNDLE,
        chance: Chance = random.random,
    ) -> None:
        self.consumer = consumer
        self._chance = chance  # of the pauses between attempts to connect
        self._bundle = bundle
        self._prefetch = prefetch
        self._make_message = make_message
        self._new_incarnation = new_incarnation
        self._offline_limit_ms = offline_limit_ms
        self._tokens = count(1)  # over all incarnations: a late confirm can't mean another's message
        self.over = False
        self.doubts = 0  # so often settles were given that may not count
        self.ever_welcomed = False
        self.waits_for_another = False  # the dispatcher said that another consumer of this id is there
        self.retry = RetryPolicy()  # the lane's; until the first welcome what a lane has by default
        self._concurrency = TAKEN_UNSAID_MAX
        #: `poll` is to be called soon. Called in the thread in which a message has begun.
        self.wake: Callable[[], None] = lambda: None
        self.member = self._next_member(now_ms)

    def limit(self, concurrency: int) -> None:
        """The application processes at most `concurrency` messages at a time, one of each group."""
        self._concurrency = self.member.begun.concurrency = concurrency

    def share(self, prefetch: int, now_ms: int) -> None:
        """Take so many messages at a time from now on."""
        self._prefetch = prefetch
        self.member.share(prefetch, now_ms)

    def _next_member(self, now_ms: int, leftovers: Iterable[Settle] = ()) -> Member[M]:
        return Member(
            self.consumer, self._new_incarnation(), self._prefetch, tokens=self._tokens,
            offline_limit_ms=self._offline_limit_ms, now_ms=now_ms, leftovers=leftovers,
            concurrency=self._concurrency, wake=lambda: self.wake(), bundle=self._bundle, chance=self._chance,
        )  # fmt: skip

    # --- facts ----------------------------------------------------------------------------------------

    def delivered(self, delivery: TappedDelivery, now_ms: int) -> list[M]:
        """A message came in the consumer queue. Returns the messages to hand over, in their order.

        Raises ValueError for one that has neither a `dispatch.*` type nor the headers of a copy.
        """
        numbers = read_numbers(delivery.properties)
        if numbers is not None:
            message = self._make_message(numbers, delivery.properties, delivery.body)
            return [message] if self.member.copy_received(message, now_ms) else []
        found, _ = amqp_properties.split(delivery.properties)
        kind = found.get("type", b"").decode(errors="replace")
        if kind == protocol.TYPE_BUNDLE:
            return self._bundled(delivery.body, now_ms)
        self._notice(kind, delivery.body, now_ms)
        return []

    def _bundled(self, body: bytes, now_ms: int) -> list[M]:
        """The messages of a bundle. Of one that can't be read none counts: it is as if it had not come."""
        copies = [(read_numbers(properties), properties, body) for properties, body in split_bundle(body)]
        messages = []
        if any(numbers is None for numbers, _, _ in copies):
            raise ValueError(f"a part of a {protocol.TYPE_BUNDLE} has no {protocol.HEADER_SEQ}")
        for numbers, properties, body in copies:
            assert numbers is not None
            message = self._make_message(numbers, properties, body)
            if self.member.copy_received(message, now_ms):
                messages.append(message)
        return messages

    def _notice(self, kind: str, raw: bytes, now_ms: int) -> None:
        if not kind.startswith("dispatch."):
            raise ValueError(f"a message of type {kind!r} without {protocol.HEADER_SEQ} is no work")
        try:
            body: Any = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            raise ValueError(f"the body of a {kind} is not JSON") from None
        self.member.notice_received(kind, body if isinstance(body, dict) else {}, now_ms)
        self.ever_welcomed |= self.joined
        self.waits_for_another = kind == protocol.TYPE_WAIT and not self.joined
        self.retry = self.member.retry or self.retry

    def settle(self, message: M, reason: str | None, attempts: int, now_ms: int) -> bool:
        """The application's word on a message. False: it was lost before."""
        member = self.member
        if member.in_hand.get(message.seq) is not message:
            # Of a former incarnation, whose numbers mean nothing now. Another thread has just settled it.
            self.doubts += 1
            return False
        if reason is None:
            return member.acked(message.seq, now_ms)
        return member.failed(FailedMessage(seq=message.seq, reason=reason, attempts=attempts), now_ms)

    def abandon(self) -> list[M]:
        """Forget the messages in hand without settling them: the dispatcher gives them to others."""
        abandoned = self.member.abandon()
        for message in abandoned:
            message.lost = True
        return abandoned

    # --- orders ---------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> list[MemberOrder]:
        """Like Member.poll, over the end of incarnations."""
        if self.over:
            return []
        orders = self.member.poll(now_ms)
        while self.member.standing is Standing.OVER and self._succeeded(now_ms, orders):
            orders += self.member.poll(now_ms)
        return orders

    def next_deadline_ms(self) -> int | None:
        return None if self.over else self.member.next_deadline_ms()

    def _succeeded(self, now_ms: int, orders: list[MemberOrder]) -> bool:
        """Whether a new incarnation took the place of the one that has ended."""
        ended = self.member
        self.doubts += ended.in_doubt
        if lost := self.abandon():
            orders.append(Lose(lost, ended.end_reason))
        if ended.end is End.REFUSED:
            error = ConsumerRefused(f"consumer {self.consumer}: {ended.end_reason}")
            self._finish(error, orders)
            return False
        if ended.wish is Wish.LEAVE:
            self._finish(None, orders)
            return False
        # Messages finished before the connection broke still count, if they weren't taken back meanwhile.
        offline = ended.end is End.OFFLINE_TOO_LONG
        self.member = self._next_member(now_ms, ended.settling.remaining() if offline else ())
        return True

    @property
    def joined(self) -> bool:
        return self.member.standing is Standing.JOINED

    def end(self, error: Exception | None) -> list[MemberOrder]:
        """Be over at once, without another word to the dispatcher."""
        orders: list[MemberOrder] = []
        self.doubts += self.member.in_doubt
        if lost := self.abandon():
            orders.append(Lose(lost, str(error or "the consumer was closed")))
        self._finish(error, orders)
        return orders

    def _finish(self, error: Exception | None, orders: list[MemberOrder]) -> None:
        self.over = True
        orders.append(Finish(error))
