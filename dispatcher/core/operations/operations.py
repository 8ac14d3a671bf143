"""Operations on the waiting messages of one group: `groups purge`, `move`, `reroute` (docs/architecture.md,
"Operations on groups").

Theory of operation. What the inbound queues hold of a group is known only once it has been received. So a
command publishes a marker to each of them, and when the last one comes back everything of the group that was
received before it, and that no consumer has, is the command's scope. Until then nothing is changed and the
group goes on as always. A command that is open is a row in Redis: every leader begins its barrier anew. What
is sent elsewhere goes after that, see `dispatcher.core.operations.transfer`; its target is looked for before.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sized
from functools import partial
from itertools import islice
from typing import Any, Final

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Group, GroupState, MessageState, Original
from dispatcher.core.operations.events import (
    BarrierMark,
    TargetOpened,
    TargetRefused,
    TransferConfirmed,
    TransferRefused,
)
from dispatcher.core.operations.operation import (
    MOVE,
    OPERATION,
    PURGE,
    REROUTE,
    TRANSFERRED_BY,
    Operation,
    Phase,
)
from dispatcher.core.operations.orders import CloseTarget, OpenTarget, PublishBarrier
from dispatcher.core.operations.targets import target_argument
from dispatcher.core.operations.transfer import Transfers
from dispatcher.core.operators.commands import Arguments, Commands, argument, group_argument
from dispatcher.core.operators.flags import begin_operation, end_operation, operation_on
from dispatcher.core.operators.rebalance import check_settled, known
from dispatcher.core.operators.stopped_groups import ended_by_others
from dispatcher.core.parking.scan import ParkedScan, parked_of, unread_queues
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import SettledEntries, Vanished
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import forget_if_empty
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group

#: An operation fails when for this time nothing has moved in the queues whose markers it awaits.
BARRIER_TIMEOUT_MS: Final = 60_000
#: Operations open at a time: each publishes a marker to every inbound queue. One more is refused.
OPERATIONS_OPEN_MAX: Final = 100
#: How often to look how far a parking queue has been read.
PASSAGE_LOOK_MS: Final = 20


class Operations(Feature):
    """The operations of one lane that are open, by their uuid."""

    def __init__(self, state: LaneState, commands: Commands, transfers: Transfers) -> None:
        self._state = state
        self._commands = commands
        self._transfers = transfers
        # See DeliveryPass.
        self._scope: Callable[[Operation], list[Original]] = self._chosen
        self._succeed: Callable[[Operation, int], None] = self._end_well
        self._open: dict[str, Operation] = {}
        self.pending = (self._open,)
        state.signals.marked.append(self.marked)
        state.explanation.flag_facts.append(lambda group: {"operation": operation_on(group)})
        state.explanation.sentences[HoldKind.TRANSFERRING] = _sentence
        where = {PURGE: (), MOVE: ("to",), REROUTE: ("exchange", "key")}
        for kind, names in where.items():
            order = partial(self._order, kind)
            commands.add_operation(f"groups.{kind}", order, "group", "first", "dry_run", *names)

    # -- life --

    def events(self) -> Mapping[type, Handler]:
        return {
            TargetOpened: self.target_opened,
            TargetRefused: self.target_refused,
            TransferConfirmed: self.transfer_confirmed,
            TransferRefused: self.transfer_refused,
        }

    def load(self, snapshot: Snapshot) -> None:
        """Take over what former leaders left open. The flags of groups must have been loaded before."""
        state = self._state
        for key, row in snapshot.operator_rows.items():
            if not key.startswith(OPERATION):
                continue
            uuid = key.removeprefix(OPERATION).decode()
            group_key = parse_group(row["group"])
            if not state.policy.grouped or not state.group_map.may_have(group_key):
                error = "the lane groups otherwise since it began: " + _of_row(uuid, row).outcome()
                self._commands.done(uuid, {"error": error})
                state.effects.operator_rows[key] = None
                continue
            self._open_it(Operation.of_row(uuid, row, state.group_of_key(group_key)))
        self._transfers.load({operation.entry_reason: operation for operation in self._open.values()})
        for message in [m for m, reason in state.ending.items() if _is_nobodys(m, reason)]:
            self._transfers.forsake(message)

    def begin(self) -> None:
        """The first orders of a leader."""
        for operation in self._open.values():
            self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        if operation.target is None:
            self._raise_barrier(operation)
        else:
            operation.phase = Phase.OPENING
            self._state.effects.actions.append(OpenTarget(operation.uuid, operation.target))

    def add_rows(self, effects: Effects) -> None:
        effects.operator_rows |= {operation.key: operation.row() for operation in self._open.values()}

    def next_deadline_ms(self) -> int | None:
        """When the first of them may fail."""
        if any(operation.scan is not None for operation in self._open.values()):
            return self._state.now_ms + PASSAGE_LOOK_MS
        waits = (o.moved_at_ms + BARRIER_TIMEOUT_MS for o in self._open.values() if o.unmarked)
        return min(waits, default=None)

    def before_pass(self) -> None:
        """Look after all that is open."""
        state = self._state
        for operation in list(self._open.values()):
            if state.lane_holds.suspended_until_ms == NEVER_MS:
                if operation.phase is not Phase.SENDING and not operation.out:  # else the next leader goes on
                    self._fail(operation, "the dispatcher stops")
            elif operation.phase is Phase.SENDING:
                self._go_on(operation)
            elif operation.phase is Phase.OPENING:
                continue
            elif not operation.unmarked:
                self._pass_barrier(operation)
            elif self._is_stuck(operation):
                names = ", ".join(sorted(state.inbounds[index].name for index in operation.unmarked))
                self._fail(
                    operation, f"its marker did not come back from {names}, where nothing moved for 60 s"
                )

    # -- commands --

    def _order(self, kind: str, uuid: str, arguments: Arguments) -> dict[str, Any]:
        """A command that is new. Raises CommandRefused, ValueError."""
        state = self._state
        first, dry_run = argument(arguments, "first", int), bool(argument(arguments, "dry_run", bool))
        if not state.policy.grouped:
            raise CommandRefused(f"a {state.policy.name} lane has no groups")
        if uuid != uuid.encode(errors="replace").decode():
            raise CommandRefused("uuid: must be text")
        if first is not None and first < 1:
            raise CommandRefused("first: must be at least 1")
        group = known(state, group_argument(arguments))
        check_settled(group)
        self._refuse_lost(group)
        if len(self._open) >= OPERATIONS_OPEN_MAX:
            raise CommandRefused(f"{OPERATIONS_OPEN_MAX} operations are open: try again when one is done")
        target = None if kind == PURGE else target_argument(state, kind, arguments)
        operation = Operation(uuid, kind, group, first, dry_run, target)
        self._open_it(operation)
        state.effects.operator_rows[operation.key] = operation.row()
        state.log_event("operation_begun", operation=uuid, kind=kind, group=format_group(group.id))
        self._begin(operation)
        return self._progress(operation)

    def _refuse_lost(self, group: Group) -> None:
        """Redis has forgotten the contents of some parking queues: only reading them tells."""
        state = self._state
        names = ", ".join(unread_queues(state))
        if names:
            why = f"Redis has forgotten what {names} may hold of the group"
            raise CommandRefused(f"{why}: try again when that has been read back")

    def _open_it(self, operation: Operation) -> None:
        self._open[operation.uuid] = operation
        begin_operation(self._state, operation.group, operation.uuid)
        self._commands.under_way[operation.uuid] = lambda: self._progress(operation)

    def _progress(self, operation: Operation) -> dict[str, Any]:
        progress: dict[str, Any] = {
            "operation": operation.kind, "group": format_group(operation.group.id), "open": True,
            "waits_for": sorted(self._state.inbounds[index].name for index in operation.unmarked),
        }  # fmt: skip
        if operation.target is not None or operation.scan is not None:
            progress |= {"gone": operation.gone, "left": self._left(operation, operation.scope)}
        return progress

    def _left(self, operation: Operation, scope: Sized) -> int:
        """How many of its messages have not ended: those of the scope, on their way, and parked."""
        return len(scope) + len(operation.out) + parked_of(self._state, operation.group)

    # -- barriers --

    def _raise_barrier(self, operation: Operation) -> None:
        state = self._state
        operation.phase = Phase.BARRIER
        operation.unmarked = {inbound.index for inbound in state.inbounds}
        operation.seen, operation.moved_at_ms = self._look(operation), state.now_ms
        for inbound in state.inbounds:
            state.effects.actions.append(PublishBarrier(inbound.index, operation.uuid))

    def marked(self, mark: BarrierMark) -> None:
        """A marker is here, and ends. It counts only if its operation is open."""
        operation, state = self._open.get(mark.command), self._state
        mark.become(MessageState.SETTLED)
        mark.content = None
        entry = (mark.arrival, mark.fingerprint)
        state.effects.records.append(SettledEntries(mark.queue, False, (entry,)))
        state.inbounds[mark.inbound].settled.unproven.append(entry)
        state.acks.append(mark)
        if operation is None:
            state.log_event("marker_ignored", operation=mark.command, queue=state.inbounds[mark.inbound].name)
        elif operation.unmarked:
            operation.unmarked.discard(mark.inbound)
            operation.moved_at_ms = state.now_ms
            if not operation.unmarked:
                self._pass_barrier(operation)

    def _is_stuck(self, operation: Operation) -> bool:
        scan = operation.scan
        seen = self._look(operation) if scan is None else (operation.gone, *scan.sight())
        now_ms = self._state.now_ms
        if seen != operation.seen:
            operation.seen, operation.moved_at_ms = seen, now_ms
        return now_ms - operation.moved_at_ms >= BARRIER_TIMEOUT_MS

    def _look(self, operation: Operation) -> Any:
        inbounds = [self._state.inbounds[index] for index in operation.unmarked]
        return [(i.unacked, i.waiting, i.dispatched) for i in inbounds]

    def _pass_barrier(self, operation: Operation) -> None:
        """The last marker is back: the messages of the group that wait now are the scope. Not yet while a
        consumer may still say that it has some of them."""
        state, group = self._state, operation.group
        if group.state is GroupState.RECOVERING or state.now_ms < state.lane_holds.suspended_until_ms:
            return
        try:
            self._refuse_lost(group)
        except CommandRefused as lost:
            self._fail(operation, str(lost))
            return
        scope = self._scope(operation)
        if operation.dry_run:
            count = self._left(operation, scope)
            self._succeed(operation, count if operation.first is None else min(count, operation.first))
        elif not operation.is_in_parts:
            self._purge(group, scope)
            self._succeed(operation, len(scope))
        else:
            operation.scan = ParkedScan(state, group) if group.route else None
            operation.scope, operation.is_scoped = deque(scope), True
            operation.phase, operation.moved_at_ms = Phase.SENDING, state.now_ms
            self._transfers.hold(operation)
            self._go_on(operation)

    def _end_well(self, operation: Operation, messages: int) -> None:
        group = operation.group
        result = {
            "operation": operation.kind, "group": format_group(group.id), "open": False,
            "applied": not operation.dry_run, "messages": messages, "in_flight": group.in_flight,
        }  # fmt: skip
        self._end(operation, result)
        self._state.log_event("operation_done", uuid=operation.uuid, **result)

    def _chosen(self, operation: Operation) -> list[Original]:
        """The messages of the group that wait, in its inbound queues' orders, the longest here first."""
        backlogs = (operation.group.backlogs or {}).values()
        means = operation.scan.has if operation.scan is not None else _is_anything
        lines = [
            [m for m in line.messages if m.state is MessageState.WAITING and means(m)] for line in backlogs
        ]
        merged = heapq.merge(*lines, key=lambda message: message.received_at_ms)
        return list(islice(merged, operation.left))

    # -- the scope is carried out --

    def _purge(self, group: Group, scope: list[Original]) -> None:
        state, records = self._state, self._state.effects.records
        for message in scope:
            if message in state.revoked:
                records.append(Vanished(message.queue, message.arrival))  # its entry, which names no consumer
        queues: dict[QueueId, list[Original]] = {}
        for message in scope:
            queues.setdefault(message.queue, []).append(message)
        for queue, messages in queues.items():
            entries = tuple((message.arrival, message.fingerprint) for message in messages)
            records.append(SettledEntries(queue, False, entries))
            for message in messages:
                state.inbounds[message.inbound].end_to_wait()
                state.leave_wait(message)
                state.settled(message)
        state.counters["purged"] += len(scope)
        for backlog in list((group.backlogs or {}).values()):
            forget_if_empty(state, backlog)
        ended_by_others(state, group, scope)
        state.relist_backlogs(group)

    # -- messages for a target --

    def target_opened(self, event: TargetOpened) -> None:
        """The target is there: first what former leaders had on the way goes, if there is any."""
        operation = self._open.get(event.operation)
        if operation is None or operation.phase is not Phase.OPENING:
            return
        if operation.out:
            operation.phase = Phase.SENDING
        else:
            self._raise_barrier(operation)

    def target_refused(self, event: TargetRefused) -> None:
        """The target is not there, or not any more."""
        operation = self._open.get(event.operation)
        if operation is None:
            return
        operation.problem = operation.problem or event.problem
        if operation.phase is not Phase.SENDING:
            operation.unmarked.clear()
            operation.phase = Phase.SENDING

    def transfer_confirmed(self, event: TransferConfirmed) -> None:
        """The target has a message."""
        if (operation := self._open.get(event.operation)) is not None:
            self._transfers.confirmed(operation, event)

    def transfer_refused(self, event: TransferRefused) -> None:
        """The target did not take a message."""
        if (operation := self._open.get(event.operation)) is not None:
            self._transfers.refused(operation, event)

    def _go_on(self, operation: Operation) -> None:
        scan = operation.scan
        is_through = scan is None or scan.look()
        if scan is not None and not operation.scope:
            operation.scope.extend(self._scope(operation))
        if operation.target is None:
            self._transfers.purge(operation)
        elif not self._transfers.run(operation):
            return
        if operation.problem is not None:
            self._fail(operation, operation.problem)
        elif scan is not None and not is_through and operation.left != 0:
            if self._state.lane_holds.publishers_blocked:
                operation.moved_at_ms = self._state.now_ms
            elif self._is_stuck(operation):
                self._fail(operation, f"nothing could be read from {scan.place} for 60 s")
        elif operation.is_scoped or operation.left == 0:
            self._succeed(operation, operation.gone)
        else:  # that was what the former leader had on the way
            self._transfers.let_go(operation)
            self._state.relist_backlogs(operation.group)
            self._raise_barrier(operation)

    # -- the end --

    def _fail(self, operation: Operation, why: str) -> None:
        self._transfers.revoke(operation)
        error = f"{operation.kind} {operation.uuid}: {why}: {operation.outcome()}"
        self._end(operation, {"error": error})
        self._state.log_event("operation_failed", uuid=operation.uuid, problem=why)

    def _end(self, operation: Operation, result: dict[str, Any]) -> None:
        """Its result is committed with what it did, and its group is free for others."""
        state = self._state
        if operation.scan is not None:
            operation.scan.end()
        del self._open[operation.uuid]
        self._commands.done(operation.uuid, result)
        state.effects.operator_rows[operation.key] = None
        if operation.target is not None:
            state.effects.actions.append(CloseTarget(operation.uuid))
        self._transfers.let_go(operation)
        end_operation(state, operation.group)


def _of_row(uuid: str, row: dict[str, Any]) -> Operation:
    """An operation of a lane that grouped otherwise, as far as it is of use."""
    return Operation.of_row(uuid, row, Group(parse_group(row["group"])))


def _is_anything(_: Original) -> bool:
    return True


def _is_nobodys(message: Original, reason: str) -> bool:
    """An operation that has ended was sending it away."""
    return message.state is MessageState.ENDING and reason.startswith(TRANSFERRED_BY)


def _sentence(facts: Facts) -> str:
    return f"The operation {facts['operation']} sends it away: what stays waits until that is done."
