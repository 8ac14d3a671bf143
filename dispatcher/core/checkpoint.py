"""The checkpoint: all that is still true, written again, so that the journal before it can go."""

from __future__ import annotations

from typing import Final

from dispatcher.core.effects import Effects
from dispatcher.core.entries import ended_entry, open_entry
from dispatcher.core.feature import Feature
from dispatcher.core.model import Group, GroupState, MessageState
from dispatcher.core.records import NOBODY, JournalReset, NumbersUsed, Record
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow

#: After this many journal records a checkpoint is due: large enough that it costs next to nothing per
#: message, small enough to be read in well under 1 s.
RECORDS_PER_CHECKPOINT: Final = 50_000


def checkpoint(state: LaneState, features: list[Feature], *, everything: bool) -> Effects:
    """All that is still true, as records that replace the journal before them.

    With `everything` also all owners, incarnations and results: for a Redis that has lost some.
    """
    effects = Effects(checkpoint=True)
    records: list[Record] = effects.records
    records.append(JournalReset())
    for feature in features:
        records += feature.records()
    entries = [m for c in state.by_uuid.values() for m in c.in_flight.values()]
    entries += state.revoked
    waiting = MessageState.WAITING
    entries += [message for message in state.absent.open_entries() if message.state is waiting]
    records += [open_entry(message) for message in entries]
    records += [ended_entry(message, reason) for message, reason in state.ending.items()]
    records += state.absent.settled_records()
    records.append(NumbersUsed(NOBODY, state.epoch_counter))
    records += [NumbersUsed(number, c.next_seq - 1) for number, c in state.by_number.items()]
    state.records_since_checkpoint = 0
    if everything:
        _add_tables(state, features, effects)
    return effects


def _add_tables(state: LaneState, features: list[Feature], effects: Effects) -> None:
    for feature in features:
        feature.add_rows(effects)
    if not state.policy.keeps_owner:
        return
    for group in state.groups.values():
        row = _row_of(state, group)
        if row is not None:
            effects.owners[group.id] = row
    for group_id, owner in state.absent.owners().items():
        effects.owners[group_id] = OwnerRow(owner.number, state.epoch_counter)


def _row_of(state: LaneState, group: Group) -> OwnerRow | None:
    """What Redis has to hold of its owner; None: nothing."""
    if group.target is not None:
        return OwnerRow(group.target.number, 0)
    if group.owner is None or group.state is GroupState.DRAINING:
        return None
    return state.owner_row(group, group.owner)
