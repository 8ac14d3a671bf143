"""Bugs in the decision which groups may go, and in the reasons that are given."""

from __future__ import annotations

from typing import Any

from dispatcher.core.holds import HoldKind
from dispatcher.core.model import GroupState
from tests.sim.plants.planting import planted


@planted("why", seed=2)
def not_listed_when_it_is_free_again(lane: Any, session: Any, store: Any) -> None:
    """A group that loses its owner is not listed for others before something arrives."""
    state = lane.state
    relist_backlogs = state.relist_backlogs

    def forgetful(group: Any) -> None:
        relist_backlogs(group)
        if group.state is GroupState.FREE:
            for backlog in (group.backlogs or {}).values():
                backlog.leave()

    state.relist_backlogs = forgetful


@planted("why", seed=216)
def room_not_offered(lane: Any, session: Any, store: Any) -> None:
    """A consumer that has settled something is not offered to the groups that it owns."""
    state = lane.state

    def refresh_credit(consumer: Any) -> None:
        if consumer.takes_new:
            if consumer.pool_level < 0:
                state.pool.add(consumer)
                for inbound in state.inbounds:
                    inbound.wake_common_sources()
            else:
                state.pool.level_changed(consumer)
        else:
            state.pool.discard(consumer)

    state.refresh_credit = refresh_credit


@planted("why", seed=217)
def lane_never_goes_on_after_a_rebalance(lane: Any, session: Any, store: Any) -> None:
    """A group that a rebalance holds is held for good."""
    holds = lane.state.lane_holds
    lift = holds.lift

    def keep(kind: HoldKind) -> None:
        if kind is not HoldKind.QUIESCING:
            lift(kind)

    holds.lift = keep


@planted("why", seed=39)
def stopped_is_called_paused(lane: Any, session: Any, store: Any) -> None:
    """A group that has stopped at a message is reported as paused by an operator."""
    checks = lane.state.eligibility.flag_holds
    is_stopped, is_paused = checks.pop(HoldKind.STOPPED), checks[HoldKind.PAUSED]
    checks[HoldKind.PAUSED] = lambda group: is_stopped(group) or is_paused(group)


@planted("why", seed=33)
def one_at_a_time_not_said(lane: Any, session: Any, store: Any) -> None:
    """Where one message of a group is out at a time, no reason is given for the others."""
    eligibility, explanation = lane.state.eligibility, lane.state.explanation
    why, is_so = explanation.why, eligibility.one_at_a_time

    def blind(group: Any) -> Any:
        eligibility.one_at_a_time = False
        try:
            return why(group)
        finally:
            eligibility.one_at_a_time = is_so

    explanation.why = blind


@planted("why", seed=4)
def prefetch_counted_wrong(lane: Any, session: Any, store: Any) -> None:
    """A consumer that has joined again is given one message less than it may have."""
    state = lane.state
    refresh_credit = state.refresh_credit

    def less(consumer: Any) -> None:
        if not consumer.in_flight and consumer.depth is None and consumer.n > 1 and consumer.prefetch > 1:
            consumer.credit = 0
        refresh_credit(consumer)

    state.refresh_credit = less


@planted("why", seed=1)
def without_a_group_there_is_no_reason(lane: Any, session: Any, store: Any) -> None:
    """Messages without a group wait, and nobody says why."""
    lane.state.explanation.why_ungrouped = lambda source: None


@planted("why", seed=409)
def a_limit_is_called_no_capacity(lane: Any, session: Any, store: Any) -> None:
    """Ids that have as many messages in flight as they may are said to wait for a consumer."""
    explanation = lane.state.explanation
    why_ungrouped = explanation.why_ungrouped

    def wrong(source: Any) -> Any:
        hold = why_ungrouped(source)
        is_limit = hold is not None and hold.kind is HoldKind.LIMIT_FULL
        return hold._replace(kind=HoldKind.NO_CAPACITY) if is_limit else hold

    explanation.why_ungrouped = wrong
