"""What really happened to every message, and the promises that are checked against it (docs/semantics.md)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from dispatcher.core.effects import Effects
from dispatcher.core.events import Event, MessagesArrived
from dispatcher.core.lane import Lane
from dispatcher.core.orders import AckInbound
from dispatcher.core.parking.journal_replay import ParkingReplay
from dispatcher.core.records import IncarnationEnded, OpenEntry, Record
from dispatcher.core.recovery.journal_replay import JournalReplay
from dispatcher.wire.protocol import Marker, Settle
from tests.core.broker import Copy, PublishedMessage
from tests.core.memory import check_memory, messages_of

if TYPE_CHECKING:
    from tests.core.member import Member
    from tests.core.world import World


class Truth:
    """The record of one world. Every `check…` raises AssertionError with what was broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.over: set[str] = set()  # uuids of incarnations whose end is committed, or that nobody knows
        self.hand_overs = 0
        self._forgotten = False  # Redis has lost things at least once
        self.journal: list[Record] = []  # all that was decided, as a later leader would read it
        self.tags: list[set[int]] = []  # delivered on this connection and not ordered to be acked
        self._unfinished: dict[tuple[bytes | None, int], list[PublishedMessage]] = defaultdict(list)
        self._filed = 0
        self._epochs: dict[int, tuple[bytes | None, int]] = {}  # epoch → group, incarnation
        self._of_former_leaders = 0  # the highest epoch that they gave
        self._last_of_epoch: dict[int, int] = {}
        self._handed_epoch: dict[bytes | None, int] = {}

    # -- what happens --

    def settled(self, member: Member, settle: Settle, position: int) -> None:
        """A settle is in the control queue, which is when it counts."""
        seqs = [seq for first, last in settle.acked for seq in range(first, last + 1)]
        for seq in [*seqs, *(failed.seq for failed in settle.failed)]:
            if seq not in member.seen:
                continue
            original = member.seen[seq].original
            if member.uuid in self.over:
                original.late = True
                original.doubtful |= self._forgotten
            else:
                original.settles.append((member.uuid, position))

    def taken_over(self) -> None:
        """A new leader begins from what is committed."""
        self.journal = list(self._world.store.records)
        self._of_former_leaders = max(self._epochs, default=0)
        self.tags = [set() for _ in self._world.broker.inbounds]

    def took_in(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, MessagesArrived):
                for message in event.messages:
                    self.tags[message.inbound].add(message.tag)

    def decided(self, effects: Effects, records: list[Record]) -> None:
        if effects.checkpoint:
            self.journal.clear()
        self.journal += records
        for record in records:
            if isinstance(record, OpenEntry) and record.group_seq and not effects.checkpoint:
                self._check_numbers(record)
        for action in effects.actions:
            if isinstance(action, AckInbound):
                for message in action.messages:
                    self.tags[message.inbound].remove(message.tag)

    def committed(self, records: list[Record], control: int) -> None:
        for record in records:
            if isinstance(record, IncarnationEnded):
                row = self._world.store.incarnations.get(record.incarnation)
                if row is not None:
                    self._taken(row.uuid, control)

    def _taken(self, uuid: str, control: int) -> None:
        """What the broker confirmed to it before the last marker was published counts, nothing later."""
        self.over.add(uuid)
        for position, message in enumerate(self._world.broker.control, 1):
            if isinstance(message, Marker) and message.incarnation == uuid:
                control = max(control, position)
        for original in self._world.originals:
            original.settles = [s for s in original.settles if s[0] != uuid or s[1] <= control]

    def acked(self, original: PublishedMessage) -> None:
        known = original.settled or original.twin or (original.late and self._forgotten)
        assert known, f"{original} was acked and never settled (D-2)"

    def dead_lettered(self, original: PublishedMessage, reason: str) -> None:
        self._world.broker.dead.append((original, reason))
        original.dead = True

    def redis_forgets(self) -> None:
        """What only Redis knew is unknown: settled messages whose ack is not processed may come again, and
        incarnations that are not connected are strangers."""
        for member in self._world.members:
            if not member.connected or member.uuid in self.over:
                member.die()
                self.over.add(member.uuid)
        for inbound in self._world.broker.inbounds:
            for original in inbound.originals:
                original.doubtful |= original.settled or original.late
        self._forgotten = True

    # -- promises --

    def handed_over(self, member: Member, copy: Copy) -> None:
        """An application gets a message."""
        original = copy.original
        self.hand_overs += 1
        assert member.uuid not in self.over, f"{original} handed to {member}, which was taken back"
        if not original.doubtful and not original.twin:
            assert not original.settled, f"{original} handed to {member} after it was settled (D-4)"
            former = [uuid for uuid, _ in original.handed_to if uuid not in self.over]
            assert not former, f"{original} handed to {member}, and {former} has it (D-4)"
        assert len(member.in_hand) <= member.prefetch, f"{member} has more than its prefetch (D-1)"
        original.handed_to.append((member.uuid, copy.attempt))
        if copy.group_seq:
            self._check_overlap(member, copy)
            self._check_order(member, copy)
            assert copy.epoch >= self._handed_epoch.get(copy.group, 0), f"epoch of {original} went back (G-3)"
            self._handed_epoch[copy.group] = copy.epoch

    def _check_overlap(self, member: Member, copy: Copy) -> None:
        for other in self._world.members:
            if other is member or other.uuid in self.over:
                continue
            held = [c.original for c in other.in_hand.values() if c.group == copy.group]
            assert not held, f"{copy.original} handed to {member} while {other} holds {held} (G-2)"

    def _check_order(self, member: Member, copy: Copy) -> None:
        self._file()
        original = copy.original
        unfinished = self._unfinished[original.group, original.inbound]
        unfinished[:] = [o for o in unfinished if not o.over]
        held = {c.original for c in member.seen.values()}
        for earlier in unfinished:
            if earlier.number >= original.number:
                break
            excused = earlier.doubtful or earlier.twin
            assert earlier in held or excused, f"{original} handed over before {earlier} (O-1)"

    def _file(self) -> None:
        originals = self._world.originals
        for original in originals[self._filed :]:
            self._unfinished[original.group, original.inbound].append(original)
        self._filed = len(originals)

    def check_same_copy(self, member: Member, first: Copy, again: Copy) -> None:
        same = again.original is first.original or (again.original.twin and first.original.twin)
        assert same, f"seq {first.seq} of {member} names two messages (D-3)"

    def _check_numbers(self, sent: OpenEntry) -> None:
        """Dispatched, or given another number because it is sent again."""
        key = (sent.group, sent.incarnation)
        if sent.epoch not in self._epochs:
            # Who is assigned first may send later: its originals come back in their queues' order.
            of_group = (epoch for epoch, (group, _) in self._epochs.items() if group == sent.group)
            before = max(self._of_former_leaders, max(of_group, default=0))
            assert sent.epoch > before, f"epoch {sent.epoch} is not new (O-7)"
            self._epochs = {**dict(list(self._epochs.items())[-5000:]), sent.epoch: key}
        assert self._epochs[sent.epoch] == key, f"epoch {sent.epoch} of two owners (O-7)"
        last = self._last_of_epoch.get(sent.epoch, 0)
        assert sent.group_seq == last + 1, f"group-seq {sent.group_seq} after {last} (O-3)"
        self._last_of_epoch[sent.epoch] = sent.group_seq

    # -- the dispatcher's memory --

    def check(self) -> None:
        """Memory is consistent with itself, with the broker, and with the journal."""
        lane = self._world.lane
        assert lane is not None
        check_memory(lane, in_order=not any(o.doubtful or o.twin for o in self._world.originals))
        self._check_tags(lane)
        self._check_journal(lane)

    def _check_tags(self, lane: Lane) -> None:
        """Every original that was delivered and not acked is held, in flight or ending (D-2)."""
        known: list[list[int]] = [[] for _ in self.tags]
        for message in messages_of(lane):
            if message.is_here:
                known[message.inbound].append(message.tag)
        assert [sorted(tags) for tags in known] == [sorted(tags) for tags in self.tags]

    def _check_journal(self, lane: Lane) -> None:
        """Replaying all that was decided says the same as memory (R-2)."""
        state = lane.state
        since = state.records_since_checkpoint
        memory = _replayed(lane.checkpoint().records)
        state.records_since_checkpoint = since
        journal = _replayed(self.journal)
        assert journal.finish() == memory.finish()
        for index, inbound in enumerate(state.inbounds):
            ours = list(memory.unproven.get(index, {}).items())
            theirs = list(journal.unproven.get(index, {}).items())
            if inbound.recovery is not None:
                ours, theirs = sorted(ours), sorted(theirs)
            assert ours == theirs, f"unproven of queue {index}"
            assert list(memory.proven.get(index, ())) == list(journal.proven.get(index, ())), "proven"


def _replayed(records: list[Record]) -> JournalReplay:
    journal = JournalReplay()
    journal.others = ParkingReplay(journal)
    return journal.read(records)
