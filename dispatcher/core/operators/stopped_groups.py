"""`retry.on_exhausted: stop`: a group stops at the message that failed, until an operator decides about it.

The message goes back in front of its group, its entry open and without a consumer, so it survives whatever a
message that was taken back survives. That the group has stopped is one of its flags: committed with the
failure, read by every leader. Nothing of the group is handed over beside another one of it (`eligibility`),
so the messages behind a failed one are always here.

A release is done at once. To skip or to drop the message it must be here, which it may not be: it may wait in
a parking queue. So the decision is kept until it stands in front, and carried out then.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import Any, Final

from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.feature import Feature
from dispatcher.core.holds import FLAG_HOLDS, HoldKind
from dispatcher.core.model import Group, MessageState, Original
from dispatcher.core.operators.commands import Arguments, Commands, group_argument
from dispatcher.core.operators.flags import set_stop
from dispatcher.core.operators.rebalance import check_free, known
from dispatcher.core.operators.stop import (
    Stop,
    has_decision,
    is_undecided,
    one_at_a_time_sentence,
    stop_facts,
    stop_of,
    stop_sentence,
)
from dispatcher.core.rare_facts import NO_DEATH
from dispatcher.core.records import Discharged
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import count_waiting_anywhere, put_in_front, wait_again, waits_no_more
from dispatcher.errors import CommandRefused
from dispatcher.wire.group_text import format_group, parse_group
from dispatcher.wire.origin import origin_text
from dispatcher.wire.protocol import REASON_EXPIRED

#: In the journal only: no operator sees it.
REASON_DROPPED: Final = "dropped"
_DONE: Final = {"release": "group_released", "skip": "group_skipped", "drop": "group_dropped"}


class Stops(Feature):
    """What operators decide about groups that have stopped."""

    def __init__(self, state: LaneState, commands: Commands) -> None:
        self._state = state
        self.pending = (state.awaiting_decision,)
        if state.stops_failed:
            state.signals.failing.append(self._stops_at)
            state.signals.stopped_at.append(self._wait_in_front)
            state.signals.dispatched.append(self._one_is_out)
            state.eligibility.one_at_a_time = True
        state.on_hold |= dict.fromkeys(FLAG_HOLDS, self._look_at)
        state.eligibility.flag_holds |= {HoldKind.STOPPED: is_undecided, HoldKind.DECIDED: has_decision}
        state.signals.busy.append(has_decision)
        state.explanation.flag_facts.append(stop_facts)
        state.explanation.sentences |= {
            HoldKind.STOPPED: stop_sentence, HoldKind.DECIDED: stop_sentence,
            HoldKind.ONE_AT_A_TIME: one_at_a_time_sentence,
        }  # fmt: skip
        for decision in _DONE:
            commands.add(f"dead.{decision}", partial(self._decide, decision), "group")

    def begin(self) -> None:
        """A lane whose configuration is `skip` again skips the messages at which it had stopped."""
        if self._state.stops_failed:
            return
        for group, stop in stopped_groups(self._state):
            if stop.decision is None:
                self._apply(group, stop, "skip")

    def _one_is_out(self, _: Original, group: Group | None) -> None:
        """No other one of the group goes before it is settled: those behind it must be here if it fails."""
        if group is not None:
            self._state.relist_backlogs(group)

    def _stops_at(self, message: Original, reason: str) -> bool:
        """Let its group stop here. A message that has expired can't be released."""
        group, consumer = message.group, message.consumer
        if group is None or reason == REASON_EXPIRED:
            return False
        assert consumer is not None
        here = Stop(
            message.inbound, message.fingerprint, message.first_arrival, reason, message.attempt,
            message.calls, consumer.id, self._state.now_ms,
        )  # fmt: skip
        self._state.counters["stopped"] += 1
        # Others of it may have been out when it stopped: the first one is the one to decide about.
        set_stop(self._state, group, stop_of(group) or here)
        facts = {"reason": reason, "attempt": message.attempt, "calls": message.calls}
        self._state.warn_message(message, "group_stopped", consumer=consumer.id, **facts)
        return True

    def _wait_in_front(self, message: Original) -> None:
        """Its group has stopped at it: it waits before everything newer of the group, without a consumer."""
        if message.deaths == 1:
            message.settles_at_death = NO_DEATH
        if message.is_here and message.group is not None:
            wait_again(self._state, message)
            put_in_front(self._state, message, message.group)
        else:
            message.become(MessageState.WAITING)
            self._state.absent.revoked_before_their_return([message])
        self._state.effects.records.append(open_entry(message))

    def _decide(self, decision: str, arguments: Arguments) -> dict[str, Any]:
        state = self._state
        name = group_argument(arguments)
        if not state.policy.grouped:
            raise CommandRefused(f"a {state.policy.name} lane has no groups")
        group = known(state, name)
        shown = format_group(group.id)
        stop = stop_of(group)
        if stop is None:
            raise CommandRefused(f"group {shown!r} has not stopped; `dispatcher dead list` shows which have")
        check_free(group)
        if stop.decision is not None:
            raise CommandRefused(
                f"group {shown!r}: {stop.decision} was said before, and is done when its message is here"
            )
        behind = _behind(state, group)
        self._apply(group, stop, decision)
        return {"group": shown, "reason": stop.reason, "verdict": decision, "behind": behind}

    def _apply(self, group: Group, stop: Stop, decision: str) -> None:
        if decision == "release":
            self._goes_on(group, decision)
            return
        stop.decision = decision
        set_stop(self._state, group, stop)
        self._carry_out(group, stop)

    def _look_at(self, group: Group, _: Original) -> None:
        """This message is in front: perhaps it is the one about which an operator has decided."""
        self._state.awaiting_decision.add(group)

    def before_pass(self) -> None:
        """Carry out decisions about messages that are in front of their groups now."""
        groups = list(self._state.awaiting_decision)
        self._state.awaiting_decision.clear()
        for group in groups:
            stop = stop_of(group)
            if stop is not None and has_decision(group):
                self._carry_out(group, stop)

    def _carry_out(self, group: Group, stop: Stop) -> None:
        assert stop.decision is not None
        heads = [backlog.head() for backlog in (group.backlogs or {}).values()]
        message = next((head for head in heads if head is not None and is_of(stop, head)), None)
        if message is None and self._state.absent.may_come(group):
            self._state.awaiting_decision.add(group)
            return
        if message is not None:  # else it has expired, or others deleted it
            message.calls = stop.calls
            if stop.decision == "skip":
                dead_letter(self._state, message, stop.reason)
            else:
                self._drop(message)
        self._goes_on(group, stop.decision)
        if message is not None:
            waits_no_more(self._state, message)

    def _drop(self, message: Original) -> None:
        state = self._state
        state.leave_wait(message)
        state.effects.records += [
            ended_entry(message, REASON_DROPPED), Discharged(message.queue, message.arrival)
        ]  # fmt: skip
        state.counters["dropped"] += 1
        state.settled(message)

    def _goes_on(self, group: Group, decision: str) -> None:
        self._state.log_event(_DONE[decision], group=format_group(group.id))
        set_stop(self._state, group, None)


