"""Operators' flags: the lane or a group is paused, a group is pinned, a consumer is drained.

Flags are committed with the command that sets them, and every leader reads them: they last until an operator
unsets them. Rows by key: `lane` {paused}, `group:<id>` {paused, pin, stopped}, `consumer:<id>` {drained}.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.membership.revocation import vacate
from dispatcher.core.model import Consumer, Group, GroupState
from dispatcher.core.operators.commands import Arguments, Commands, argument, group_argument
from dispatcher.core.operators.flags import (
    GROUP,
    SENTENCES,
    SHOWN_AS,
    add_flag_rows,
    flag_facts,
    is_in_transition,
    is_paused,
    load_flags,
    pause_row,
    point_pins,
    set_paused,
    set_pin,
    waits_for_pin,
)
from dispatcher.core.operators.rebalance import NoSuchGroup, known, not_settled
from dispatcher.core.ownership import change_owner, drain
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow
from dispatcher.core.wording import since
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group

LANE: Final = b"lane"
CONSUMER: Final = b"consumer:"
Row = dict[str, Any]


class Flags(Feature):
    """Sets and unsets flags, by command; the state holds them."""

    def __init__(self, state: LaneState, rows: dict[bytes, Row], commands: Commands) -> None:
        self._state = state
        state.eligibility.flag_holds |= {HoldKind.PAUSED: is_paused, HoldKind.PIN_ABSENT: waits_for_pin}
        state.explanation.flag_facts.append(flag_facts)
        state.explanation.shown_as |= SHOWN_AS
        state.explanation.sentences |= SENTENCES | {HoldKind.LANE_PAUSED: _lane_paused}
        commands.add("groups.pause", partial(self._set_paused, paused=True), "group", "all", "new")
        commands.add("groups.resume", partial(self._set_paused, paused=False), "group", "all")
        commands.add("groups.pin", self._pin, "group", "consumer", "undo", reassigns=True)
        commands.add("consumers.drain", self._drain, "consumer", "undo", reassigns=True)
        state.signals.consumer_entered.append(self._entered)
        state.signals.consumer_ended.append(lambda consumer: point_pins(state, consumer.id, None))
        if (row := rows.get(LANE, {})).get("paused"):
            self._hold_lane(row.get("paused_at_ms"))
        self._loaded = {key: row for key, row in rows.items() if key.startswith(GROUP)}
        for key in rows:
            if key.startswith(CONSUMER):
                state.drained_consumers.add(key.removeprefix(CONSUMER).decode(errors="replace"))

    def _entered(self, consumer: Consumer) -> None:
        consumer.drained = consumer.id in self._state.drained_consumers
        point_pins(self._state, consumer.id, consumer)

    def load(self, snapshot: Snapshot) -> None:
        """Take over the flags of groups. What Redis says of owners must have been loaded before."""
        state = self._state
        for key, row in self._loaded.items():
            group_key = key.removeprefix(GROUP)
            if state.policy.grouped and state.group_map.may_have(group_key):
                load_flags(state, state.group_of_key(group_key), row)
            else:  # of another group map: there is no such group in this lane
                state.effects.operator_rows[key] = None
        self._loaded = {}

    def add_rows(self, effects: Effects) -> None:
        state, rows = self._state, effects.operator_rows
        add_flag_rows(state, effects)
        rows |= {CONSUMER + name.encode(): {"drained": True} for name in state.drained_consumers}
        if state.lane_holds.is_paused:
            facts = state.lane_holds.facts(HoldKind.LANE_PAUSED, state.now_ms)
            rows[LANE] = pause_row(facts.get("paused_at_ms"))

    # -- pauses --

    def _set_paused(self, arguments: Arguments, *, paused: bool) -> Row:
        """Nothing more of the group, or of the lane (`all`), is handed over; or it goes on."""
        if argument(arguments, "all", bool):
            if arguments.get("group") is not None:
                raise CommandRefused("name a group or say all, not both")
            if argument(arguments, "new", bool):
                raise CommandRefused("new is for a group, not for all")
            return self._set_lane_paused(paused=paused)
        group = self._pausable(arguments) if paused else self._group(arguments)
        shown, changed = format_group(group.id), is_paused(group) is not paused
        if changed:
            set_paused(self._state, group, paused=paused)
        if not paused and any(resumes(group) for resumes in self._state.signals.resuming):
            changed = True
            set_paused(self._state, group, paused=False)
        if changed:
            event = "group_paused" if paused else "group_resumed"
            self._state.log_event(event, group=shown, in_flight=group.in_flight)
        return {"group": shown, "paused": paused, "changed": changed, "in_flight": group.in_flight}

    def _pausable(self, arguments: Arguments) -> Group:
        """The group to pause; with `new` it may be unknown yet. Raises CommandRefused, ValueError."""
        state, may_be_new = self._state, argument(arguments, "new", bool)
        try:
            return self._group(arguments)
        except NoSuchGroup as unknown:
            if not may_be_new:
                hint = "`groups pause --new` pauses one before that"
                raise CommandRefused(f"{unknown}; {hint}") from None
        return state.group_of_key(state.group_map.named(group_argument(arguments)))

    def _set_lane_paused(self, *, paused: bool) -> Row:
        state = self._state
        in_flight = sum(len(consumer.in_flight) for consumer in state.by_uuid.values())
        changed = state.lane_holds.is_paused is not paused
        if changed:
            if paused:
                self._hold_lane(state.now_ms)
            else:
                state.lane_holds.lift(HoldKind.LANE_PAUSED)
            state.effects.operator_rows[LANE] = pause_row(state.now_ms) if paused else None
            state.log_event("lane_paused" if paused else "lane_resumed", in_flight=in_flight)
        return {"group": None, "paused": paused, "changed": changed, "in_flight": in_flight}

    def _hold_lane(self, paused_at_ms: int | None) -> None:
        self._state.lane_holds.put(HoldKind.LANE_PAUSED, lambda: {"paused_at_ms": paused_at_ms})

    # -- pins --

    def _pin(self, arguments: Arguments) -> Row:
        """The group goes to that consumer only; with `undo` to any consumer again."""
        name, undo = argument(arguments, "consumer", str), argument(arguments, "undo", bool)
        if (name is None) is not bool(undo):
            raise CommandRefused("name a consumer or say undo, one of them")
        group = self._group(arguments)
        changed = group.pin != name
        owner, shown = group.owner, format_group(group.id)
        if changed:
            consumer = self._pinnable(name) if name is not None else None
            if consumer is not None and is_in_transition(group):
                raise not_settled(group)
            set_pin(self._state, group, name, consumer)
            if consumer is not None:
                self._move_to_pin(group, consumer)
            in_flight = group.in_flight
            if name is None:
                self._state.log_event("group_unpinned", group=shown)
            else:
                self._state.log_event("group_pinned", group=shown, consumer=name, in_flight=in_flight)
        return {
            "group": shown, "consumer": name, "changed": changed, "in_flight": group.in_flight,
            "owner": owner.id if owner is not None else None,
        }  # fmt: skip

    def _pinnable(self, name: str) -> Consumer:
        """The consumer of that id. Raises CommandRefused: it is not there, or must get nothing."""
        consumer = self._known(name)
        if consumer.drained:
            raise CommandRefused(
                f"consumer {name!r} is drained; `dispatcher consumers drain --undo` ends that"
            )
        if not consumer.stays:
            raise CommandRefused(
                f"consumer {name!r} is about to end; `dispatcher consumers list` shows who stays"
            )
        return consumer

    def _move_to_pin(self, group: Group, target: Consumer) -> None:
        """It changes its owner as with a rebalance: when nothing of it is in flight any more."""
        state = self._state
        if group.owner in (None, target) or group.state is not GroupState.OWNED:
            return
        if state.policy.keeps_owner:
            drain(state, group, target)
            state.effects.owners[group.id] = OwnerRow(target.number, 0)
        else:
            drain(state, group)
        if not group.in_flight:
            change_owner(state, group)

    # -- consumers --

    def _drain(self, arguments: Arguments) -> Row:
        """The consumer gets nothing more, and its groups go to others; with `undo` it gets messages again."""
        state = self._state
        name, undo = argument(arguments, "consumer", str), bool(argument(arguments, "undo", bool))
        if name is None:
            raise CommandRefused("name a consumer")
        was_drained = name in state.drained_consumers
        if not was_drained:
            self._known(name)
        changed = was_drained is undo
        if changed:
            self._set_drained(name, drained=not undo)
        consumer = state.by_id.get(name)
        return {
            "consumer": name, "drained": not undo, "changed": changed,
            "in_flight": len(consumer.in_flight) if consumer is not None else 0,
            "pinned": sum(group.pin == name for group in state.groups_with_flags),
        }  # fmt: skip

    def _set_drained(self, name: str, *, drained: bool) -> None:
        state = self._state
        if drained:
            state.drained_consumers.add(name)
        else:
            state.drained_consumers.discard(name)
        state.effects.operator_rows[CONSUMER + name.encode()] = {"drained": True} if drained else None
        state.log_event("consumer_drained" if drained else "consumer_undrained", consumer=name)
        consumer = state.by_id.get(name)
        if consumer is not None:
            consumer.drained = drained
            state.refresh_credit(consumer)
            if drained:
                vacate(state, consumer)
            point_pins(state, name, consumer)

    def _known(self, name: str) -> Consumer:
        consumer = self._state.by_id.get(name)
        if consumer is None:
            raise CommandRefused(f"no consumer {name!r}; `dispatcher consumers list` shows who is there")
        return consumer

    # -- groups --

    def _group(self, arguments: Arguments) -> Group:
        """The group that a command names. Raises CommandRefused, ValueError."""
        state = self._state
        if not state.policy.grouped:
            raise CommandRefused(f"a {state.policy.name} lane has no groups")
        return known(state, group_argument(arguments))


def _lane_paused(facts: Facts) -> str:
    at = since(facts.get("paused_at_ms"))
    return f"The lane is paused by an operator{at}, until `dispatcher groups resume --all`."
