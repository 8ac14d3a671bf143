"""What a lane can do: its features, made from its options, in the order in which a step runs them.

Membership comes first: all others depend on who consumes. Messages that have ended (expired, read back and
void) are removed before prefetch windows count them and before idle groups lose their owners. Operators'
moves and stops are applied before the start gate and the suspects, and these before the delivery pass. After
the pass, parking looks at messages that could not go. Features that read a step's records come last: they
must see all of them. So does the one that ends rows of owners: what the step says of owners goes before it.
"""

from __future__ import annotations

from dispatcher.core.arrivals import Arrivals
from dispatcher.core.dead_letters import DeadLetters
from dispatcher.core.delivery import DeliveryPass
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.forwarding.forwarding import Forwarding
from dispatcher.core.membership.ack_timeout import AckTimeout
from dispatcher.core.membership.evictions import Evictions
from dispatcher.core.membership.identities import Identities
from dispatcher.core.membership.lost_copies import LostCopies
from dispatcher.core.membership.membership import Membership
from dispatcher.core.membership.refused_publishes import RefusedPublishes
from dispatcher.core.membership.stale_owners import StaleOwners
from dispatcher.core.operations.operations import Operations
from dispatcher.core.operations.transfer import Transfers
from dispatcher.core.operators.auto_rebalance import AutoRebalance
from dispatcher.core.operators.commands import Commands
from dispatcher.core.operators.flag_commands import Flags
from dispatcher.core.operators.quiescing import Quiescing
from dispatcher.core.operators.rebalance import Rebalance
from dispatcher.core.operators.rebalance_plan import RebalancePlan
from dispatcher.core.operators.reset_owners import OwnerReset
from dispatcher.core.operators.stopped_groups import Stops
from dispatcher.core.optional.dedup import Dedup
from dispatcher.core.optional.expiry import Expiry
from dispatcher.core.optional.group_limit import GroupLimits
from dispatcher.core.optional.group_window import GroupWindows
from dispatcher.core.optional.idle_groups import IdleGroups
from dispatcher.core.optional.measured_cost import MeasuredWork
from dispatcher.core.optional.poison import Suspects
from dispatcher.core.optional.sequence_hold import SequenceHold
from dispatcher.core.optional.sequence_numbers import Leftovers, SequenceNumbers
from dispatcher.core.optional.start_gate import StartGate
from dispatcher.core.optional.work_stealing import WorkStealing
from dispatcher.core.parking.parked_entries import ParkedEntries
from dispatcher.core.parking.policy import Parking
from dispatcher.core.parking.queue import ParkingQueues
from dispatcher.core.parking.reading import ParkedReading
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.prefetch_window import PrefetchWindows
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.recovery.stale_entries import StaleEntries
from dispatcher.core.settlement import Settlement
from dispatcher.core.state import LaneState
from dispatcher.core.views.hot_group import HotGroupWatch


def make_features(state: LaneState, snapshot: Snapshot, delivery: DeliveryPass) -> list[Feature]:
    """The features of this lane; LaneState gets to know all of them."""
    options, commands = state.options, Commands(state, snapshot.commands)
    state.parking = ParkingQueues(state.eligibility, state.group_map.order_key)  # most of the others ask it
    entries = ParkedEntries(state)
    recovery = Recovery(state, entries)
    settlement, arrivals = Settlement(state), Arrivals(state)
    measured = MeasuredWork(state) if options.measures_work else None  # before GroupLimits: see there
    limited = GroupLimits(state, limit) if (limit := options.max_in_flight_per_group) is not None else None
    membership = Membership(state, ConsumerReports(state, recovery))
    resets, quiescing = OwnerReset(state, snapshot.operator_rows), Quiescing(state)
    rebalance = Rebalance(state, commands, resets, quiescing)
    evictions = Evictions(state, membership.liveness, commands)
    relocations, parked = Relocations(state), ParkedReading(state, arrivals)
    dedup, hold_ms = options.dedup, options.sequence_timeout_ms
    numbers = SequenceNumbers(state) if options.checks_sequence else None
    features: list[Feature | None] = [
        recovery,
        settlement,
        commands,
        DeadLetters(state),
        RefusedPublishes(state, settlement, recovery.resending),
        membership,
        Identities(state) if options.strict_identity else None,
        LostCopies(state) if not options.handover else None,
        Forwarding(state, membership, settlement, commands) if options.handover else None,
        arrivals,
        Expiry(state),
        parked if options.parking_queues else None,
        PrefetchWindows(state),
        StaleEntries(state, recovery),
        IdleGroups(state) if IdleGroups.are_forgotten(options) else None,
        measured,
        limited,
        GroupWindows(state) if GroupWindows.are_adapted(options) else None,
        WorkStealing(state) if WorkStealing.is_on(options) else None,
        resets,
        rebalance,
        RebalancePlan(state, commands, rebalance),
        AutoRebalance(state, rebalance) if options.rebalance_on_join else None,
        Flags(state, snapshot.operator_rows, commands),
        evictions,
        Operations(state, commands, Transfers(state)),
        quiescing,
        StartGate(state) if options.start_consumers or options.start_wait_ms else None,
        Dedup(state, dedup, arrivals.accept) if dedup is not None else None,
        numbers,
        SequenceHold(state, numbers, hold_ms) if numbers and hold_ms is not None else None,
        Leftovers(state, snapshot) if Leftovers.are_in(snapshot, numbers) else None,
        Stops(state, commands),
        relocations if options.parking_queues else None,
        Parking(state, entries, relocations, parked, arrivals) if options.parking_queues else None,
        Suspects(state, delivery),
        HotGroupWatch(state),
        AckTimeout(state, evictions, options.ack_timeout_ms) if options.ack_timeout_ms is not None else None,
        StaleOwners(state),
    ]
    made = [feature for feature in features if feature is not None]
    state.features |= {type(feature): feature for feature in made}
    return made
