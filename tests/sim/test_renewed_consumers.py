"""Consumers of inbound queues that are replaced while much is unacked: nothing is lost, or out of order.

In the other seeds no look-ahead is large enough for that.
"""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.service.inbound_feed import InboundFeed
from dispatcher.sim.campaign import run_scenario
from dispatcher.sim.seeds import make_scenario

SEEDS = range(1, 41)


@pytest.mark.slow
def test_every_guarantee_holds_where_consumers_are_renewed() -> None:
    feeds: dict[InboundFeed, None] = {}

    def renew_often(lane: Any, session: Any, store: Any) -> None:
        commit = session._commit

        def watched(effects: Any) -> None:
            for feed in session._feeds:
                feed._renewed_for = 1
                feeds[feed] = None
            commit(effects)

        session._commit = watched

    for seed in SEEDS:
        assert run_scenario(make_scenario(seed), plants=[renew_often]).problem is None, seed
    assert sum(feed._consumers for feed in feeds) > 5 * len(feeds), "most of them are no change of a window"
