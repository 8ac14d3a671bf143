"""The machine of one lane: events in, effects out, time as an argument.

    effects = lane.step(events, now_ms)

The edges commit `effects.records` and the tables in one atomic write and then carry out the actions in
order; steps may be pipelined as long as both happen in the order of the steps. One task owns a Lane.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.core.arrivals import Arrivals
from dispatcher.core.bounds import RESET_PER_STEP
from dispatcher.core.delivery import DeliveryPass
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.events import Event
from dispatcher.core.feature import Feature, Handler, has
from dispatcher.core.forwarding.forwarding import Forwarding
from dispatcher.core.holds import HoldKind
from dispatcher.core.membership.ack_timeout import AckTimeout
from dispatcher.core.membership.evictions import Evictions
from dispatcher.core.membership.membership import Membership
from dispatcher.core.membership.refused_publishes import RefusedPublishes
from dispatcher.core.model import GroupState, MessageState
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
from dispatcher.core.optional.group_limit import GroupLimits
from dispatcher.core.optional.idle_groups import IdleGroups
from dispatcher.core.optional.measured_cost import MeasuredWork
from dispatcher.core.optional.poison import Suspects
from dispatcher.core.optional.sequence_hold import SequenceHold
from dispatcher.core.optional.sequence_numbers import Leftovers, SequenceNumbers
from dispatcher.core.optional.start_gate import StartGate
from dispatcher.core.options import LaneOptions
from dispatcher.core.parking.policy import Parking
from dispatcher.core.parking.reading import ParkedReading
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.prefetch_window import PrefetchWindows
from dispatcher.core.queue_ids import UNKNOWN_INBOUND
from dispatcher.core.records import (
    NOBODY,
    JournalReset,
    NumbersUsed,
    Record,
    SettledEntries,
)
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.recovery.groups import GroupRecovery
from dispatcher.core.recovery.journal_replay import JournalReplay
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.recovery.stale_entries import StaleEntries
from dispatcher.core.settlement import Settlement
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow
from dispatcher.core.views.hot_group import HotGroupWatch

#: After this many journal records everything that is still true is written again and the rest trimmed:
#: large enough that the copy costs next to nothing per message, small enough to be read in well under 1 s.
RECORDS_PER_CHECKPOINT = 50_000


class Lane:
    """One lane's decisions, from the snapshot that its leader read to the end of its leadership."""

    groups_reset_at_once = RESET_PER_STEP

    def __init__(self, options: LaneOptions, snapshot: Snapshot, now_ms: int) -> None:
        self.state = state = LaneState(options, snapshot.lane_epoch, now_ms)
        self.commands = Commands(state, snapshot.commands)
        self._groups = GroupRecovery(state, redis_complete=snapshot.complete)
        self._recovery = Recovery(state, self._groups, broker_restarted=snapshot.broker_restarted)
        self._reports = ConsumerReports(state, self._recovery, self._groups)
        self._delivery = DeliveryPass(state)
        self._settlement = Settlement(state, self._recovery)
        self._features = self._make_features(snapshot)
        state.features |= {type(feature): feature for feature in self._features}
        self._handlers = self._merge_handlers()
        self._load(snapshot)
        self._before = [feature for feature in self._features if has(feature, "before_pass")]
        self._after = [feature for feature in self._features if has(feature, "after_pass")]
        self._last = [feature for feature in self._features if has(feature, "finish_step")]
        self._timed = [feature for feature in self._features if has(feature, "next_deadline_ms")]
        self._complete = snapshot.complete
        self._begun = False

    def _make_features(self, snapshot: Snapshot) -> list[Feature]:
        """What this lane can do, in the order in which a step runs it.

        Who is there comes first: all that follows goes by it. What has ended (expired, read back and void)
        is out of the way before it is counted (windows) or taken from its owner (idle groups). What operators
        move or stop is settled before the gates and the suspects, which go before the delivery pass. Behind
        it parking sees what could not go. What looks at a step's records comes last: it has to see all.
        """
        state, options, commands, recovery = self.state, self.state.options, self.commands, self._recovery
        arrivals = Arrivals(state, recovery)
        measured = MeasuredWork(state) if options.measures_work else None  # before GroupLimits: see there
        limits = options.max_in_flight_per_group
        limited = GroupLimits(state, limits) if limits is not None else None
        suspects = Suspects(state, self._delivery)
        self._membership = membership = Membership(state, recovery, self._groups, self._reports, suspects)
        resets, quiescing = OwnerReset(state, self.groups_reset_at_once), Quiescing(state)
        rebalance = Rebalance(state, commands, resets, quiescing)
        evictions = Evictions(state, membership.liveness, commands)
        relocations = Relocations(state)
        parked = ParkedReading(state, recovery, arrivals)
        idle_timeout, remembered = options.group_idle_timeout_ms, options.groups_remembered
        hold_ms = options.sequence_timeout_ms if options.checks_sequence else None
        numbers = SequenceNumbers(state) if options.checks_sequence else None
        features: list[Feature | None] = [
            recovery,
            self._settlement,
            commands,
            RefusedPublishes(state, self._settlement, self._groups),
            membership,
            Forwarding(state, membership, self._settlement, commands) if options.handover else None,
            arrivals,
            parked if options.parking_queues else None,
            PrefetchWindows(state),
            StaleEntries(state, recovery),
            IdleGroups(state) if idle_timeout is not None or remembered is not None else None,
            measured,
            limited,
            resets,
            rebalance,
            RebalancePlan(state, commands, rebalance),
            AutoRebalance(state, rebalance) if options.rebalance_on_join else None,
            Flags(state, snapshot.flags, commands),
            evictions,
            Operations(state, commands, Transfers(state, recovery)),
            quiescing,
            StartGate(state) if options.start_consumers or options.start_wait_ms else None,
            Dedup(state, options.dedup, arrivals.accept, redis_complete=snapshot.complete)
            if options.dedup is not None
            else None,
            numbers,
            SequenceHold(state, numbers, hold_ms) if numbers is not None and hold_ms is not None else None,
            Leftovers(state, snapshot) if Leftovers.are_in(snapshot, numbers) else None,
            Stops(state, commands),
            relocations if options.parking_queues else None,
            Parking(state, relocations, parked, arrivals) if options.parking_queues else None,
            suspects,
            HotGroupWatch(state),
            AckTimeout(state, evictions, options.ack_timeout_ms)
            if options.ack_timeout_ms is not None
            else None,
        ]
        return [feature for feature in features if feature is not None]

    def _merge_handlers(self) -> dict[type, Handler]:
        merged: dict[type, Handler] = {}
        for feature in self._features:
            for kind, handler in feature.events().items():
                merged[kind] = _both(merged[kind], handler) if kind in merged else handler
        return merged

    def _load(self, snapshot: Snapshot) -> None:
        """Take over what the former leader has left."""
        replay = JournalReplay().read(snapshot.records)
        for feature in self._features:
            feature.load_first(snapshot, replay)
        self._recovery.load_entries(replay)
        self._groups.load_owners(snapshot.owners)
        for feature in self._features:
            feature.load(snapshot)

    def start(self, now_ms: int) -> Effects:
        """The first effects of a leader: a checkpoint under its own epoch, and a probe of every consumer."""
        self.state.now_ms = now_ms
        self._begun = True
        for feature in self._features:
            feature.begin()
        begun = self.state.take_effects()
        effects = self.checkpoint()
        effects.actions, effects.flags = begun.actions, begun.flags
        effects.owners, effects.incarnations = begun.owners, begun.incarnations
        effects.commands = begun.commands
        return effects

    def step(self, events: Iterable[Event], now_ms: int) -> Effects:
        """Take in what happened, then decide all that may happen now. `now_ms` never goes back."""
        self.state.now_ms = now_ms
        handlers = self._handlers
        for event in events:
            handlers[type(event)](event)
        for feature in self._before:
            if any(feature.pending):
                feature.before_pass()
        idle = self._delivery.run()
        for feature in self._after:
            if any(feature.pending) and feature.after_pass(idle=idle):
                self._delivery.run()
        for feature in self._last:
            feature.finish_step()
        return self.state.take_effects()

    def suspend(self) -> None:
        """Dispatch nothing from now on: whoever owns this lane is about to stop."""
        self.state.lane_holds.put(HoldKind.STOPPING)

    def reconfigure(self, options: LaneOptions) -> None:
        """Go on with these options (L-2). Only weights and what is looked up when it is needed may differ."""
        self.state.options = options
        for inbound, (_, weight) in zip(self.state.inbounds, options.inbounds, strict=True):
            inbound.weight = weight

    def next_deadline_ms(self) -> int | None:
        """When `step` must run again even if nothing happens."""
        state = self.state
        known = [state.suspended_until_ms] if state.now_ms < state.suspended_until_ms else []
        if state.stale_owners:
            known.append(state.now_ms + 1)
        for feature in self._timed:
            if any(feature.pending):
                deadline = feature.next_deadline_ms()
                if deadline is not None:
                    known.append(deadline)
        return min(known) if known else None

    # -- journal --

    def is_complete(self) -> bool:
        """False while consumers may still tell us of things that Redis has forgotten."""
        return self._complete or (self._begun and not self._reports.open)

    def checkpoint_is_due(self) -> bool:
        return self.state.records_since_checkpoint >= RECORDS_PER_CHECKPOINT

    def checkpoint(self, *, everything: bool = False) -> Effects:
        """All that is still true, as records that replace the journal before them.

        With `everything` also all owners, incarnations and results: for a Redis that has lost some.
        """
        state = self.state
        effects = Effects(checkpoint=True)
        records: list[Record] = effects.records
        records.append(JournalReset())
        for feature in self._features:
            records += feature.records()
        entries = [m for c in state.by_uuid.values() for m in c.in_flight.values()]
        entries += state.revoked
        waiting = MessageState.WAITING
        entries += [message for message in self._recovery.open_entries() if message.state is waiting]
        records += [open_entry(message) for message in entries]
        records += [ended_entry(message, reason) for message, reason in state.ending.items()]
        for inbound in state.inbounds:
            unproven = list(inbound.unproven)
            if inbound.recovery is not None:
                unproven = inbound.recovery.unmatched_settled() + unproven
            records.append(SettledEntries(inbound.index, True, tuple(inbound.proven)))
            records.append(SettledEntries(inbound.index, False, tuple(unproven)))
        records.append(SettledEntries(UNKNOWN_INBOUND, False, tuple(self._recovery.adopted_settled())))
        records.append(NumbersUsed(NOBODY, state.epoch_counter))
        records += [NumbersUsed(number, c.next_seq - 1) for number, c in state.by_number.items()]
        state.records_since_checkpoint = 0
        if everything:
            self._add_tables(effects)
        return effects

    def _add_tables(self, effects: Effects) -> None:
        state = self.state
        for feature in self._features:
            feature.add_rows(effects)
        if not state.policy.keeps_owner:
            return
        for group in state.groups.values():
            if group.target is not None:
                effects.owners[group.id] = OwnerRow(group.target.number, 0)
            elif group.owner is not None and group.state is not GroupState.DRAINING:
                effects.owners[group.id] = state.owner_row(group, group.owner)
        for group_id, owner in self._groups.owners().items():
            effects.owners[group_id] = OwnerRow(owner.number, state.epoch_counter)


def _both(first: Handler, second: Handler) -> Handler:
    def handle(event: object) -> None:
        first(event)
        second(event)

    return handle
