"""What operators do with owners: groups move, or are closed. Only those pause, until they are settled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.feature import Feature
from dispatcher.core.model import Consumer, Group, GroupState
from dispatcher.core.operators.commands import Arguments, Commands, argument, group_argument
from dispatcher.core.operators.flags import is_in_transition, is_movable, operation_on
from dispatcher.core.operators.quiescing import Quiescing
from dispatcher.core.operators.reset_owners import OwnerReset
from dispatcher.core.ownership import change_owner, close, drain, release
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

#: Moves that a result names, of perhaps a million: it is one message, and is kept for a while.
MOVES_SHOWN: Final = 100

#: Which messages wait while groups move: those of the groups that move, all of the lane, none.
PAUSES: Final = ("group", "lane", "none")


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One group's change of owner; `target` None: the next consumer in turn when its next message comes."""

    group: Group
    target: Consumer | None


class Rebalance(Feature):
    """Plans moves and starts them; closes groups."""

    def __init__(
        self, state: LaneState, commands: Commands, resets: OwnerReset, quiescing: Quiescing
    ) -> None:
        self._state = state
        self._resets = resets
        self._quiescing = quiescing
        takes = ("group", "to", "reset", "dry_run", "pause")
        commands.add("rebalance", self.rebalance, *takes, reassigns=True)
        commands.add("groups.close", self.close, "group", reassigns=True)

    # -- commands --

    def rebalance(self, arguments: Arguments) -> dict[str, Any]:
        """The command `rebalance`. Raises CommandRefused, ValueError."""
        group, to = (argument(arguments, name, str) for name in ("group", "to"))
        reset, dry_run = (argument(arguments, name, bool) for name in ("reset", "dry_run"))
        group_id = parse_group(group) if group is not None else None
        pause = self.checked_pause(arguments)
        if reset and to is not None:
            raise CommandRefused(
                "to: does not go with reset: a group that is reset goes to the next consumer that takes it"
            )
        if reset and group_id is None and to is None:
            return self._reset(pause, dry_run=bool(dry_run))
        moves = self.plan(group_id=group_id, to=to)
        described = [describe(move) for move in moves[:MOVES_SHOWN]]
        if not dry_run:
            self.start(moves, pause)
        return {"groups": len(moves), "moves": described, "applied": not dry_run, "pause": pause}

    def checked_pause(self, arguments: Arguments) -> str:
        """Which messages have to wait meanwhile. Raises CommandRefused, also while no group may move."""
        pause = argument(arguments, "pause", str) or self._state.options.rebalance_pause
        if pause not in PAUSES:
            raise CommandRefused(f"pause: must be {', '.join(PAUSES[:-1])} or {PAUSES[-1]}")
        if self._state.reset_until is not None:
            raise CommandRefused("all groups are being reset: try again when that is done")
        return pause

    def _reset(self, pause: str, *, dry_run: bool) -> dict[str, Any]:
        self.check_policy()
        state, count = self._state, self._resets.count()
        described = [
            describe(Reassignment(group, None)) for group in islice(self._resets.scope(), MOVES_SHOWN)
        ]
        if not dry_run:
            state.log_event("groups_moving", groups=count, pause=pause)
            self._resets.start(partial(self._free, at_once=pause == "none"))
            if pause == "lane" and count:
                self._quiescing.begin_waiting()
        return {"groups": count, "moves": described, "applied": not dry_run, "pause": pause}

    def _free(self, group: Group, *, at_once: bool) -> None:
        self._state.counters["groups_moved"] += 1
        if at_once:
            self._move_now(Reassignment(group, None))
        else:
            close(self._state, group)

    def close(self, arguments: Arguments) -> dict[str, Any]:
        """The command `groups.close`: what a negative sequence does, done by an operator (A7, C3).

        A group without an owner stays without one; under `sequenced` a batch that is out ends that way
        anyway. Raises CommandRefused, ValueError.
        """
        group_id = group_argument(arguments)
        if not self._state.policy.grouped:
            raise CommandRefused(f"a {self._state.policy.name} lane has no groups: there is nothing to close")
        group = known(self._state, group_id)
        check_free(group)
        if group.state is GroupState.RECOVERING or group.target is not None:
            raise not_settled(group)
        owner = group.owner.id if group.owner is not None else None
        waits_for = group.in_flight
        if group.state is GroupState.OWNED:
            self._state.log_event(
                "group_closed", group=format_group(group.id), owner=owner, waits_for=waits_for
            )
            self._state.counters["groups_closed"] += 1
            close(self._state, group)
        return {"group": format_group(group.id), "owner": owner, "waits_for": waits_for}

    # -- moves --

    def check_policy(self) -> None:
        """Raises CommandRefused where groups have no owners that last."""
        if not self._state.policy.keeps_owner:
            name = self._state.policy.name
            raise CommandRefused(
                f"groups of a {name} lane have no lasting owner: there is nothing to rebalance"
            )

    def plan(self, *, group_id: bytes | None, to: str | None) -> list[Reassignment]:
        """The moves that a command asks for; nothing changes. Raises CommandRefused."""
        self.check_policy()
        target = self._consumer(to) if to is not None else None
        if group_id is not None:
            return self._plan_group(group_id, target)
        if target is not None:
            raise CommandRefused("name the group to move: --group")
        return self._plan_even([group for group in self._state.groups.values() if is_movable(group)])

    def _plan_group(self, group_id: bytes, target: Consumer | None) -> list[Reassignment]:
        group = known(self._state, group_id)
        check_settled(group)
        if group.pin is not None:
            raise CommandRefused(
                f"the group is pinned to {group.pin}; `dispatcher groups pin --undo` ends that"
            )
        if group.owner is None or group.owner is target:
            return []
        return [Reassignment(group, target)]

    def _consumer(self, name: str) -> Consumer:
        consumer = self._state.by_id.get(name)
        if consumer is not None and consumer.drained:
            raise CommandRefused(
                f"consumer {name!r} is drained; `dispatcher consumers drain --undo` ends that"
            )
        if consumer is None or consumer.state is not ConsumerState.LIVE:
            raise CommandRefused(f"no live consumer {name!r}; `dispatcher consumers list` shows who is there")
        return consumer

    def _plan_even(self, owned: list[Group]) -> list[Reassignment]:
        """The fewest moves after which the numbers of groups differ by at most one."""
        live = [consumer for consumer in self._state.by_id.values() if consumer.is_open]
        if not live:
            return []
        by_owner: dict[Consumer, list[Group]] = {consumer: [] for consumer in live}
        for group in owned:
            if group.owner in by_owner:
                by_owner[group.owner].append(group)
        has = {consumer: len(by_owner[consumer]) + len(consumer.incoming) for consumer in live}
        low, extra = divmod(sum(has.values()), len(live))
        ranked = sorted(live, key=lambda consumer: -has[consumer])
        wanted = {consumer: low + (rank < extra) for rank, consumer in enumerate(ranked)}
        surplus = [g for c in ranked for g in _least_busy(by_owner[c])[: max(0, has[c] - wanted[c])]]
        places = [c for c in ranked for _ in range(max(0, wanted[c] - has[c]))]
        # Groups on their way to a consumer can't be moved again: then there are fewer than places, or more.
        return [Reassignment(group, consumer) for group, consumer in zip(surplus, places, strict=False)]

    def start(self, moves: list[Reassignment], pause: str) -> None:
        """Begin all moves. The new owner is committed now, so that a crash in between changes nothing."""
        state = self._state
        state.log_event("groups_moving", groups=len(moves), pause=pause)
        for move in moves:
            state.counters["groups_moved"] += 1
            if pause == "none":
                self._move_now(move)
            elif move.target is None:
                close(state, move.group)
            else:
                self._move_when_settled(move.group, move.target)
        if pause == "lane" and moves:
            self._quiescing.begin_waiting()

    def _move_when_settled(self, group: Group, target: Consumer) -> None:
        drain(self._state, group, target)
        self._state.effects.owners[group.id] = OwnerRow(target.number, 0)
        if not group.in_flight:
            change_owner(self._state, group)

    def _move_now(self, move: Reassignment) -> None:
        """Messages in flight stay where they are: two consumers may work on the group (A14)."""
        group, state = move.group, self._state
        release(state, group)
        if move.target is not None:
            state.groups[group.id] = group  # an empty one was forgotten a moment ago
            state.assign(group, move.target, GroupState.OWNED)


