"""No growth without end: once all is quiet, nothing is left of messages that are done with."""

from __future__ import annotations

from dispatcher.core.lane import Lane
from dispatcher.core.membership.membership import Membership
from dispatcher.core.model import GroupState
from dispatcher.core.optional.dedup import Dedup
from dispatcher.core.recovery.matching import Recovery
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.queues import is_parking_queue


class BoundsChecker(Checker):
    name = "bounds"

    def at_end(self) -> None:
        lane = self.world.leader_lane()
        if lane is None:
            return
        state = lane.state
        left = {
            "unconfirmed copies": state.unconfirmed,
            "unconfirmed bytes": state.unconfirmed_bytes,
            "bytes held": state.bytes_held,
            "messages taken back": len(state.revoked),
            "messages ending": len(state.ending),
            "messages undeliverable": len(state.undeliverable),
            "suspects": len(state.suspects),
            "consumers kept for suspects": sum(c.alone_with is not None for c in state.by_uuid.values()),
            "entries awaiting their original": len(lane.state.feature(Recovery).open_entries()),
            "credit out": sum(c.prefetch - c.credit for c in state.by_uuid.values()),
            "in flight": sum(len(c.in_flight) for c in state.by_uuid.values()),
            "consumers missing": lane.state.feature(Membership).liveness.missing,
            "queues that are being read back": len(state.reclaiming),
        }
        dedup = lane.state.find(Dedup)
        left["messages whose ids are looked up"] = 0 if dedup is None else dedup.waiting
        left["parking queues known"] = len(state.parking)
        names, queues = self.world.names, self.world.broker.queues
        lost = any(fault.kind == "lose_leader" for fault in self.world.scenario.faults)
        if not lost and not self.world.scenario.partitions:  # else P-11 leaves some
            left["parking queues"] = sum(is_parking_queue(names, name) for name in queues)
        left["moves unconfirmed"] = state.parking.unconfirmed
        left["bytes of moves"] = state.parking.unconfirmed_bytes
        for inbound in state.inbounds:
            left[f"unacked of {inbound.name}"] = inbound.unacked
            left[f"waiting of {inbound.name}"] = inbound.waiting
            left[f"in flight of {inbound.name}"] = inbound.in_flight
        wrong = {name: count for name, count in left.items() if count}
        if wrong:
            self.violate(f"all is quiet, and there are still {wrong}")
        self._check_groups(lane)

    def _check_groups(self, lane: Lane) -> None:
        """Groups without an owner are forgotten, and only owners that exist own some."""
        for group in lane.state.groups.values():
            if group.state is not GroupState.OWNED or group.owner is None:
                self.violate(f"{group} is remembered although it has nothing left")
                return
            if lane.state.by_uuid.get(group.owner.uuid) is not group.owner:
                self.violate(f"{group} belongs to {group.owner}, which has ended")
                return
        rows = len(self.world.redis.keys.owners)
        if rows > len(lane.state.groups) + len(lane.state.stale_owners):
            self.violate(f"{rows} owners in Redis for {len(lane.state.groups)} groups")
        self._check_remembered(lane)

    def _check_remembered(self, lane: Lane) -> None:
        """No more groups are remembered than the lane wants to."""
        options, count = lane.state.options, len(lane.state.groups)
        if options.group_idle_timeout_ms is not None and count:
            self.violate(f"{count} groups still have owners, idle for {options.group_idle_timeout_ms} ms")
        for limit in (options.groups_remembered, options.buckets):
            if limit is not None and count > limit:
                self.violate(f"{count} groups are remembered, not {limit}")
