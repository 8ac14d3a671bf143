"""One incarnation of a consumer, as a state machine without I/O.

Facts come in as method calls, `poll` answers with orders; time is an argument (any clock of milliseconds
that never goes back). Both shells, asynchronous and blocking, run this same machine.

    OFFLINE ──OpenQueue──► OPENING ──queue_opened──► JOINING ──welcome──► JOINED
       ▲                      │                       │    ▲               │  │
       └───── connection_lost ┴───────────────────────┴────│───────────────┘  │  rejoin
                                                           └──────────────────┘

A copy that is missing leads from JOINING or JOINED to OFFLINE too, with the connection still up. OVER can
be reached from everywhere; `end` says how.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from dispatcher.client.begun import SMALL, BegunMessages
from dispatcher.client.group_order import GroupOrder
from dispatcher.client.orders import MemberOrder, OpenQueue, Publish
from dispatcher.client.pacing import Backoff, Chance
from dispatcher.client.ranges import SeqRanges
from dispatcher.client.retries import RetryPolicy
from dispatcher.client.settling import COALESCE_MS, Settling
from dispatcher.errors import InvalidTransition
from dispatcher.wire import protocol
from dispatcher.wire.bundle import BundleLimits
from dispatcher.wire.protocol import Begun, FailedMessage, Heartbeat, InHand, Join, Leave, Settle
from dispatcher.wire.shards import SHARDS_MAX

#: Seen numbers are kept exactly; past this many ranges (or failures) the incarnation finishes what it has
#: and a new one, with nothing to remember, takes its place.
REMEMBERED_MAX: Final = 4_096
#: Until the first welcome says how often, an unanswered join is repeated this often.
HEARTBEAT_BEFORE_WELCOME_MS: Final = 1_000
#: After `dispatch.wait`: the dispatcher also answers by itself once the other incarnation is gone.
ASK_AGAIN_MS: Final = 1_000
#: A second missing copy within this time waits: whatever eats copies must not be fed with joins.
GAP_INTERVAL_MS: Final = 1_000
#: After a leave, `dispatch.taken` says that no copy is on its way any more; the member waits no longer than
#: this for it.
TAKEN_WAIT_MS: Final = 500


class Numbered(Protocol):
    """The numbers of a copy, as they came in its headers."""

    seq: int
    group: bytes | None
    group_seq: int  # 0: no order check
    epoch: int
    fingerprint: bytes

    def note_in(self, begun: BegunMessages) -> None:
        """Tell `note` the number when the application gets this message."""


C = TypeVar("C", bound=Numbered)


class Standing(Enum):
    """Where the incarnation stands with the dispatcher."""

    OFFLINE = "offline"  # no queue: nothing comes, settles wait
    OPENING = "opening"  # a queue was ordered
    JOINING = "joining"  # there is a queue, the join was not answered with a welcome yet
    JOINED = "joined"
    OVER = "over"


class Wish(Enum):
    """The next step once no message is in hand."""

    STAY = "stay"
    LEAVE = "leave"  # for good
    RENEW = "renew"  # come back as a new incarnation


class End(Enum):
    LEFT = "left"  # its wish is done: nothing in hand, every settle confirmed
    TAKEN = "taken"  # the dispatcher said so: nothing of it can be settled any more
    OFFLINE_TOO_LONG = "offline too long"  # without a connection until others got its messages
    REFUSED = "refused"  # the dispatcher does not accept the join


_S = Standing
STANDING_TRANSITIONS: Final[dict[Standing, frozenset[Standing]]] = {
    _S.OFFLINE: frozenset({_S.OPENING, _S.OVER}),
    _S.OPENING: frozenset({_S.JOINING, _S.OFFLINE, _S.OVER}),
    _S.JOINING: frozenset({_S.JOINING, _S.JOINED, _S.OFFLINE, _S.OVER}),
    _S.JOINED: frozenset({_S.JOINED, _S.JOINING, _S.OFFLINE, _S.OVER}),
    _S.OVER: frozenset(),
}
#: There is a queue and a channel: control messages can be published.
ONLINE: Final = (_S.JOINING, _S.JOINED)  # a tuple: to hash an enum costs more than to compare two


class Member(Generic[C]):
    """One incarnation: knows the messages that it has seen, those in hand, and the reports that it owes the
    dispatcher."""

    def __init__(
        self,
        consumer: str,
        incarnation: str,
        prefetch: int,
        *,
        tokens: Iterator[int],
        offline_limit_ms: int,
        now_ms: int,
        leftovers: Iterable[Settle] = (),
        concurrency: int = 1,
        wake: Callable[[], None] = lambda: None,
        bundle: BundleLimits | None = None,
        chance: Chance = random.random,
    ) -> None:
        self.consumer = consumer
        self.incarnation = incarnation
        self.prefetch = prefetch
        self.bundle = bundle  # what it takes as one AMQP message; None: only single copies
        self.standing = Standing.OFFLINE
        self.wish = Wish.STAY
        self.end: End | None = None
        self.end_reason = ""
        self.n = 0  # joins announced so far
        self.queue = ""
        self.retry: RetryPolicy | None = None  # of the lane, as the latest welcome said
        self.shards = 1  # of the lane, as the latest welcome said
        self.in_hand: dict[int, C] = {}  # by seq, in the order of arrival
        #: What the application has of these. `wake`: `poll` is to be called, perhaps from another thread.
        self.begun = BegunMessages(concurrency, wake)
        self._told_at_ms = 0  # when the dispatcher last heard what has begun
        #: Who waits for RabbitMQ's confirm of a word, by its token.
        self._awaited: dict[int, list[Callable[[], None]]] = {}
        self.settling = Settling(consumer, incarnation, full_count=max(1, prefetch // 2))
        self.settling.adopt(leftovers)
        self._tokens = tokens
        self._seen = SeqRanges()
        self._order = GroupOrder()
        self._epoch = 0  # the highest one of the copies that it took
        self._backoff = Backoff(chance)
        self._heartbeat_ms = HEARTBEAT_BEFORE_WELCOME_MS
        self._offline_limit_ms = offline_limit_ms
        self._offline_since_ms = now_ms
        self._open_at_ms = now_ms
        self._open_reason = "the consumer starts"
        self._gap_at_ms: int | None = None
        self._join_at_ms = 0
        self._heartbeat_at_ms = 0
        self._leave_token: int | None = None  # None: not published over this connection
        self._left_at_ms: int | None = None

    # --- facts: the connection ------------------------------------------------------------------------

    def queue_opened(self, queue: str, now_ms: int) -> None:
        """The ordered queue is bound and consumed; later deliveries come from it."""
        if self.standing is not Standing.OPENING:
            return  # over, or lost again meanwhile
        self.queue = queue
        self._announce(now_ms)

    def connection_lost(self, reason: str, now_ms: int) -> None:
        """The connection or channel is gone, could not be opened, or the server cancelled the consumer.

        Everything in hand stays in hand: the next join names it, and `dispatch.taken` is the answer if
        it has gone to others.
        """
        self.settling.connection_lost()
        self.begun.connection_lost()
        self._await_no_more()
        self._leave_token = self._left_at_ms = None
        if self.standing in ONLINE:
            self._offline_since_ms = now_ms
        if self.standing in ONLINE or self.standing is Standing.OPENING:
            self._go_offline(reason, now_ms + self._backoff.next_delay_ms())

    def confirmed(self, token: int) -> None:
        """The broker confirmed the control message that was published with this token."""
        self.settling.confirmed(token)
        for told in self._awaited.pop(token, ()):
            told()
        if token == self._leave_token:
            self._leave_token = 0

    # --- facts: messages of the queue -----------------------------------------------------------------

    def share(self, prefetch: int, now_ms: int) -> None:
        """Another prefetch counts from now on: the dispatcher hears of it with the next join."""
        if prefetch == self.prefetch or self.wish is not Wish.STAY:
            return
        self.prefetch = prefetch
        self.settling.full_count = max(1, prefetch // 2)
        if self.standing in ONLINE:
            self._announce(now_ms)

    def notice_received(self, kind: str, body: dict[str, Any], now_ms: int) -> None:
        """A message of type `dispatch.*` that is no work. Types that aren't known are ignored."""
        if self.standing not in ONLINE or body.get("incarnation", self.incarnation) != self.incarnation:
            return
        match kind:
            case protocol.TYPE_WELCOME if body.get("n", self.n) == self.n:
                self._welcomed(body, now_ms)
            case protocol.TYPE_WAIT if self.standing is Standing.JOINING:
                self._join_at_ms = min(self._join_at_ms, now_ms + ASK_AGAIN_MS)
            case protocol.TYPE_REJOIN:
                self._announce(now_ms)
            case protocol.TYPE_TAKEN:
                self._finish(End.TAKEN, "the dispatcher took it back")
            case protocol.TYPE_REFUSED:
                self._finish(End.REFUSED, str(body.get("reason", "no reason given")))

    def copy_received(self, copy: C, now_ms: int) -> bool:
        """A message of the lane. True: new and in order, hand it to the application.

        Rule 4: a known one that is finished is settled again, one in hand is ignored; one before which
        another of its group is missing is forgotten, and a new queue will bring both.
        """
        if self.standing not in ONLINE:
            return False
        seq = copy.seq
        if seq in self._seen:
            if seq not in self.in_hand:
                self.settling.again(seq, now_ms)
            return False
        if copy.group_seq and not self._order.admit(copy.group, copy.epoch, copy.group_seq):
            self._copy_missing(copy, now_ms)
            return False
        self._seen.add(seq)
        if copy.epoch > self._epoch:
            self._epoch = copy.epoch
        self.in_hand[seq] = copy
        copy.note_in(self.begun)
        if len(self._seen) > REMEMBERED_MAX:
            self._renew()
        return True

    # --- facts: the application -----------------------------------------------------------------------

    def acked(self, seq: int, now_ms: int) -> bool:
        """The application is done with it. False: it isn't in hand, nothing happens."""
        if self.in_hand.pop(seq, None) is None:
            return False
        self.begun.discard(seq)
        self.settling.ack(seq, now_ms)
        return True

    def failed(self, failed: FailedMessage, now_ms: int) -> bool:
        """The application has given it up. False: it isn't in hand, nothing happens."""
        if self.in_hand.pop(failed.seq, None) is None:
            return False
        self.begun.discard(failed.seq)
        self.settling.fail(failed, now_ms)
        if len(self.settling.failures) > REMEMBERED_MAX:
            self._renew()
        return True

    def abandon(self) -> list[C]:
        """Nothing is in hand any more; what was, is returned."""
        abandoned = list(self.in_hand.values())
        self.in_hand.clear()
        self.begun.clear()
        return abandoned

    def leave(self) -> None:
        """Get no new messages, finish those in hand, and end."""
        self.wish = Wish.LEAVE

    @property
    def in_doubt(self) -> bool:
        """Settles may not count: RabbitMQ has not confirmed them; or it has, the connection was lost, and the
        dispatcher, which may have taken this incarnation back before that, has not welcomed it again."""
        settling = self.settling
        if self.standing is Standing.OVER:
            return settling.unsure
        return not settling.done or (settling.unsure and self.standing is not Standing.JOINED)

    def flushed(self) -> bool:
        """All settles so far count, unless it is being evicted at this moment."""
        if self.in_doubt:
            return False
        self.settling.unsure = False
        return True

    # --- orders ---------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> list[MemberOrder]:
        """The orders to carry out now. Call it after every fact and at `next_deadline_ms`."""
        orders: list[MemberOrder] = []
        if self.begun.is_awaited and (self.standing is not Standing.JOINED or len(self.begun) > SMALL):
            self._await_no_more()
        if self.standing in ONLINE:
            self._tell(now_ms, orders)
        elif self.standing is not Standing.OVER:
            self._come_online(now_ms, orders)
        return orders

    def next_deadline_ms(self) -> int | None:
        """When `poll` has something to do if nothing happens before; None: nothing will be."""
        if self.standing is Standing.OVER:
            return None
        deadlines: list[int | None] = []
        if self.standing in ONLINE:
            deadlines.append(self._join_at_ms if self.standing is Standing.JOINING else self._heartbeat_at_ms)
            deadlines.append(self.settling.due_at_ms(nothing_in_hand=not self.in_hand))
            deadlines.append(self._word_at_ms())
            deadlines.append(self._left_at_ms)
        else:
            deadlines.append(self._open_at_ms if self.standing is Standing.OFFLINE else None)
            deadlines.append(self._offline_since_ms + self._offline_limit_ms if self._unfinished else None)
        known = [at for at in deadlines if at is not None]
        return min(known) if known else None

    @property
    def _unfinished(self) -> bool:
        return bool(self.in_hand) or not self.settling.done

    def _come_online(self, now_ms: int, orders: list[MemberOrder]) -> None:
        if self.wish is not Wish.STAY and not self._unfinished:
            # The broker knows that the queue is gone, and nothing is left to tell.
            self._finish(End.LEFT)
        elif self._unfinished and now_ms >= self._offline_since_ms + self._offline_limit_ms:
            self._finish(End.OFFLINE_TOO_LONG, f"there was no connection for {self._offline_limit_ms} ms")
        elif self.standing is Standing.OFFLINE and now_ms >= self._open_at_ms:
            self._become(Standing.OPENING)
            orders.append(OpenQueue(self._open_reason))

    def _tell(self, now_ms: int, orders: list[MemberOrder]) -> None:
        joins = self.standing is Standing.JOINING and now_ms >= self._join_at_ms
        settles_at_ms = self.settling.due_at_ms(nothing_in_hand=not self.in_hand)
        if settles_at_ms is not None and (joins or now_ms >= settles_at_ms or self.begun.is_awaited):
            # Settles go before a join, which does not name what they settle.
            begun = self._tell_begun(now_ms) if self.settling.waiting and self._may_tell(now_ms) else None
            token = 0
            for settle in self.settling.take(begun):
                token = next(self._tokens)
                self.settling.sent(token, settle)
                orders.append(Publish(token, settle))
            if begun is not None and self.begun.is_awaited:
                self._awaited[token] = self.begun.take_awaited()
        if joins:
            orders.append(Publish(0, self._join()))
            self._join_at_ms = now_ms + self._heartbeat_ms
        if self.standing is Standing.JOINED and now_ms >= self._heartbeat_at_ms:
            orders.append(Publish(0, self._heartbeat(now_ms)))
            self._heartbeat_at_ms = now_ms + self._heartbeat_ms
        word_at_ms = self._word_at_ms()
        if word_at_ms is not None and now_ms >= word_at_ms:
            token = next(self._tokens) if self.begun.is_awaited else 0
            orders.append(Publish(token, self._word(now_ms)))
            if token:
                self._awaited[token] = self.begun.take_awaited()
        if self.wish is not Wish.STAY:
            self._go(now_ms, orders)

    def _go(self, now_ms: int, orders: list[MemberOrder]) -> None:
        """Leave: say so once per connection, then wait for the end of everything in hand."""
        if self._leave_token is None:
            self._leave_token = next(self._tokens)
            leave = Leave(consumer=self.consumer, incarnation=self.incarnation)
            orders.append(Publish(self._leave_token, leave))
        if self._unfinished or self._leave_token:
            self._left_at_ms = None
        elif self._left_at_ms is None:
            self._left_at_ms = now_ms + TAKEN_WAIT_MS
        elif now_ms >= self._left_at_ms:
            self._finish(End.LEFT)

    def _join(self) -> Join:
        in_hand = tuple(
            InHand(seq=c.seq, group=c.group, fingerprint=c.fingerprint) for c in self.in_hand.values()
        )
        return Join(
            consumer=self.consumer, incarnation=self.incarnation, n=self.n, queue=self.queue,
            prefetch=self.prefetch, in_hand=in_hand, bundle=self.bundle, epoch=self._epoch,
        )  # fmt: skip

    def _tell_begun(self, now_ms: int) -> Begun:
        self._told_at_ms = now_ms
        return self.begun.tell()

    def _may_tell(self, now_ms: int) -> bool:
        """Whether a settle may say what has begun. If very many messages have begun, not each settle names
        them: the names would be larger than all the rest of the settle."""
        return len(self.begun) <= SMALL or now_ms >= self._told_at_ms + self._word_interval_ms

    @property
    def _word_interval_ms(self) -> int:
        return COALESCE_MS * max(SMALL, len(self.begun)) // SMALL

    def _word_at_ms(self) -> int | None:
        """When a word of its own has to say what has begun; None: not before the next settle."""
        if self.standing is not Standing.JOINED:
            return None
        if self.begun.is_awaited:
            return 0
        if self.begun.word_is_due and not self.settling.waiting:
            return self._told_at_ms + self._word_interval_ms
        return None

    def _await_no_more(self) -> None:
        """The dispatcher can't be told soon. Whoever waits until it is told goes on."""
        for told in [*self.begun.take_awaited(), *(told for each in self._awaited.values() for told in each)]:
            told()
        self._awaited.clear()

    def _word(self, now_ms: int) -> Settle:
        """A settle of nothing: heartbeats have a rhythm, by which the dispatcher finds lost copies."""
        begun = self._tell_begun(now_ms)
        return Settle(consumer=self.consumer, incarnation=self.incarnation, begun=begun)

    def _heartbeat(self, now_ms: int) -> Heartbeat:
        return Heartbeat(
            consumer=self.consumer, incarnation=self.incarnation, queue=self.queue,
            held=len(self.in_hand), last=self._seen.last, in_hand=SeqRanges.of(self.in_hand).pairs(),
            begun=self.begun.mention(),  # heartbeats are dropped where too many wait
        )  # fmt: skip

    # --- what changes ---------------------------------------------------------------------------------

    def _become(self, standing: Standing) -> None:
        if standing not in STANDING_TRANSITIONS[self.standing]:
            raise InvalidTransition(
                f"consumer {self.consumer} can't go from {self.standing.value} to {standing.value}"
            )
        self.standing = standing

    def _announce(self, now_ms: int) -> None:
        self._become(Standing.JOINING)
        self.n += 1
        self._join_at_ms = now_ms

    def _welcomed(self, body: dict[str, Any], now_ms: int) -> None:
        heartbeat_ms = body.get("heartbeat")
        if isinstance(heartbeat_ms, int) and heartbeat_ms > 0:
            self._heartbeat_ms = heartbeat_ms
        self.retry = RetryPolicy.of_welcome(body.get("retry")) or self.retry
        shards = body.get("shards", 1)
        self.shards = shards if isinstance(shards, int) and 1 <= shards <= SHARDS_MAX else 1
        if self.standing is Standing.JOINING:  # a repeated answer does nothing
            self._heartbeat_at_ms = now_ms
        self._become(Standing.JOINED)
        self._backoff.reset()

    def _go_offline(self, reason: str, open_at_ms: int) -> None:
        self._become(Standing.OFFLINE)
        self.queue = ""
        self._open_reason = reason
        self._open_at_ms = open_at_ms

    def _copy_missing(self, copy: C, now_ms: int) -> None:
        open_at_ms = now_ms if self._gap_at_ms is None else max(now_ms, self._gap_at_ms + GAP_INTERVAL_MS)
        self._gap_at_ms = open_at_ms
        self._offline_since_ms = now_ms
        reason = (
            f"a copy was lost before number {copy.group_seq} of group {copy.group!r} in epoch {copy.epoch}"
        )
        self._go_offline(reason, open_at_ms)

    def _renew(self) -> None:
        if self.wish is Wish.STAY:
            self.wish = Wish.RENEW

    def _finish(self, end: End, reason: str = "") -> None:
        if end is not End.TAKEN:
            self.settling.unsure = self.in_doubt
        elif self._leave_token is not None and not self.in_hand and self.standing is Standing.JOINED:
            self.settling.unsure = False  # it is the answer to the leave: all settles were read
        self._become(Standing.OVER)
        self.end = end
        self.end_reason = reason
