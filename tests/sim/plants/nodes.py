"""Bugs that show only on a cluster, when something happens to one of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.plants.planting import planted


def _as_it_begins(session: Any, change: Callable[[], None]) -> None:
    """Change the session once it has all its parts."""
    commit = session._commit

    def first(effects: Any) -> None:
        session._commit = commit
        change()
        commit(effects)

    session._commit = first


@planted("loss", "liveness", "going_on", seed=116, cluster=True)
def parked_on_one_node(lane: Any, session: Any, store: Any) -> None:
    """What came in through quorum queues is parked in a classic queue, on one node."""

    def change() -> None:
        session._parking._quorum = False

    _as_it_begins(session, change)


@planted("fence", seed=23, cluster=True)
def leads_on_with_its_epoch(lane: Any, session: Any, store: Any) -> None:
    """A leader whose node was given up never hears that it has lost the lock, and Redis takes its commits."""
    keys = store.world.redis.keys
    commit = type(keys).commit

    def unchecked(leader: bytes, before: bytes, ordinal: bytes, *rest: bytes) -> bytes:
        keys.meta[b"ordinal"] = before
        return commit(keys, keys.meta[b"leader"], before, ordinal, *rest)

    async def never() -> bool:
        return False

    keys.commit = unchecked
    store.is_fenced = never
    session._channels.tell_lock = lambda event: None


@planted("going_on", seed=25, cluster=True)
def waits_for_an_election_as_long_as_it_likes(lane: Any, session: Any, store: Any) -> None:
    """A new leader gives quorum queues far more time to elect their leaders than they need."""
    store.world.election_s = 20.0


@planted("duplicates", seed=113, cluster=True)
def acks_of_a_lost_leader_count(lane: Any, session: Any, store: Any) -> None:
    """Settled messages whose acks nobody has proven are new to the next leader."""
    for inbound in lane.state.inbounds:
        recovery = inbound.recovery
        if recovery is not None:
            recovery._settled.clear()


@planted("order", "duplicates", seed=76, cluster=True)
def takes_over_beside_a_node_that_stands_still(lane: Any, session: Any, store: Any) -> None:
    """A new leader consumes although a node stands still whose consumers may count as alive."""
    store.world.still_node_s = 0.0
