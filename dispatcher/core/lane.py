"""The machine of one lane: events in, effects out, time as an argument.

    effects = lane.step(events, now_ms)

The edges commit `effects.records` and the tables in one atomic write and then carry out the actions in
order; steps may be pipelined as long as both happen in the order of the steps. One task owns a Lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dispatcher.core.arrivals import Arrivals
from dispatcher.core.bounds import NEVER_MS, RESET_PER_STEP
from dispatcher.core.delivery import delivery_pass_for
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.events import (
    AcksProven,
    CommandReceived,
    CopiesConfirmed,
    CopiesStored,
    CopyRefused,
    DeadLetterConfirmed,
    DeadLetterRefused,
    Event,
    IdsLookedUp,
    MessageRejected,
    MessagesArrived,
    ParkingQueueDeleted,
    ParkingQueueOpened,
    ParkingQueueRead,
    PingRouted,
    PublishersBlocked,
    QueueInspected,
    QueueInUse,
    QueueNacked,
    QueueReclaimed,
    QueueReleased,
    QueueReturned,
    ReadersChanged,
    ReclaimedForwarded,
    ReclaimedRefused,
    RedeliveriesEnded,
    RelocationConfirmed,
    RelocationImpossible,
    RelocationRefused,
    TargetOpened,
    TargetRefused,
    TransferConfirmed,
    TransferRefused,
)
from dispatcher.core.forwarding.forwarding import Forwarding
from dispatcher.core.membership.evictions import Evictions
from dispatcher.core.membership.membership import Membership
from dispatcher.core.membership.refused_publishes import RefusedPublishes
from dispatcher.core.model import GroupState, MessageState
from dispatcher.core.operations.operations import Operations
from dispatcher.core.operations.transfer import Transfers
from dispatcher.core.operators.commands import Commands
from dispatcher.core.operators.flag_commands import Flags
from dispatcher.core.operators.rebalance import Rebalance
from dispatcher.core.operators.rebalance_plan import RebalancePlan
from dispatcher.core.operators.stopped_groups import Stops
from dispatcher.core.optional.dedup import Dedup
from dispatcher.core.optional.poison import Suspects
from dispatcher.core.optional.sequence_numbers import Leftovers
from dispatcher.core.options import LaneOptions
from dispatcher.core.parking.loading import load_queues, load_routes
from dispatcher.core.parking.policy import Parking
from dispatcher.core.parking.reading import ParkedReading
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.prefetch_window import adjust_windows
from dispatcher.core.records import NOBODY, UNKNOWN_INBOUND, JournalReset, NumbersUsed, Record, SettledEntries
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.recovery.groups import GroupRecovery
from dispatcher.core.recovery.journal_replay import JournalReplay
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.recovery.stale_entries import drop_stale_entries
from dispatcher.core.settlement import Settlement
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow
from dispatcher.protocol import Heartbeat, Join, Leave, Marker, Settle

#: After this many journal records everything that is still true is written again and the rest trimmed:
#: large enough that the copy costs next to nothing per message, small enough to be read in well under 1 s.
RECORDS_PER_CHECKPOINT = 50_000


class Lane:
    """One lane's decisions, from the snapshot that its leader read to the end of its leadership."""

    groups_reset_at_once = RESET_PER_STEP

    def __init__(self, options: LaneOptions, snapshot: Snapshot, now_ms: int) -> None:
        self.state = LaneState(options, snapshot.lane_epoch, now_ms)
        self._groups = GroupRecovery(self.state, redis_complete=snapshot.complete)
        self._dedup = dedup = self._make_dedup(options, redis_complete=snapshot.complete)
        self._recovery = Recovery(self.state, self._groups, dedup, broker_restarted=snapshot.broker_restarted)
        self._adoption = ConsumerReports(self.state, self._recovery, self._groups, dedup)
        self._delivery = delivery_pass_for(self.state)
        self._suspects = Suspects(self.state, self._delivery)
        others = self._recovery, self._groups, self._adoption, self._suspects
        self._membership = Membership(self.state, *others)
        self._settlement = Settlement(self.state, self._recovery)
        self._refusals = RefusedPublishes(self.state, self._settlement, self._groups)
        moves = Relocations(self.state)
        self.commands = Commands(self.state, snapshot.commands)
        self._operations = Operations(self.state, self.commands, Transfers(self.state, self._recovery))
        self._arrivals = Arrivals(
            self.state, self._recovery, self._adoption, moves, self._operations.marked, dedup
        )
        reading = ParkedReading(self.state, self._recovery, self._arrivals.read_back)
        self._parking = Parking(self.state, moves, reading, self._arrivals.file)
        self._evictions = Evictions(self.state, self._membership.liveness, self.commands)
        self._rebalance = Rebalance(self.state, self.commands, reset_at_once=self.groups_reset_at_once)
        RebalancePlan(self.state, self.commands, self._rebalance)
        self._handlers: dict[type, Callable[[Any], None]] = {
            MessagesArrived: lambda e: self._arrivals.arrived(e.messages),
            Settle: self._settle,
            CopiesConfirmed: self._copies_confirmed,
            Heartbeat: self._membership.heartbeat,
            AcksProven: lambda e: self._recovery.proven(self.state.inbounds[e.inbound], e.count),
            CopyRefused: self._refusals.copy_refused,
            DeadLetterRefused: self._refusals.dead_letter_refused,
            DeadLetterConfirmed: lambda e: self._settlement.buried(e.message),
            QueueReturned: lambda e: self._membership.liveness.queue_gone(e.queue),
            QueueNacked: lambda e: self._membership.liveness.queue_refused(e.queue),
            PingRouted: lambda e: self._membership.ping_routed(e.queue),
            PublishersBlocked: lambda e: self._membership.liveness.publishers_blocked(e.blocked),
            RedeliveriesEnded: lambda e: self._recovery.ended(self.state.inbounds[e.inbound]),
            Join: self._membership.join,
            Leave: self._membership.leave,
            Marker: self._marker,
            CommandReceived: self.commands.received,
            ParkingQueueOpened: self._parking.opened,
            ParkingQueueRead: reading.read,
            ParkingQueueDeleted: self._parking.deleted,
            RelocationConfirmed: moves.confirmed,
            RelocationRefused: moves.refused,
            RelocationImpossible: moves.given_up,
            TargetOpened: self._operations.opened,
            TargetRefused: self._operations.refused,
            TransferConfirmed: self._operations.left,
            TransferRefused: self._operations.stays,
        }
        if dedup is not None:
            self._handlers[IdsLookedUp] = dedup.looked_up
        self._flags = Flags(self.state, snapshot.flags, self.commands)
        self._stops = Stops(self.state, self.commands)
        self._hand_over = self._make_hand_over()
        self._load(snapshot)
        self._complete = snapshot.complete
        self._begun = False

    def _make_hand_over(self) -> Forwarding:
        hand_over = Forwarding(self.state, self._membership, self._settlement, self.commands)
        self._handlers |= {
            CopiesStored: hand_over.stored,
            QueueInspected: hand_over.seen,
            ReadersChanged: hand_over.changed,
            QueueReclaimed: hand_over.taken,
            QueueInUse: hand_over.kept,
            QueueReleased: hand_over.released,
            ReclaimedForwarded: hand_over.handed_on,
            ReclaimedRefused: hand_over.refused,
            MessageRejected: hand_over.rejected,
        }
        return hand_over

    def _make_dedup(self, options: LaneOptions, *, redis_complete: bool) -> Dedup | None:
        if options.dedup is None:
            return None
        return Dedup(
            self.state, options.dedup, lambda message: self._arrivals.accept(message),
            redis_complete=redis_complete,
        )  # fmt: skip

    def _load(self, snapshot: Snapshot) -> None:
        """Take over what the former leader has left, in the order in which one part needs another."""
        self._membership.load(snapshot.incarnations)
        self._hand_over.load()
        self._leftovers = Leftovers(self.state, snapshot)
        if self.state.sequences is not None:
            self.state.sequences.load(snapshot)
        replay = JournalReplay().read(snapshot.records)
        load_queues(self.state, replay, snapshot.parking_found)
        self._recovery.load(replay)
        self._groups.load_owners(snapshot.owners)
        self._flags.load_groups()
        self._operations.load(snapshot.flags)
        load_routes(self.state)
        self._suspects.load()
        if snapshot.owners or any(c.in_flight for c in self.state.by_uuid.values()):
            self.state.start.is_over(self.state.now_ms)

    def start(self, now_ms: int) -> Effects:
        """The first effects of a leader: a checkpoint under its own epoch, and a probe of every consumer."""
        self.state.now_ms = now_ms
        self._begun = True
        if not self._complete and not self.state.options.handover:  # whose consumers can't be asked
            self._adoption.begin()
            self._membership.ask_to_rejoin()
        self._membership.probe_all()
        self._parking.begin()
        self._evictions.load()
        self._operations.begin()
        self._stops.load()
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
        self._membership.run_timers()
        self._hand_over.run_timers()
        if self._adoption.closes_now():
            self._membership.finish_all_leaving()
        self._arrivals.run_timers()
        self._parking.accept()
        adjust_windows(self.state)
        drop_stale_entries(self.state, self._recovery)
        if now_ms >= self.state.suspended_until_ms:
            self.state.idle_groups.release(self.state)
        if self.state.work.is_measured:
            self._measure()
        self._run_timers()
        self._stops.run()
        self._suspects.offer()
        idle = self._delivery.run()
        if self._parking.run(idle=idle):
            self._delivery.run()
        if not self._parking.is_reading():  # else something may come that proves that consumers can live
            self._suspects.offer_unproven()
        if self._dedup is not None:
            self._dedup.finish_step()
        if self.state.sequences is not None:
            self.state.sequences.finish_step()
        self._leftovers.finish_step()
        self._evictions.run_timers()
        return self.state.take_effects()

    def _run_timers(self) -> None:
        """What may go on now, or must not any more, before the delivery."""
        self._rebalance.run_timers()
        self._operations.run_timers()
        self.state.auto_rebalance.look(self.state)
        self.state.start.look(self.state)
        if self.state.sequence_hold is not None:
            self.state.sequence_hold.run_timers()

    def _measure(self) -> None:
        for consumer in self.state.work.measure(self.state.now_ms):
            self.state.pool.level_changed(consumer)

    def suspend(self) -> None:
        """Dispatch nothing from now on: whoever owns this lane is about to stop."""
        self.state.suspended_until_ms = NEVER_MS

    def reconfigure(self, options: LaneOptions) -> None:
        """Go on with these options (L-2). Only weights and what is looked up when it is needed may differ."""
        self.state.options = options
        for inbound, (_, weight) in zip(self.state.inbounds, options.inbounds, strict=True):
            inbound.weight = weight

    def next_deadline_ms(self) -> int | None:
        """When `step` must run again even if nothing happens."""
        state = self.state
        deadlines = [self._membership.liveness.next_deadline_ms(), self._evictions.next_deadline_ms()]
        deadlines.append(self._operations.next_deadline_ms())
        deadlines.append(self._hand_over.next_deadline_ms())
        deadlines.append(self._leftovers.next_deadline_ms())
        if state.sequences is not None:
            deadlines.append(state.sequences.next_deadline_ms())
        if state.now_ms < state.suspended_until_ms:
            deadlines.append(state.suspended_until_ms)
        else:
            deadlines.append(state.start.next_deadline_ms(state.now_ms))
            deadlines.append(state.idle_groups.next_deadline_ms(state))
            if not self._adoption.open:  # nothing expires before: an alarm may make that last
                deadlines.append(state.expiries.next_ms())
            deadlines.append(self._parking.next_deadline_ms())
            if state.sequence_hold is not None:
                deadlines.append(state.sequence_hold.next_deadline_ms())
        if not state.is_suspended:
            deadlines.append(state.auto_rebalance.next_deadline_ms())
        if state.stale_owners or state.reset_until is not None:
            deadlines.append(state.now_ms + 1)
        known = [deadline for deadline in deadlines if deadline is not None]
        return min(known) if known else None

    # -- journal --

    def is_complete(self) -> bool:
        """False while consumers may still tell us of things that Redis has forgotten."""
        return self._complete or (self._begun and not self._adoption.open)

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
        entries = [m for c in state.by_uuid.values() for m in c.in_flight.values()]
        entries += state.revoked
        held = MessageState.WAITING
        entries += [message for message in self._recovery.open_entries() if message.state is held]
        records += self._parking.records()
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
        effects.incarnations = {**self._membership.rows()}
        effects.commands = dict(self.commands.results)
        effects.flags = {**self._flags.rows(), **self._operations.rows()}
        if self._dedup is not None:
            effects.window = self._dedup.everything()
        if state.sequences is not None:
            effects.sequences = state.sequences.rows()
        if not state.policy.keeps_owner:
            return
        for group in state.groups.values():
            if group.target is not None:
                effects.owners[group.id] = OwnerRow(group.target.number, 0)
            elif group.owner is not None and group.state is not GroupState.DRAINING:
                effects.owners[group.id] = state.owner_row(group, group.owner)
        for group_id, owner in self._groups.owners().items():
            effects.owners[group_id] = OwnerRow(owner.number, state.epoch_counter)

    # -- events with more than one reader --

    def _marker(self, marker: Marker) -> None:
        self._membership.marker(marker)
        self._evictions.marker(marker)

    def _settle(self, event: Settle) -> None:
        consumer = self._settlement.settle(event)
        if consumer is not None:
            self._membership.finish_leaving(consumer)

    def _copies_confirmed(self, event: CopiesConfirmed) -> None:
        self.state.unconfirmed -= event.count
        self.state.unconfirmed_bytes -= event.size
