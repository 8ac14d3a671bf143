"""`rebalance --plan`: moves that were computed a while ago, each done only if it still applies."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, Final

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.feature import Feature
from dispatcher.core.model import Consumer, Group, GroupState
from dispatcher.core.operators.commands import Arguments, Commands, argument
from dispatcher.core.operators.flags import is_in_transition, operation_on
from dispatcher.core.operators.rebalance import MOVES_SHOWN, Reassignment, Rebalance, describe
from dispatcher.core.state import LaneState
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

COMMAND: Final = "rebalance.plan"
#: Moves of one command: they are one decision, and the lane stands still meanwhile. A plan is several.
PLANNED_AT_ONCE: Final = 500
DONE: Final = "is with its consumer already"
ON_ITS_WAY: Final = "is on its way already"

#: A group's key, its owner's id when the plan was made (None: none), and the id of its next owner.
Planned = tuple[bytes, str | None, str]


class RebalancePlan(Feature):
    """Carries out the moves of a plan that still apply. A second time there are none."""

    def __init__(self, state: LaneState, commands: Commands, rebalance: Rebalance) -> None:
        self._state = state
        self._rebalance = rebalance
        commands.add(COMMAND, self.apply, "moves", "buckets", "pause", "dry_run", reassigns=True)

    def apply(self, arguments: Arguments) -> dict[str, Any]:
        """The command. Raises CommandRefused, ValueError; then nothing has moved."""
        state = self._state
        pause = self._rebalance.checked_pause(arguments)
        dry_run, buckets = argument(arguments, "dry_run", bool), argument(arguments, "buckets", int)
        self._rebalance.check_policy()
        if difference := state.group_map.differs_from(buckets):
            raise CommandRefused(f"the plan is {difference}: make a plan of its present ledger")
        moves: list[Reassignment] = []
        skipped: dict[str, str] = {}
        for key, owner, target_id in self._planned(arguments):
            why = self._obstacle(key, owner, target_id)
            if why is None:
                moves.append(Reassignment(state.group_of_key(key), state.by_id[target_id]))
            else:
                skipped[format_group(key)] = why
        described = [describe(move) for move in moves[:MOVES_SHOWN]]
        if not dry_run:
            self._carry_out(moves, pause)
        for move in moves:
            state.forget_if_unused(move.group)  # it was made only to be looked at
        return {
            "groups": len(moves), "moves": described, "applied": not dry_run, "pause": pause,
            "skipped": dict(Counter(skipped.values())),
            "skipped_groups": [
                {"group": group, "why": why} for group, why in islice(skipped.items(), MOVES_SHOWN)
            ],
        }  # fmt: skip

    def _planned(self, arguments: Arguments) -> list[Planned]:
        told = arguments.get("moves")
        if not isinstance(told, list) or len(told) > PLANNED_AT_ONCE:
            raise CommandRefused(f"moves: must be a list of at most {PLANNED_AT_ONCE}")
        found: dict[bytes, Planned] = {}
        for each in told:
            match each:
                case [str() as group, owner, str() as target] if owner is None or isinstance(owner, str):
                    key = self._state.group_map.named(parse_group(group))
                    if found.setdefault(key, (key, owner, target)) != (key, owner, target):
                        raise CommandRefused(f"moves: {format_group(key)} is named twice")
                case _:
                    raise CommandRefused("moves: each must be [group, owner or null, consumer]")
        return list(found.values())

    def _obstacle(self, key: bytes, owner: str | None, target_id: str) -> str | None:
        """Why the move is not true any more; None: it is."""
        state = self._state
        group, target = state.groups.get(key), state.by_id.get(target_id)
        holder = group.owner.id if group is not None and group.owner is not None else None
        if group is not None and group.target is not None and group.target.id == target_id:
            return ON_ITS_WAY
        if group is not None and holder == target_id and group.state is GroupState.OWNED:
            return DONE
        if target is None or target.state is not ConsumerState.LIVE:
            return f"consumer {target_id} is not there"
        if target.drained:
            return f"consumer {target_id} is drained"
        if holder != owner:
            return "has no owner by now" if holder is None else "belongs to another consumer by now"
        return None if group is None else _why_not(group)

    def _carry_out(self, moves: list[Reassignment], pause: str) -> None:
        given = [move for move in moves if move.group.owner is None]
        owned = [move for move in moves if move.group.owner is not None]
        for move in given:
            self._give(move.group, move.target)
        if owned:
            self._rebalance.start(owned, pause)
        elif given:
            self._state.log_event("groups_given", groups=len(given))

    def _give(self, group: Group, target: Consumer | None) -> None:
        assert target is not None
        self._state.counters["groups_moved"] += 1
        self._state.assign(group, target, GroupState.OWNED)


def _why_not(group: Group) -> str | None:
    if group.pin is not None:
        return "is pinned"
    if operation_on(group):
        return "has an open operation"
    is_out = group.state is GroupState.BATCHED or (group.owner is None and group.in_flight)
    if is_out or is_in_transition(group):
        return "is in transition"
    return None
