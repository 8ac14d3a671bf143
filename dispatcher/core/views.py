"""What operators see of a lane, as plain values: rows of groups and consumers, and why a group waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from dispatcher.core.consumers import Consumer
from dispatcher.core.groups import Group, GroupState
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Message, MessageState
from dispatcher.core.state import LaneState
from dispatcher.core.verdicts import undeliverable, verdict
from dispatcher.errors import CommandRefused
from dispatcher.group_text import format_group, parse_group

GROUPS_PER_PAGE = 100
MESSAGES_SHOWN = 50


class Views:
    """Reads a lane's state; changes nothing."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def status(self) -> dict[str, Any]:
        state = self._state
        dispatched = sum(inbound.dispatched for inbound in state.inbounds)
        return {
            "policy": state.policy.name,
            "lane_epoch": state.lane_epoch,
            "inbound": [self._inbound_row(inbound, dispatched) for inbound in state.inbounds],
            "consumers": len(state.by_uuid),
            "groups": len(state.groups),
            "held": sum(inbound.waiting for inbound in state.inbounds),
            "in_flight": sum(len(consumer.in_flight) for consumer in state.by_uuid.values()),
            "unconfirmed": state.unconfirmed,
            "undeliverable": len(state.undeliverable),
            "bytes_held": state.bytes_held,
            "counters": dict(state.counters),
        }

    def _inbound_row(self, inbound: Inbound, dispatched: int) -> dict[str, Any]:
        full = inbound.unacked >= self._state.options.look_ahead or inbound.paused
        return {
            "queue": inbound.name,
            "weight": inbound.weight,
            "share": inbound.dispatched / dispatched if dispatched else None,
            "held": inbound.waiting,
            "in_flight": inbound.in_flight,
            "dispatched": inbound.dispatched,
            "look_ahead": self._state.options.look_ahead,
            "full": full,
            "full_of": self._full_of(inbound) if full else None,
        }

    def _full_of(self, inbound: Inbound) -> str:
        """The group that takes the most room in a full look-ahead."""
        backlogs = (
            backlog
            for group in self._state.groups.values()
            if (backlog := (group.backlogs or {}).get(inbound.index)) is not None
        )
        largest = max(backlogs, key=lambda backlog: len(backlog.messages), default=None)
        out = f"{inbound.in_flight} messages in flight"
        if largest is None:
            return out
        return f"{len(largest.messages)} messages of group {format_group(largest.group.id)}, {out}"

    # -- groups --

    def groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A page of groups, sorted by depth, age or name, and filtered by state."""
        wanted = arguments.get("state")
        limit, offset = int(arguments.get("limit") or GROUPS_PER_PAGE), int(arguments.get("offset") or 0)
        order = arguments.get("sort") or "depth"
        if limit < 1 or offset < 0:
            raise CommandRefused("limit must be at least 1 and offset at least 0")
        if wanted is not None and wanted not in {state.value for state in GroupState}:
            raise CommandRefused(
                f"no group state {wanted!r}; states are {', '.join(s.value for s in GroupState)}"
            )
        keys: dict[str, Callable[[Group], tuple[Any, bytes]]] = {
            "depth": lambda group: (-_depth(group), group.id),
            "age": lambda group: (_oldest_at_ms(group), group.id),
            "group": lambda group: (0, group.id),
        }
        if order not in keys:
            raise CommandRefused(f"can't sort by {order!r}; sort by {', '.join(keys)}")
        found = [g for g in self._state.groups.values() if wanted in (None, g.state.value)]
        page = heapq.nsmallest(offset + limit, found, key=keys[order])[offset:]
        return {"total": len(found), "groups": [self._row(group) for group in page]}

    def _row(self, group: Group) -> dict[str, Any]:
        waiting = self._waiting(group)
        return {
            "group": format_group(group.id),
            "state": group.state.value,
            "owner": group.owner.id if group.owner is not None else None,
            "epoch": group.epoch or None,
            "held": len(waiting),
            "in_flight": group.in_flight,
            "oldest_ms": max((self._state.now_ms - m.received_at_ms for m in waiting[:1]), default=None),
        }

    @staticmethod
    def _waiting(group: Group) -> list[Message]:
        backlogs = (group.backlogs or {}).values()
        return [m for backlog in backlogs for m in backlog.messages if m.state is MessageState.HELD]

    def _find(self, arguments: dict[str, Any]) -> Group:
        text = arguments.get("group")
        if not isinstance(text, str):
            raise CommandRefused("name a group")
        group_id = parse_group(text)
        group = self._state.named_group(group_id)
        if group is None and any(message.group_id == group_id for message in self._state.undeliverable):
            group = Group(group_id)
        if group is None:
            raise CommandRefused(f"no group {text!r} is known here: nothing of it waits and nobody owns it")
        return group

    def group(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """One group with its first messages, those in flight before those that wait."""
        group = self._find(arguments)
        messages = sorted(self._out(group), key=lambda m: (m.epoch, m.group_seq)) + self._waiting(group)
        return {**self._row(group), "messages": [self._message_row(m) for m in messages[:MESSAGES_SHOWN]]}

    def _out(self, group: Group) -> list[Message]:
        return [m for c in self._state.by_uuid.values() for m in c.in_flight.values() if m.group is group]

    def _message_row(self, message: Message) -> dict[str, Any]:
        known = message.inbound < len(self._state.inbounds)
        return {
            "inbound": self._state.inbounds[message.inbound].name if known else None,
            "arrival": f"{message.arrival[0]}.{message.arrival[1]}",
            "state": message.state.value,
            "seq": message.seq or None,
            "group_seq": message.group_seq or None,
            "attempt": message.attempt,
            "consumer": message.consumer.id if message.consumer is not None else None,
            "size": message.size,
            "age_ms": self._state.now_ms - message.received_at_ms,
        }

    def why(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Why a group waits: the message that blocks it, who has that since when, and what waits behind."""
        group = self._find(arguments)
        waiting = self._waiting(group)
        out = sorted(self._out(group), key=lambda m: (m.epoch, m.group_seq))
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
            if inbound.unacked >= self._state.options.look_ahead or inbound.paused
        ]
        details += undeliverable(self._state, group)
        if out and out[0].overdue:
            details.append(
                "the message in front is overdue: its consumer did not settle it within ack_timeout"
            )
        return {
            "group": format_group(group.id),
            "verdict": verdict(self._state, group, waiting, out),
            "blocking": blocking,
            "behind": len(waiting),
            "details": details,
        }

    # -- consumers --

    def consumers(self) -> dict[str, Any]:
        rows = [self._consumer_row(c) for c in sorted(self._state.by_uuid.values(), key=lambda c: c.id)]
        return {"consumers": rows}

    def _consumer_row(self, consumer: Consumer) -> dict[str, Any]:
        return {
            "consumer": consumer.id,
            "incarnation": consumer.uuid,
            "state": consumer.state.value,
            "prefetch": consumer.prefetch,
            "in_flight": len(consumer.in_flight),
            "groups": len(consumer.groups),
            "alone": consumer.alone_with is not None,
            "overdue": consumer.overdue,
            "evicted_by": consumer.evicted_by.value if consumer.evicted_by is not None else None,
            "queue": consumer.queue,
            "last_heartbeat_ms": self._state.now_ms - consumer.last_heard_ms,
        }


def _depth(group: Group) -> int:
    """Messages waiting and in flight; those that expired while they waited may still be counted."""
    return group.in_flight + sum(len(backlog.messages) for backlog in (group.backlogs or {}).values())


def _oldest_at_ms(group: Group) -> float:
    """When the oldest message that waits was received."""
    heads = (backlog.messages for backlog in (group.backlogs or {}).values())
    return min((messages[0].received_at_ms for messages in heads if messages), default=float("inf"))
