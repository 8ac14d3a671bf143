"""Messages that operators send away: `groups move`, `groups reroute` (docs/architecture.md).

Each goes like one for the dead queue: its entry says that it leaves, the copy is published once that is
committed, and the original is settled when the broker has confirmed the copy. Only here the target may
refuse it; then it waits in its group again, where it was. Nothing of the group goes to a consumer meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Final

from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.holds import HoldKind
from dispatcher.core.model import Group, MessageState, Original
from dispatcher.core.operations.events import TransferConfirmed, TransferRefused
from dispatcher.core.operations.operation import Operation, Sent
from dispatcher.core.operations.orders import SendTransfer
from dispatcher.core.operators.stopped_groups import ended_by_others
from dispatcher.core.records import Discharged
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import backlog_of, forget_if_empty, put_in_front, wait_again, waits_here

#: Published to a target and not yet answered: enough for the disk to be busy, and few enough that dispatches,
#: which share the connection with them, don't wait. The first one goes alone.
TRANSFERS_UNCONFIRMED_MAX: Final = 256
TRANSFERS_UNCONFIRMED_BYTES_MAX: Final = 2 * 1024 * 1024


class Transfers:
    """Sends the scopes of operations to their targets."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._held: set[Group] = set()  # groups whose operation sends them away: nothing else of them moves
        state.eligibility.flag_holds[HoldKind.TRANSFERRING] = self._holds
        state.signals.busy.append(self._holds)
        self._gone: Callable[[Operation, Original], None] = self._settled  # see DeliveryPass

    # -- life --

    def load(self, operations: dict[str, Operation]) -> None:
        """Take over messages that were on their way under former leaders, by the reasons of their entries."""
        for message, reason in list(self._state.ending.items()):
            operation = operations.get(reason)
            if operation is not None:
                message.become(MessageState.TRANSFERRING)
                operation.out[message] = Sent.BEFORE
                self.hold(operation)

    def forsake(self, message: Original) -> None:
        """Its original has not come back yet: when it does, it waits as one that was taken back."""
        message.become(MessageState.WAITING)
        del self._state.ending[message]
        self._state.effects.records.append(open_entry(message))
        self._state.absent.nobody_has(message)

    def hold(self, operation: Operation) -> None:
        """Hand over none of its group's messages until the operation has ended, or lets them go."""
        self._held.add(operation.group)
        self._state.relist_backlogs(operation.group)

    def let_go(self, operation: Operation) -> None:
        """They are handed over as always: its caller lists them anew."""
        self._held.discard(operation.group)

    def _holds(self, group: Group) -> bool:
        return group in self._held

    # -- orders --

    def run(self, operation: Operation) -> bool:
        """Send what may go now. True when nothing of it is on its way, and nothing more is to go."""
        state = self._state
        for message in [m for m in operation.out if m not in state.ending]:  # others deleted the original
            del operation.out[message]
        self._take_in_order(operation)
        if operation.problem is not None:
            self._leave_unpublished(operation)
            return not operation.out
        if state.lane_holds.publishers_blocked or state.now_ms < state.lane_holds.suspended_until_ms:
            return not (operation.out or operation.scope)
        self._send_again(operation)
        size = sum(message.size for message in operation.out)
        while operation.scope and self._has_room(operation, size):
            message = operation.scope.popleft()
            if waits_here(message):  # else it has expired
                self._send(operation, message)
                size += message.size
        return not (operation.out or operation.scope)

    @staticmethod
    def _has_room(operation: Operation, size: int) -> bool:
        if not operation.is_trusted:
            return not operation.out
        return len(operation.out) < TRANSFERS_UNCONFIRMED_MAX and size < TRANSFERS_UNCONFIRMED_BYTES_MAX

    def _send_again(self, operation: Operation) -> None:
        """What a former leader has sent, in order, as the originals come back. That leader had its entries of
        parked messages in the order in which it had fetched them: which comes first shows when all are
        here."""
        before = [message for message, sent in operation.out.items() if sent is Sent.BEFORE]
        if any(message.is_parked for message in before):
            if not all(message.is_here for message in before):
                return
            for message in sorted(before, key=lambda message: message.rank):
                operation.out[message] = operation.out.pop(message)
        for message in takewhile(lambda message: message.is_here, list(operation.out)):
            if operation.out[message] is not Sent.BEFORE:
                continue
            if not operation.is_trusted and Sent.UNDER_WAY in operation.out.values():
                return
            operation.out[message] = Sent.UNDER_WAY
            self._state.effects.actions.append(SendTransfer(operation.uuid, message))

    def _send(self, operation: Operation, message: Original) -> None:
        self._take_out(operation, message)
        operation.out[message] = Sent.UNDER_WAY
        self._state.effects.actions.append(SendTransfer(operation.uuid, message))

    def _take_out(self, operation: Operation, message: Original) -> None:
        state = self._state
        backlog = backlog_of(state, message)
        assert backlog is not None
        backlog.messages.remove(message)  # it stands in front, or nearly
        forget_if_empty(state, backlog)
        state.inbounds[message.inbound].end_to_wait()
        state.leave_wait(message)
        message.become(MessageState.TRANSFERRING)
        state.ending[message] = operation.entry_reason
        state.effects.records.append(ended_entry(message, operation.entry_reason))

    def purge(self, operation: Operation) -> None:
        """End the waiting messages of the scope: no consumer gets them."""
        while operation.scope:
            message = operation.scope.popleft()
            self._take_out(operation, message)
            self._gone(operation, message)

    def _leave_unpublished(self, operation: Operation) -> None:
        for message in [m for m, sent in operation.out.items() if sent is Sent.BEFORE]:
            del operation.out[message]
            operation.staying.append(message)

    # -- answers --

    def confirmed(self, operation: Operation, event: TransferConfirmed) -> None:
        """The target has it. It counts once the target has all that were sent before it, too: a killed
        broker may keep a later one and lose an earlier one, and then both are sent again, in order."""
        if event.message in operation.out:
            operation.is_trusted = True
            operation.out[event.message] = Sent.TAKEN
            self._take_in_order(operation)

    def _take_in_order(self, operation: Operation) -> None:
        taken = [message for message, _ in takewhile(lambda one: one[1] is Sent.TAKEN, operation.out.items())]
        for message in taken:
            del operation.out[message]
            if message in self._state.ending:
                self._gone(operation, message)

    def _settled(self, operation: Operation, message: Original) -> None:
        """The original is settled."""
        state = self._state
        del state.ending[message]
        operation.gone += 1
        state.effects.operator_rows[operation.key] = operation.row()
        state.effects.records.append(Discharged(message.queue, message.arrival))
        state.settled(message)
        if operation.target is None:
            state.counters["purged"] += 1
        else:
            state.counters["moved"] += 1
        ended_by_others(state, operation.group, [message])

    def refused(self, operation: Operation, event: TransferRefused) -> None:
        """The target refused it, or did not answer: send no more there."""
        if operation.out.pop(event.message, None) is not None:
            operation.staying.append(event.message)
            operation.doubtful += not event.is_known
            self._take_in_order(operation)
        operation.problem = operation.problem or event.problem

    def revoke(self, operation: Operation) -> None:
        """What did not go waits again, in its place."""
        state = self._state
        for message in sorted(operation.staying, key=lambda message: message.rank, reverse=True):
            if message not in state.ending:
                continue
            if not message.is_here:
                self.forsake(message)
                continue
            del state.ending[message]
            wait_again(state, message)
            put_in_front(state, message, operation.group)
            state.effects.records.append(open_entry(message))
        operation.staying.clear()
        operation.scope.clear()
