"""Three hundred worlds, and some clusters: in none a message is lost, doubled, out of order or stuck."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatcher.sim.campaign import run_seed
from dispatcher.sim.checkers.going_on import ALLOWED_MS
from dispatcher.sim.clusters import CLUSTER_FAULTS, NODE_FAULTS
from dispatcher.sim.faults import KINDS
from dispatcher.sim.message_plans import REFUSALS
from dispatcher.sim.themes import THEMES

SEEDS = 300
#: The first ones also show that everything happens that is meant to.
COVERING = 120
#: What they don't meet by chance: an original that is gone, a rebalance because somebody joined, a group that
#: is owned when an operator closes it, a queue with much in it that is read back.
RARE = (201, 223, 224, 302, 316, 473, 806)
#: Clusters: the first ones, two in which nodes are killed and stopped, one of a lane with a history, and one
#: whose lane hands over.
CLUSTERS = (*range(1, 11), 16, 17, 41, 104)
#: So many per test: enough of them for several processes to share, each far from the timeout.
PART = 40

#: What the first seeds must reach, beside every kind of fault: answers of Redis to commits, …
REDIS = {"applied", "applied before", "fenced"}
#: … what else the broker did, how leaders began, what the service said in its log, …
BROKER = {"forgot an ack", "lost a message", "dropped what expired"}
LEADS = {"trusts Redis", "asks the consumers", "after a restart of the broker"}
LOGS = {
    "lane_interrupted", "redis_unavailable", "redis_lost_writes", "publishing_refused",
    "rabbitmq_blocks_publishers", "message_undeliverable",
}  # fmt: skip
#: … and the core's counters.
CORE = {
    "acked_again", "adopted", "consumers_evicted", "consumers_frozen", "consumers_lost",
    "consumers_refused", "consumers_taken", "copies_missed", "dead_lettered",
    "deduplicated", "expired", "failed",
    "groups_closed", "given_back", "groups_forgotten", "groups_idled", "groups_moved", "groups_parked",
    "groups_stalled", "groups_stolen", "handed_on", "joins", "leaves", "moved",
    "overdue", "parked", "poisoned", "purged", "rebalances_on_join", "rejoins", "repeated_copies",
    "sent_again", "sequence_gaps", "sequence_repeats", "sequence_waits",
    "settled", "settles_ignored", "taken_back", "unpublishable", "vanished",
}  # fmt: skip


def _expected() -> set[tuple[str, str]]:
    return {
        *(("struck", kind) for kind in KINDS.keys() - CLUSTER_FAULTS),
        *(("refused", kind) for kind in REFUSALS),
        *(("theme", theme.name) for theme in THEMES), *(("redis", answer) for answer in REDIS),
        *(("broker", what) for what in BROKER), *(("leads", how) for how in LEADS),
        *(("kept", how) for how in ("first", "again")), *(("logs", event) for event in LOGS),
        *(("core", counter) for counter in CORE),
    }  # fmt: skip


def _run(seed: int, *, cluster: bool = False) -> Counter[tuple[str, str]]:
    outcome = run_seed(seed, cluster=cluster)
    assert outcome.problem is None, "\n".join(
        [f"seed {seed} fails: {outcome.checker}: {outcome.problem}", *outcome.events]
    )
    return outcome.met


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_guarantee_holds_and_everything_happens_that_is_meant_to() -> None:
    """A fault that hits nothing, or a branch that no seed takes, proves nothing."""
    met: Counter[tuple[str, str]] = Counter()
    for seed in (*range(1, COVERING + 1), *RARE):
        met += _run(seed)
    assert not _expected() - set(met)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(COVERING + 1, SEEDS + 1, PART))
def test_every_guarantee_holds(first: int) -> None:
    for seed in range(first, min(first + PART, SEEDS + 1)):
        _run(seed)


def test_after_every_fault_of_a_node_a_lane_has_its_time() -> None:
    assert set(NODE_FAULTS) == set(ALLOWED_MS)


@pytest.mark.slow
def test_every_guarantee_holds_on_a_cluster() -> None:
    met: Counter[tuple[str, str]] = Counter()
    for seed in CLUSTERS:
        met += _run(seed, cluster=True)
    expected = {("kept", "again"), ("readings", "repeated"), ("broker", "did not replicate an ack")}
    assert not {*expected, *(("struck", kind) for kind in CLUSTER_FAULTS)} - set(met)
