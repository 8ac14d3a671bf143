"""O-25, O-26: an operation ends exactly what waited, and all that was confirmed before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.lane import Lane
from dispatcher.core.model import Message
from dispatcher.core.operation import PURGE, Operation
from dispatcher.sim.checkers import Checker, HandOver
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


@dataclass(slots=True)
class Decision:
    """What a leader decided at a barrier, in the commit of its result."""

    scope: list[int] = field(default_factory=list)  # uids of what waited and is in it
    left: set[int] = field(default_factory=set)  # of the group, confirmed before the command, and not in it


class OperationsChecker(Checker):
    """Looks at each decision as it is made, and believes it once its result is committed."""

    name = "operations"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._asked: dict[str, set[int]] = {}  # by uuid: what was confirmed before the command
        self._decisions: dict[str, Decision] = {}
        self._gone: set[int] = set()  # uids of what a leader has decided is elsewhere
        self._done: dict[str, dict[str, Any]] = {}

    def asked(self, uuid: str) -> None:
        lives = self.world.history.lives.values()
        self._asked.setdefault(uuid, {life.uid for life in lives if life.confirmed and life.twins == 1})

    def leading(self, lane: Lane) -> None:
        operations: Any = lane._operations
        scope_of = operations._scope

        def watched(operation: Operation) -> list[Message]:
            scope: list[Message] = scope_of(operation)
            self._decide(lane, operation, scope)
            return scope

        operations._scope = watched
        departures: Any = operations._departures
        gone = departures._gone

        def left(operation: Operation, message: Message) -> None:
            self._gone.add(_uid(message))
            gone(operation, message)

        departures._gone = left

    def _decide(self, lane: Lane, operation: Operation, scope: list[Message]) -> None:
        history = self.world.history
        decision = self._decisions[operation.uuid] = Decision([_uid(message) for message in scope])
        if operation.dry_run:
            decision.scope = []
            return
        if operation.first is not None:
            return
        out = {m for c in lane.state.by_uuid.values() for m in c.in_flight.values()} | set(lane.state.ending)
        fingerprints = {message.fingerprint for message in out}
        known = {uid for uid, fingerprint in history.fingerprints.items() if fingerprint in fingerprints}
        known |= {_uid(message) for message in out if message.content is not None}  # also what was parked
        for uid in self._asked.get(operation.uuid, ()):
            life = history.lives[uid]
            group = self.world.ordered_group(life.group)
            if group is None or lane.state.group_map.key(group) != operation.group.id:
                continue
            ended = life.over or life.given_up or life.expired or life.expires or life.acked
            known_or_gone = uid in known or uid in self._gone
            if not ended and not known_or_gone and uid not in decision.scope:
                decision.left.add(uid)

    def operated(self, uuid: str, result: dict[str, Any]) -> None:
        """The result of a command is committed."""
        decision = self._decisions.get(uuid)
        if "operation" not in result or decision is None:
            return
        former = self._done.get(uuid)
        if former is not None:
            if former != result and not self.world.history.excused:
                self.violate(f"{uuid} had the result {former}, and now has {result}")
            return
        self._done[uuid] = result
        is_purge = result["operation"] == PURGE  # else see the checker `moves`
        if is_purge and result["applied"] and result["messages"] != len(decision.scope):
            self.violate(f"{uuid} says {result}, and its scope are {decision.scope}")
        if decision.left:
            lives = [self.world.history.lives[uid] for uid in sorted(decision.left)]
            self.violate(f"{uuid} leaves out what was confirmed before it: {lives[:3]}")
        for uid in decision.scope if is_purge else ():
            life = self.world.history.lives[uid]
            life.purges += 1
            self.world.history.note("redis", "purged", uid, uuid)

    def dispatched(self, life: Life, to: HandOver) -> None:
        if life.purges and life.twins == 1 and life.uid not in self.world.history.excused:
            self.violate(f"{to} is handed over after it was purged: {life}")


def _uid(message: Message) -> int:
    return int(message.content.body.rstrip(b"!"))