def ended_by_others(state: LaneState, group: Group, ended: list[Original]) -> None:
    """An operation has ended these: if that at which the group had stopped is among them, it goes on."""
    stop = stop_of(group)
    if stop is not None and any(is_of(stop, message) for message in ended):
        set_stop(state, group, None)


def is_of(stop: Stop, message: Original) -> bool:
    """Whether that is the message that the group has stopped at. One that was parked after that has another
    fingerprint, and the place in its inbound queue's order that it had; others of its group may have failed
    and wait there, too: released, and not handed over yet."""
    is_there = message.inbound == stop.inbound and message.first_arrival == stop.arrival
    return message.attempt == stop.attempt and (is_there or message.fingerprint == stop.fingerprint)


def stopped_groups(state: LaneState) -> list[tuple[Group, Stop]]:
    """The groups that have stopped, and where."""
    return [(group, stop) for group in state.groups_with_flags if (stop := stop_of(group)) is not None]


def stopped_rows(state: LaneState, after: str | None) -> list[dict[str, Any]]:
    """A page of them for operators, by their ids, those behind `after`. Raises ValueError."""
    first = parse_group(after) if after is not None else None
    behind = [found for found in stopped_groups(state) if first is None or found[0].id > first]
    page = heapq.nsmallest(GROUPS_PER_PAGE_MAX, behind, key=lambda found: found[0].id)
    return [_row(state, group, stop) for group, stop in page]


def _behind(state: LaneState, group: Group) -> int:
    """How many messages of a stopped group are behind the one that failed, parked ones among them."""
    return max(0, count_waiting_anywhere(state, group) - 1)


def _row(state: LaneState, group: Group, stop: Stop) -> dict[str, Any]:
    inbounds = state.inbounds
    queue = inbounds[stop.inbound].name if stop.inbound < len(inbounds) else None
    return {
        "group": format_group(group.id),
        "inbound": queue,
        "origin": origin_text(queue, stop.arrival) if queue is not None else None,
        "reason": stop.reason,
        "attempt": stop.attempt,
        "calls": stop.calls,
        "consumer": stop.consumer,
        "since_ms": state.now_ms - stop.at_ms,
        "behind": _behind(state, group),
        "verdict": stop.decision,
    }
