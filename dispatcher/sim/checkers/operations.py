"""O-25, O-26: an operation ends exactly what waited, and all that was confirmed before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.operations.operation import PURGE, Operation
from dispatcher.core.operations.operations import Operations
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World

_PURGED = re.compile(r"(\d+) of its messages were purged")


@dataclass(slots=True)
class OperationDecision:
    """What a leader decided behind a barrier."""

    scope: list[int] = field(default_factory=list)  # uids of waiting messages in it
    out: set[int] = field(default_factory=set)  # uids of messages in flight at the barrier
    left: set[int] = field(default_factory=set)  # of the group, confirmed before the command, and not in it
    in_parts: bool = False  # each is committed by itself, with the entry that it has left


class OperationsChecker(Checker):
    """Looks at each decision as it is made, and believes it once its result is committed."""

    name = "operations"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._asked: dict[str, set[int]] = {}  # by uuid: messages confirmed before the command
        self._decisions: dict[str, OperationDecision] = {}
        self._gone: set[int] = set()  # uids of messages that a leader has decided are gone
        self._purged: dict[str, int] = {}  # by uuid: how many have left, so far, by a purge in parts
        self._done: dict[str, dict[str, Any]] = {}

    def asked(self, uuid: str) -> None:
        lives = self.world.history.lives.values()
        self._asked.setdefault(uuid, {life.uid for life in lives if life.confirmed and life.twins == 1})

    def leading(self, lane: Lane) -> None:
        operations: Any = lane.state.find(Operations)
        scope_of = operations._scope

        def watched(operation: Operation) -> list[Original]:
            scope: list[Original] = scope_of(operation)
            if operation.scan is None:  # the barrier was passed a moment ago
                out = self._out(lane)
                self._decisions[operation.uuid] = OperationDecision(out=out, in_parts=operation.is_in_parts)
            if not operation.dry_run:
                self._decisions[operation.uuid].scope += [_uid(message) for message in scope]
            return scope

        succeed = operations._succeed

        def succeeds(operation: Operation, messages: int) -> None:
            if not operation.dry_run and operation.first is None:
                self._look_for_left(lane, operation)
            succeed(operation, messages)

        operations._scope, operations._succeed = watched, succeeds
        transfers: Any = operations._transfers
        gone = transfers._gone

        def left(operation: Operation, message: Original) -> None:
            self._gone.add(_uid(message))
            gone(operation, message)

        transfers._gone = left

    def _out(self, lane: Lane) -> set[int]:
        """Uids of messages that are in flight, or ending."""
        out = {m for c in lane.state.by_uuid.values() for m in c.in_flight.values()} | set(lane.state.ending)
        fingerprints = {message.fingerprint for message in out}
        known = {uid for uid, mark in self.world.history.fingerprints.items() if mark in fingerprints}
        return known | {_uid(message) for message in out if message.content is not None}  # also parked ones

    def _look_for_left(self, lane: Lane, operation: Operation) -> None:
        """Each message confirmed before the command has to be in the scope, done with, or with a consumer."""
        history, decision = self.world.history, self._decisions.get(operation.uuid)
        if decision is None:  # its former leader had sent all that was asked for
            return
        known = decision.out | self._out(lane) | self._gone | set(decision.scope)
        for uid in self._asked.get(operation.uuid, set()) - known:
            life = history.lives[uid]
            group = self.world.ordered_group(life.group)
            if group is None or lane.state.key_of(group) != operation.group.id:
                continue
            if not (life.over or life.given_up or life.expired or life.expires or life.acked or life.handed):
                decision.left.add(uid)

    def left(self, life: Life, uuid: str) -> None:
        self._purged[uuid] = self._purged.get(uuid, 0) + 1

    def operated(self, uuid: str, result: dict[str, Any]) -> None:
        """The result of a command is committed."""
        decision = self._decisions.get(uuid)
        purged_text = _PURGED.search(result.get("error", ""))
        if (
            purged_text is not None
            and int(purged_text[1]) != self._purged.get(uuid, 0)
            and not self.world.history.excused
        ):
            self.violate(f"{uuid} says {result}, and {self._purged.get(uuid, 0)} were purged")
        if "operation" not in result or decision is None:
            return
        former = self._done.get(uuid)
        if former is not None and former != result and not self.world.history.excused:
            self.violate(f"{uuid} had the result {former}, and now has {result}")
        if former == result:  # else Redis has forgotten the former one, and it was done once more
            return
        self._done[uuid] = result
        is_purge = result["operation"] == PURGE  # else see the checker `moves`
        purged = self._purged.get(uuid, 0) if decision.in_parts else len(decision.scope)
        if is_purge and result["applied"] and result["messages"] != purged and not self.world.history.excused:
            self.violate(f"{uuid} says {result}, and {purged} were purged: {decision.scope}")
        if decision.left:
            lives = [self.world.history.lives[uid] for uid in sorted(decision.left)]
            self.violate(f"{uuid} leaves out messages confirmed before it: {lives[:3]}")
        for uid in decision.scope if is_purge and not decision.in_parts else ():
            life = self.world.history.lives[uid]
            life.purges += 1
            self.world.history.note("redis", "purged", uid, uuid)

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        if life.purges and life.twins == 1 and life.uid not in self.world.history.excused:
            self.violate(f"{to} is handed over after it was purged: {life}")


def _uid(message: Original) -> int:
    return int(message.content.body.rstrip(b"!"))
