"""Everything that the core remembers of one lane, and the few acts that all its parts share."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.core.bounds import COUNTER_SHIFT
from dispatcher.core.buckets import GroupMap
from dispatcher.core.deadlines import Deadlines
from dispatcher.core.effects import Effects
from dispatcher.core.eligibility import Eligibility
from dispatcher.core.explanation import Explanation
from dispatcher.core.holds import HoldKind
from dispatcher.core.ignored_settles import IgnoredSettles
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import FREE, NEVER_FULL, SETTLED, Backlog, Consumer, Group, GroupState, Original
from dispatcher.core.options import LaneOptions
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.orders import AckInbound
from dispatcher.core.placement import Pool
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.shared_facts import SharedFacts
from dispatcher.core.signals import Signals
from dispatcher.core.tables import OwnerRow


class LaneState(SharedFacts):
    """The memory of one lane's core. `now_ms` is the time of the step that runs."""

    def __init__(self, options: LaneOptions, lane_epoch: int, now_ms: int) -> None:
        super().__init__(now_ms)
        self.options = options
        self.policy = options.policy
        self.stops_failed = options.stops_failed and options.policy.grouped  # one of a group is out at a time
        self.lane_epoch = lane_epoch
        self.now_ms = now_ms
        self.effects = Effects()
        window = options.group_window
        self.first_window = NEVER_FULL if window is None else window.initial  # that a group begins with
        self.group_map = GroupMap(options.buckets, grouped=options.policy.grouped)
        self.key_of = self.group_map.key  # of the group of an id
        self.keys_are_ids = options.buckets is None  # then it is that id
        self._make_group = self.group_map.maker(self.next_epoch)
        self.groups: dict[bytes, Group] = {}  # by key
        self.signals = Signals()
        self.pool = Pool(counts_messages=not options.policy.grouped)
        self.by_uuid: dict[str, Consumer] = {}
        self.unconfirmed = self.unconfirmed_bytes = 0  # copies on their way to the broker
        self.eligibility = Eligibility()
        self.explanation = Explanation(self)
        self.lane_holds = self.eligibility.lane_holds
        #: Who wants to know that a backlog, by its first message, is not listed for a certain cause.
        self.on_hold: dict[HoldKind, Callable[[Group, Original], object]] = {}
        self.inbounds = [
            Inbound(inbound_id(place), name, weight, options.look_ahead, self.pool)
            for place, (name, weight) in enumerate(options.inbounds)
        ]
        self.first_number = self.epoch_counter = lane_epoch << COUNTER_SHIFT
        self.bytes_held = self.records_since_checkpoint = 0
        #: Messages that wait but have an open journal entry: they were taken back from a consumer.
        self.revoked: OrderedSet[Original] = OrderedSet()
        #: Why they end, for messages whose copy in the dead queue is not confirmed yet.
        self.ending: dict[Original, str] = {}
        self.acks: list[Original] = []  # of this step
        self.deadlines = Deadlines()
        self.ignored_settles = IgnoredSettles(self.counters, self.log_event)

    # -- effects --

    def take_effects(self) -> Effects:
        """The effects of the step that ends, the inbound acks behind all that they depend on."""
        effects = self.effects
        if self.acks:
            effects.actions.append(AckInbound(self.acks))
        self.effects, self.acks = Effects(), []
        self.records_since_checkpoint += len(effects.records)
        return effects

    # -- groups --

    def group(self, group_id: bytes) -> Group:
        """The group to which messages of that id belong, made when it is new."""
        return self.group_of_key(group_id if self.keys_are_ids else self.key_of(group_id))

    def group_of_key(self, key: bytes, state: GroupState = FREE) -> Group:
        """The group of that key, made in that state when it is new."""
        group = self.groups.get(key)
        return self.new_group(key, state) if group is None else group

    def new_group(self, key: bytes, state: GroupState) -> Group:
        """The group of a key that has none yet."""
        self.groups[key] = group = self._make_group(key, state)
        group.window = self.first_window
        return group

    def assign(self, group: Group, consumer: Consumer, state: GroupState) -> None:
        """Give a group to a consumer; its next message begins a new epoch."""
        group.become(state)
        group.owner = consumer
        group.fresh = True
        group.epoch = 0
        consumer.groups[group] = None
        self.pool.given(consumer)
        self.commit_owner(group)
        self.relist_backlogs(group)
        self.rested(group)

    def begin_epoch(self, group: Group) -> None:
        """Restart the group's own numbers under an epoch larger than all before (O-3)."""
        group.epoch = self.next_epoch()
        group.last_seq = 0
        self.commit_owner(group)

    def next_epoch(self) -> int:
        self.epoch_counter += 1
        return self.epoch_counter

    def commit_owner(self, group: Group) -> None:
        """Commit the owner of the group. Epoch 0 says that nothing was dispatched since it was assigned."""
        if self.policy.keeps_owner and group.owner is not None and group.state is not GroupState.DRAINING:
            self.effects.owners[group.id] = self.owner_row(group, group.owner)

    def owner_row(self, group: Group, owner: Consumer) -> OwnerRow:
        return OwnerRow(owner.number, 0 if group.fresh else group.epoch or self.epoch_counter)

    def rested(self, group: Group) -> None:
        """One of the group's messages ended, or its owner changed: it may be at rest now."""
        for rested in self.signals.group_rested:
            rested(group)

    def forget_if_unused(self, group: Group) -> None:
        """Remove a free group that has no messages and no settings. A second call does nothing."""
        is_unused = group.state is FREE and group.is_at_rest and not group.flags
        if is_unused and self.groups.get(group.id) is group:
            del self.groups[group.id]

    def relist_backlogs(self, group: Group) -> None:
        """List the group's backlogs anew: call it after every change of its owner, state, flags or first
        messages."""
        if group.backlogs is not None:
            for backlog in group.backlogs.values():
                backlog.leave()
                self.list_backlog(backlog)
        for changed in self.signals.group_changed:
            changed(group)

    def window_filled(self, group: Group) -> None:
        """As much of the group is out as may be: list nothing more of it."""
        if group.backlogs is not None:
            self.relist_backlogs(group)
        else:
            for filled in self.signals.window_filled:
                filled(group)

    def list_backlog(self, backlog: Backlog) -> None:
        """Enter a backlog in the list of its group's owner, or of free groups, if it may be served."""
        if backlog.listed_in is not None or (head := backlog.head()) is None:
            return
        group = backlog.group
        kind = self.eligibility.held_by(group, head)
        if kind is not None:
            self.held_back(kind, group, head)
            return
        inbound = self.inbounds[backlog.inbound]
        taker = group.owner if group.owner is not None else group.pinned_to
        source = inbound.unowned if taker is None else taker.sources[backlog.inbound]
        source.backlogs[backlog] = None
        backlog.listed_in = source.backlogs
        if not source.in_ring:
            inbound.enlist(source)

    def held_back(self, kind: HoldKind, group: Group, head: Original) -> None:
        """This message does not go in its turn: tell the feature that handles this cause."""
        tell = self.on_hold.get(kind)
        if tell is not None:
            tell(group, head)

    # -- consumers --

    def refresh_credit(self, consumer: Consumer) -> None:
        """Its credit or state changed: offer it to the delivery pass, or take it away."""
        if consumer.takes_new:
            if consumer.pool_level < 0:
                self.pool.add(consumer)
                for inbound in self.inbounds:
                    inbound.wake_common_sources()
            else:
                self.pool.level_changed(consumer)
        else:
            self.pool.discard(consumer)
        if consumer.credit > 0:
            for inbound in self.inbounds:
                source = consumer.sources[inbound.index]
                if source.backlogs:
                    inbound.enlist(source)

    # -- messages --

    def leave_wait(self, message: Original) -> None:
        """It waits no more: no entry of it has to be met again, and it is not to be tried alone."""
        self.revoked.discard(message)
        self.suspects.discard(message)

    def wait_ungrouped(self, message: Original) -> None:
        """It waits behind the others without a group, or alone."""
        if not (message.attempt and any(takes(message) for takes in self.signals.setting_aside)):
            inbound = self.inbounds[message.inbound]
            inbound.ungrouped.messages.append(message)
            inbound.enlist(inbound.ungrouped)

    def settled(self, message: Original) -> None:
        """The original has ended: remember it until its ack is proven, and ack it."""
        if message.queue == message.inbound:
            self.inbounds[message.inbound].settle(message)
        else:
            for settled in self.signals.settled_elsewhere:
                settled(message)
        message.state = SETTLED  # every state may: not asked, as this is done for each message
        self.bytes_held -= message.footprint
        self.acks.append(message)
        message.content = None
