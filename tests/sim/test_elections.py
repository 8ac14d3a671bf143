"""After a kill of RabbitMQ a quorum queue elects a leader, which may give back late what consumers had."""

from __future__ import annotations

import pytest

from dispatcher.service import inbound_feed
from dispatcher.sim.campaign import run_seed

#: Newer messages come first in it, if nobody waits.
SEED = 897


def test_who_does_not_wait_for_an_election_loses_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(SEED).problem is None
    monkeypatch.setattr(inbound_feed, "ELECTION_S", 0.0)
    assert run_seed(SEED).checker == "order"
