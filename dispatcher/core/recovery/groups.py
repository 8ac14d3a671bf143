"""Groups after a recovery: when one may go on, and with whom.

No message of a group goes out before every open entry that a consumer holds has met its original, or is known
to have none; other groups don't wait. Then the group goes on at the consumer that holds its messages. If
Redis names another owner, a move was under way: messages in flight are settled first, then the group goes
there. Groups don't wait for entries without a consumer: their originals come before everything newer of the
group anyway, and the look-ahead may have no room for the last of them until the first is settled.
"""

from __future__ import annotations

from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import OWNED, Consumer, Group, GroupState, MessageState, Original
from dispatcher.core.ownership import close, drain, release, retarget
from dispatcher.core.recovery.resending import Resending
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow


class GroupRecovery:
    """Knows the open entries of every group that is RECOVERING."""

    def __init__(self, state: LaneState, resending: Resending) -> None:
        self._state = state
        self._resending = resending
        self.redis_complete = True  # as the snapshot said
        self._entries: dict[bytes, list[Original]] = {}
        self._unresolved: set[Original] = set()  # those that their groups wait for
        self._row_epochs: dict[bytes, int] = {}  # of RECOVERING groups: the epoch of their owner, by Redis
        #: Owners of RECOVERING groups, by Redis; None: one that has ended.
        self._owners: dict[bytes, Consumer | None] = {}
        self._disowned: set[bytes] = set()  # RECOVERING groups that have lost the owner that Redis names
        state.explanation.facts[HoldKind.RECOVERING] = lambda group, _: {"unresolved": group.unresolved}
        state.explanation.sentences[HoldKind.RECOVERING] = _sentence

    # -- loading --

    def load_owners(self, rows: dict[bytes, OwnerRow]) -> None:
        """Take over the owners that Redis names. The open entries must have been loaded before."""
        state, entries, may_have_group = self._state, self._entries, self._state.group_map.may_have
        groups, new_group = state.groups, state.new_group
        disowning, group_rested = state.signals.disowning, state.signals.group_rested
        may_own = state.by_number.items() if state.policy.keeps_owner else ()
        usable = {number: consumer for number, consumer in may_own if consumer.stays}
        epoch_max = state.epoch_counter
        for group_id, row in rows.items():
            incarnation, epoch = row
            if epoch > epoch_max:
                epoch_max = epoch
            owner = usable.get(incarnation)
            is_special = disowning or group_id in entries or group_id in groups
            if is_special or not may_have_group(group_id):
                owner = self._load_special(group_id, row, owner)
            elif owner is None:
                state.stale_owners.append(group_id)
            if owner is None:
                continue
            # Nothing of it waits or is out. There may be a million of these: the pool is told below.
            group = new_group(group_id, OWNED)
            group.owner, group.fresh = owner, epoch == 0
            owner.groups[group] = None
            for rested in group_rested:
                rested(group)
        state.epoch_counter = epoch_max
        for consumer in usable.values():
            state.pool.level_changed(consumer)

    def _load_special(self, key: bytes, row: OwnerRow, owner: Consumer | None) -> Consumer | None:
        """Its owner if it is a new group of which nothing waits or is out. None: nothing is left to do."""
        state = self._state
        if not state.group_map.may_have(key):  # the lane had another map before
            state.stale_owners.append(key)
            return None
        is_disowned = any(disowns(row) for disowns in state.signals.disowning)
        owner = None if is_disowned else owner
        if key in self._entries:
            if is_disowned:
                self._disowned.add(key)
            self._row_epochs[key] = row.epoch
            self._owners[key] = owner
        elif owner is None:
            state.stale_owners.append(key)
        elif key in state.groups:
            self._hold(state.groups[key], owner, OWNED, fresh=row.epoch == 0)
        else:
            return owner
        return None

    def owners(self) -> dict[bytes, Consumer]:
        """The owners of RECOVERING groups, as far as they are known."""
        return {group_id: owner for group_id, owner in self._owners.items() if owner is not None}

    def wait_for(self, message: Original) -> None:
        """Its group goes on only when this entry has met its original, or has none."""
        state = self._state
        if message.group_id is None or not state.policy.grouped:
            return
        key = state.key_of(message.group_id)
        group = state.groups.get(key)
        if group is None:
            group = state.group_of_key(key, GroupState.RECOVERING)
        elif group.state is not GroupState.RECOVERING:
            self._interrupt(group)
        message.group = group
        self._count(message, group)
        if message.consumer is not None:
            group.count_out(message)
        self._entries.setdefault(key, []).append(message)

    def wait_again_for(self, message: Original) -> None:
        """It had come back, and no consumer has it. If its group waits for others, it waits for this one."""
        group = message.group
        if group is not None and group.state is GroupState.RECOVERING:
            self._count(message, group)

    def _count(self, message: Original, group: Group) -> None:
        if message not in self._unresolved:
            self._unresolved.add(message)
            group.unresolved += 1

    def _interrupt(self, group: Group) -> None:
        """A group that went on already: a consumer told us of a message that we did not know of."""
        state = self._state
        owner = _next_owner(group)
        if owner is not None:
            self._owners[group.id] = owner
        if group.owner is not None:
            group.owner.groups.discard(group)
            state.pool.level_changed(group.owner)
            group.owner = None
        retarget(state, group, None)
        group.become(GroupState.RECOVERING)
        state.relist_backlogs(group)
        self._entries[group.id] = [
            m for c in state.by_uuid.values() for m in c.in_flight.values() if m.group is group
        ]

    # -- going on --

    def reported(self, message: Original) -> None:
        """A consumer says that it has this message, which we took for one that waits, or for another's."""
        state, group, holder = self._state, message.group, message.consumer
        if group is None or holder is None:
            return
        group.count_out(message)
        if group.state is GroupState.RECOVERING:
            entries = self._entries[group.id]
            if message not in entries:
                entries.append(message)
        elif group.state is GroupState.FREE:
            self._hold(group, holder, GroupState.OWNED if state.policy.tops_up else GroupState.BATCHED)
            if state.policy.tops_up and group.pin is not None and group.pin != holder.id:
                drain(state, group, self._pinned_to(group))
            state.commit_owner(group)
        elif group.state is GroupState.OWNED and group.owner is not holder:
            drain(state, group, group.owner if state.policy.keeps_owner else None)
        if message.closing and group.state is GroupState.OWNED:
            close(state, group)

    def resolved(self, message: Original) -> None:
        """One open entry less that its group waits for, if it waits for this one."""
        group = message.group
        if group is None or message not in self._unresolved:
            return
        self._unresolved.discard(message)
        group.unresolved -= 1
        if not group.unresolved:
            self._resolve(group)

    def _resolve(self, group: Group) -> None:
        """The group goes on where it was."""
        entries = self._entries.pop(group.id, [])
        out = [m for m in entries if m.state is MessageState.IN_FLIGHT]
        out.sort(key=_number)
        is_owned = group.id in self._owners
        owner = self._owners.pop(group.id, None)
        if owner is not None and not owner.stays:
            owner = None
        holder = out[-1].consumer if out else None
        if holder is not None:
            # One that was handed over later may be settled meanwhile: its number must not come again.
            # A bucket numbers each id for itself.
            last = {message.group_id: _number(message) for message in out}
            is_last = all(_number(m) <= last.get(m.group_id, _number(m)) for m in entries)
            self._hold_where_it_is(group, holder, owner, out, is_owned=is_owned, is_last=is_last)
        elif owner is not None:
            self._hold(group, owner, GroupState.OWNED)
        else:
            if is_owned:
                self._state.stale_owners.append(group.id)
            release(self._state, group)
        self._resending.send_all(out)

    def _hold_where_it_is(
        self, group: Group, holder: Consumer, owner: Consumer | None, out: list[Original],
        *, is_owned: bool, is_last: bool,
    ) -> None:  # fmt: skip
        state, policy = self._state, self._state.policy
        several = any(message.consumer is not holder for message in out)
        # Under `exclusive` a row is committed with the first dispatch: a group without one lost its owner.
        is_disowned = self.redis_complete and not is_owned
        is_disowned |= group.id in self._disowned
        ends = is_disowned or not holder.stays or any(message.closing for message in out)
        is_pinned_elsewhere = group.pin is not None and group.pin != holder.id
        if is_pinned_elsewhere:
            owner = self._pinned_to(group)
        if not policy.keeps_owner:  # whether a number came behind these is not known: they are settled first
            self._hold(group, holder, GroupState.BATCHED)
        elif several or ends or is_pinned_elsewhere or (owner is not None and owner is not holder):
            self._hold(group, holder, GroupState.DRAINING)
            retarget(state, group, None if ends and owner is holder else owner)
        else:
            self._hold(group, holder, GroupState.OWNED)
            if not is_last:
                state.begin_epoch(group)  # the leader after this one may not know it any more
            elif self._numbers_go_on(group, out):
                group.goes_on(
                    out[-1], self._row_epochs.get(group.id, 0)
                )  # so that its consumer misses a copy that is lost once more
            if owner is None:
                state.commit_owner(group)

    def _pinned_to(self, group: Group) -> Consumer | None:
        """Whom it goes to next, under a policy with owners."""
        to = group.pinned_to
        return to if self._state.policy.keeps_owner and to is not None and to.stays else None

    def _numbers_go_on(self, group: Group, out: list[Original]) -> bool:
        """Whether the last of these was handed over last: no epoch came later, and Redis lost nothing."""
        is_known = self.redis_complete and all(message.group_seq for message in out)
        return is_known and self._row_epochs.get(group.id, 0) <= out[-1].epoch

    def _hold(self, group: Group, owner: Consumer, state: GroupState, *, fresh: bool = False) -> None:
        """The group belongs to this consumer already; its next dispatch begins a new epoch."""
        if group.state is not state:
            group.become(state)
        group.owner = owner
        group.epoch = 0
        group.fresh = fresh
        owner.groups.add(group)
        self._state.pool.level_changed(owner)
        self._state.relist_backlogs(group)
        self._state.rested(group)


def _sentence(facts: Facts) -> str:
    have = "has" if facts["unresolved"] == 1 else "have"
    return f"Recovering: {facts['unresolved']} of its messages {have} not come back from RabbitMQ yet."


def _next_owner(group: Group) -> Consumer | None:
    """Who has the group, or gets it once it is drained."""
    return group.target if group.state is GroupState.DRAINING else group.owner


def _number(message: Original) -> tuple[int, int]:
    """Its place among all numbers of its group."""
    return message.epoch, message.group_seq