def _least_busy(groups: list[Group]) -> list[Group]:
    """Those with nothing in flight first: they move without a pause."""
    return sorted(groups, key=lambda group: group.in_flight)


class NoSuchGroup(CommandRefused):
    """Nothing of that group is here."""


def known(state: LaneState, group_id: bytes) -> Group:
    """The group that an operator means. Raises NoSuchGroup."""
    group = state.groups.get(state.group_map.named(group_id))
    if group is None:
        shown = format_group(group_id)
        raise NoSuchGroup(f"no group {shown!r} is known here: it has no waiting messages and no owner")
    return group


def check_free(group: Group) -> None:
    """Raises CommandRefused while an operation on the group is open."""
    if operation_on(group) is not None:
        raise not_settled(group)


def check_settled(group: Group) -> None:
    """Raises CommandRefused while the group changes its owner, or an operation on it is open."""
    check_free(group)
    if is_in_transition(group):
        raise not_settled(group)


def not_settled(group: Group) -> CommandRefused:
    """The answer then."""
    uuid = operation_on(group)
    if uuid is not None:
        return CommandRefused(f"the group is in transition by {uuid}; try again when that is done")
    text = f"the group is in transition ({group.state.value}); try again when it is settled"
    return CommandRefused(text)


def describe(move: Reassignment) -> dict[str, Any]:
    """As a result names it."""
    owner = move.group.owner
    return {
        "group": format_group(move.group.id),
        "from": owner.id if owner is not None else None,
        "to": move.target.id if move.target is not None else None,
        "waits_for": move.group.in_flight,
    }
