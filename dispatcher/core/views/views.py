"""What operators see of a lane, as plain values: rows of groups and consumers, and why a group waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from dispatcher.core.bounds import UNACKED_TOLD_MS, WAITS_FOR_ID_MS
from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.holds import Hold
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import NEVER_FULL, Consumer, Group, Original
from dispatcher.core.operators.commands import Commands, argument
from dispatcher.core.operators.flags import drained_absent, flag_row, flag_status
from dispatcher.core.operators.stopped_groups import stopped_rows
from dispatcher.core.optional.sequence_numbers import SequenceNumbers, irregularities
from dispatcher.core.optional.start_gate import live_consumers
from dispatcher.core.parking import display
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.state import LaneState
from dispatcher.core.views.blocked_reason import text, undeliverable, verdict
from dispatcher.core.views.group_depth import depth, oldest_ms
from dispatcher.core.views.group_listing import GroupListing
from dispatcher.core.views.hot_group import HotGroupWatch
from dispatcher.core.waiting import waiting_here
from dispatcher.core.wording import counted
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

MESSAGES_SHOWN = 50


class SettledUnacked(NamedTuple):
    """Settled originals of an inbound queue whose acks are kept back, and how long the first one has been."""

    count: int  # type: ignore[assignment]  # a tuple's method is not called
    for_ms: int


NOTHING_UNACKED: Final = SettledUnacked(0, 0)


class LaneTotals(NamedTuple):
    """Numbers of a lane now. `settled` and `dispatched` count since this leadership began."""

    lane_epoch: int
    settled: int
    dispatched: int
    waiting: int
    parked: int
    in_flight: int


class Views:
    """Reads a lane's state; changes nothing."""

    def __init__(
        self,
        state: LaneState,
        peek: Callable[[Any], dict[str, Any]] = lambda _: {},
        unacked: Callable[[QueueId], SettledUnacked] = lambda _: NOTHING_UNACKED,
    ) -> None:
        """`peek`: what a message's content says of itself. `unacked`: the acks of an inbound queue, by its
        index, that are kept back."""
        self._state = state
        self._peek = peek
        self._unacked = unacked
        self._deepest: dict[QueueId, bytes] = {}  # by inbound queue: the deepest group, at the last look

    def status(self) -> dict[str, Any]:
        state = self._state
        spent = sum(inbound.spent for inbound in state.inbounds)
        return {
            "policy": state.policy.name,
            "paused": state.lane_holds.is_paused,
            "lane_epoch": state.lane_epoch,
            "inbound": [self._inbound_row(inbound, spent) for inbound in state.inbounds],
            "consumers": len(state.by_uuid),
            "consumers_waiting": sum(self._wanted_by(c) is not None for c in state.by_uuid.values()),
            "consumers_frozen": sum(c.state is ConsumerState.FROZEN for c in state.by_uuid.values()),
            "groups": len(state.groups),
            "groups_waiting": _groups_waiting(state),
            **flag_status(state),
            "busiest_group": self._busiest(),
            "oldest_in_flight_ms": max(
                (self._oldest_in_flight_ms(c) or 0 for c in state.by_uuid.values()), default=0
            ),
            "held": sum(inbound.waiting for inbound in state.inbounds),
            "in_flight": sum(len(consumer.in_flight) for consumer in state.by_uuid.values()),
            "hold": self._hold_row(state.explanation.lane_hold()),
            "unconfirmed": state.unconfirmed,
            "undeliverable": len(state.undeliverable),
            "bytes_held": state.bytes_held,
            **display.parking_status(state),
            "counters": dict(state.counters),
        }

    def _inbound_row(self, inbound: Inbound, spent: int) -> dict[str, Any]:
        full, unacked = inbound.is_full(), self._unacked(inbound.index)
        return {
            "queue": inbound.name,
            "weight": inbound.weight,
            "share": inbound.spent / spent if spent else None,
            "held": inbound.waiting,
            "in_flight": inbound.in_flight,
            "dispatched": inbound.dispatched,
            "look_ahead": self._state.options.look_ahead,
            "window": inbound.window,
            "full": full,
            "full_of": self._full_of(inbound) if full else None,
            "ungrouped_hold": self._hold_row(self._state.explanation.why_ungrouped(inbound.ungrouped)),
            "settled_unacked": unacked.count,
            "settled_unacked_ms": unacked.for_ms,
        }

    def _hold_row(self, hold: Hold | None) -> dict[str, Any] | None:
        """A hold as `why` has it for a group."""
        if hold is None:
            return None
        return {"reason": hold.kind.value, "facts": dict(hold.facts), "verdict": text(self._state, hold)}

    def operations(self) -> list[dict[str, Any]]:
        """Operations on groups that are under way, and how far each has come."""
        under_way = self._state.feature(Commands).under_way
        return [{"uuid": uuid, **progress()} for uuid, progress in under_way.items()]

    def totals(self) -> LaneTotals:
        """The numbers of which a history is kept. O(inbound queues and consumers)."""
        state = self._state
        return LaneTotals(
            lane_epoch=state.lane_epoch,
            settled=state.counters["settled"],
            dispatched=sum(inbound.dispatched for inbound in state.inbounds),
            waiting=sum(inbound.waiting for inbound in state.inbounds),
            parked=sum(queue.originals for queue in state.parking.values()),
            in_flight=sum(len(consumer.in_flight) for consumer in state.by_uuid.values()),
        )

    def _busiest(self) -> dict[str, Any] | None:
        """The group with most of the messages of the last minute."""
        state = self._state
        first = state.feature(HotGroupWatch).first()
        if first is None:
            return None
        group = state.groups.get(first.key)
        return {
            "group": format_group(first.key),
            "share": first.share,
            "owner": group.owner.id if group is not None and group.owner is not None else None,
            "depth": depth(state, group) if group is not None else 0,
        }

    def _why_hot(self, group: Group) -> list[str]:
        """Whether more comes in of it than is one consumer's even part."""
        hot_group, consumers = self._busiest(), live_consumers(self._state)
        if (
            hot_group is None
            or hot_group["group"] != format_group(group.id)
            or hot_group["share"] * consumers <= 1
        ):
            return []
        return [
            f"hot: {hot_group['share']:.0%} of the messages of the last minute belong to this group, and its "
            f"owner gets all of them; an even part of the {consumers} consumers would be {1 / consumers:.0%}"
        ]

    def _why_silent(self, group: Group) -> list[str]:
        """Whether nothing was heard of its consumer for so long that it gets no new group."""
        consumer = group.taker
        if consumer is None or consumer.state is not ConsumerState.FROZEN:
            return []
        return [
            f"its consumer {consumer.id} is frozen: not heard of for {self._silent_ms(consumer) / 1000:.1f} s"
        ]

    def _silent_ms(self, consumer: Consumer) -> int:
        return self._state.now_ms - consumer.last_heard_ms

    def _why_unacked(self, inbound: Inbound) -> list[str]:
        """Whether acks are kept back for long: RabbitMQ may send less then."""
        unacked = self._unacked(inbound.index)
        if unacked.for_ms < UNACKED_TOLD_MS:
            return []
        return [
            f"{counted(unacked.count, 'settled message')} of {inbound.name} not acked, the first one for "
            f"{unacked.for_ms / 1000:.1f} s: unsettled ones are in front"
        ]

    def _oldest_in_flight_ms(self, consumer: Consumer) -> int | None:
        """For how long the message has been out that is out for longest; in flight they are in that order.
        A message from before this leadership counts from its beginning on, as with `ack_timeout`."""
        first = next(iter(consumer.in_flight.values()), None)
        return self._out_ms(first) if first is not None else None

    def _out_ms(self, message: Original) -> int:
        return self._state.now_ms - max(message.dispatched_at_ms, self._state.patience_from_ms)

    def is_full(self) -> bool:
        """Whether any inbound queue's look-ahead is used up."""
        return any(inbound.is_full() for inbound in self._state.inbounds)

    def _full_of(self, inbound: Inbound) -> str:
        """What takes the room in a full look-ahead: the deepest group that the last listing saw, and what
        does not wait for its turn."""
        out = f"{counted(inbound.in_flight, 'message')} in flight"
        ends = inbound.unacked - inbound.in_flight - inbound.waiting
        if ends > 0:
            out += f", {counted(ends, 'message')} on the way to another queue"
        if inbound.paused:
            out += f", and all queues together have {self._state.bytes_held} bytes here"
        group = self._state.groups.get(self._deepest.get(inbound.index, b""))
        backlog = (group.backlogs or {}).get(inbound.index) if group is not None else None
        if group is None or backlog is None:
            return out
        return f"{counted(len(backlog.messages), 'message')} of group {format_group(group.id)}, {out}"

    # -- groups --

    def listing(self, arguments: dict[str, Any]) -> GroupListing:
        """Begin to look at all groups; `listed` returns the result. Raises CommandRefused, ValueError."""
        return GroupListing(self._state, arguments)

    def listed(self, listing: GroupListing) -> dict[str, Any]:
        """A page of groups, as `groups.list` shows it, when the listing is complete."""
        for inbound in self._state.inbounds:
            deepest = listing.deepest(inbound.index)
            if deepest is not None:
                self._deepest[inbound.index] = deepest
        return {"total": listing.total, "groups": self._rows(listing.page())}

    def busiest_groups(self, count: int) -> dict[str, Any]:
        """So many of the groups of which most of the last minute's messages were, the busiest first, each
        with its part of them (`share`). One of less than 1/128 may be missing."""
        shares = self._state.feature(HotGroupWatch).top(count)
        groups = [self._state.groups.get(share.key) or Group(share.key) for share in shares]
        rows = zip(self._rows(groups), shares, strict=True)
        return {"total": len(shares), "groups": [{**row, "share": share.share} for row, share in rows]}

    def _rows(self, groups: list[Group]) -> list[dict[str, Any]]:
        """O(messages in flight), for all of them together."""
        out: dict[Group, list[Original]] = {group: [] for group in groups}
        for message in self._in_flight():
            if message.group in out:
                out[message.group].append(message)
        return [self._row(group, out[group]) for group in groups]

    def _row(self, group: Group, out: list[Original]) -> dict[str, Any]:
        """`out`: its messages in flight."""
        waiting = list(waiting_here(group))
        hold = self._state.explanation.why(group)
        return {
            "group": format_group(group.id),
            "state": group.state.value,
            "owner": group.owner.id if group.owner is not None else None,
            "epoch": group.epoch or None,
            "held": len(waiting),
            "in_flight": group.in_flight,
            "window": group.window if group.window < NEVER_FULL else None,
            **display.group_row(self._state, group),
            **flag_row(group),
            "oldest_ms": self._oldest_ms(group, waiting),
            "oldest_in_flight_ms": max(map(self._out_ms, out), default=None),
            "reason": hold.kind.value if hold is not None else None,
            "verdict": verdict(self._state, group, hold, waiting, out),
        }

    def _oldest_ms(self, group: Group, waiting: list[Original]) -> int | None:
        """For how long the oldest that waits here or is parked has done so."""
        here_ms = min((message.waits_since_ms for message in waiting), default=None)
        since_ms = oldest_ms(self._state, group, here_ms)
        return self._state.now_ms - since_ms if since_ms is not None else None

    def _find(self, arguments: dict[str, Any]) -> Group:
        text = arguments.get("group")
        if not isinstance(text, str):
            raise CommandRefused("name a group")
        group_id = parse_group(text)
        group = self._state.groups.get(self._state.group_map.named(group_id))
        if group is None and any(message.group_id == group_id for message in self._state.undeliverable):
            group = Group(group_id)
        if group is None:
            raise CommandRefused(f"no group {text!r} is known here: it has no waiting messages and no owner")
        return group

    def group(self, arguments: dict[str, Any], *, headers: bool = True) -> dict[str, Any]:
        """One group with its first messages, those in flight before those that wait; without `headers` only
        what the dispatcher says of them."""
        group = self._find(arguments)
        out = sorted(self._out(group), key=lambda m: (m.epoch, m.group_seq))
        messages = [*out, *waiting_here(group)][:MESSAGES_SHOWN]
        rows = [self._message_row(m) | (self._peek(m.content) if headers else {}) for m in messages]
        sequences = self._state.find(SequenceNumbers)
        last = sequences.last(group.id) if sequences is not None else None
        return {**self._row(group, out), "last_number": last, "messages": rows}

    def _in_flight(self) -> Iterable[Original]:
        return (m for c in self._state.by_uuid.values() for m in c.in_flight.values())

    def _out(self, group: Group) -> list[Original]:
        return [message for message in self._in_flight() if message.group is group]

    def _message_row(self, message: Original) -> dict[str, Any]:
        state = self._state
        known = message.inbound < len(state.inbounds)
        return {
            "inbound": state.inbounds[message.inbound].name if known else None,
            **display.message_row(state, message),
            "arrival": f"{message.arrival[0]}.{message.arrival[1]}",
            "state": message.state.value,
            "seq": message.seq or None,
            "group_seq": message.group_seq or None,
            "number": message.number,
            "attempt": message.attempt,
            "consumer": message.consumer.id if message.consumer is not None else None,
            "size": message.size,
            "age_ms": state.now_ms - message.waits_since_ms,
        }

    def why(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Why a group waits: a code (`reason`) with its facts, and a sentence (`verdict`); its first message,
        which consumer has it and since when, and the messages behind."""
        group = self._find(arguments)
        waiting = list(waiting_here(group))
        out = sorted(self._out(group), key=lambda m: (m.epoch, m.group_seq))
        hold = self._state.explanation.why(group)
        blocking = None
        if out:
            first = out[0]
            blocking = {
                "message": self._message_row(first),
                "consumer": first.consumer.id if first.consumer is not None else None,
                "since_ms": self._state.now_ms - first.dispatched_at_ms if first.dispatched_at_ms else None,
            }
        details = [
            f"look-ahead of {inbound.name} is full: {self._full_of(inbound)}"
            for inbound in self._state.inbounds
            if inbound.is_full()
        ]
        details += [text for inbound in self._state.inbounds for text in self._why_unacked(inbound)]
        details += self._why_silent(group)
        details += display.details(self._state, group)
        details += undeliverable(self._state, group)
        details += irregularities(self._state, group.id)
        details += self._why_hot(group)
        details += [line for say in self._state.explanation.details for line in say(group, out)]
        return {
            "group": format_group(group.id),
            "reason": hold.kind.value if hold is not None else None,
            "facts": dict(hold.facts) if hold is not None else {},
            "verdict": verdict(self._state, group, hold, waiting, out),
            "owner": group.owner.id if group.owner is not None else None,
            "owner_state": group.owner.state.value if group.owner is not None else None,
            "blocking": blocking,
            "behind": len(waiting) + display.count_elsewhere(self._state, group, [*waiting, *out]),
            "details": details,
        }

    def stopped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A page of the groups that have stopped at a message, by their ids. Raises CommandRefused."""
        return {"groups": stopped_rows(self._state, argument(arguments, "after", str))}

    # -- consumers --

    def consumers(self) -> dict[str, Any]:
        rows = [self._consumer_row(c) for c in sorted(self._state.by_uuid.values(), key=lambda c: c.id)]
        unread = [named.id for named in self._state.options.handover if named.id not in self._state.by_id]
        return {"consumers": rows, "drained_absent": drained_absent(self._state), "unread": unread}

    def _wanted_by(self, consumer: Consumer) -> str | None:
        """The incarnation that waits for its id, if it has asked lately."""
        asked_ms = self._state.now_ms - consumer.waiting_heard_ms
        return consumer.waiting.incarnation if consumer.waiting and asked_ms < WAITS_FOR_ID_MS else None

    def _consumer_row(self, consumer: Consumer) -> dict[str, Any]:
        return {
            "consumer": consumer.id,
            "incarnation": consumer.uuid,
            "state": consumer.state.value,
            "prefetch": consumer.prefetch,
            "in_flight": len(consumer.in_flight),
            "handed_over": consumer.next_seq - 1,
            "oldest_in_flight_ms": self._oldest_in_flight_ms(consumer),
            "groups": len(consumer.groups),
            "alone": consumer.alone_with is not None,
            "drained": consumer.drained,
            **{
                name: value
                for say in self._state.explanation.consumer_columns
                for name, value in say(consumer).items()
            },
            "id_wanted_by": self._wanted_by(consumer),
            "queue": consumer.queue,
            "last_heartbeat_ms": self._silent_ms(consumer),
            "readers": consumer.readers if consumer.depth is not None else None,
            "waiting_there": consumer.depth,
        }


def _groups_waiting(state: LaneState) -> int:
    """Groups with messages here that wait for nothing but a consumer's room. One that has such messages from
    two inbound queues counts twice."""
    unowned = sum(len(inbound.unowned.backlogs) for inbound in state.inbounds)
    owned = (source.backlogs for consumer in state.by_uuid.values() for source in consumer.sources)
    return unowned + sum(map(len, owned))
