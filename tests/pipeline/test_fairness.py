"""Shares count while there was a choice, and are what another engine makes of the same records."""

from __future__ import annotations

import duckdb
import pytest

from tests.pipeline.conftest import Everything
from tests.pipeline.planted_shares import INBOUNDS, OWNED, SHARED, STARVED

#: Second by second and pool by pool: which queues had something there that waited through all of it.
SHARES = """
with told as (
    select inbound, cost, {pool} as pool, wait_cause, received_at, dispatched_at,
        (select max(time) from {ledger} e where e.event = 'settled' and e."group" = h."group"
            and e.dispatched_at < h.dispatched_at and {alone}) as free_at
    from {ledger} h where event = 'settled'
), message as (
    select *, epoch_us(dispatched_at) // 1000000 as went, case when wait_cause in ('turn', 'window')
        then epoch_us(greatest(received_at, coalesce(free_at, received_at))) else epoch_us(dispatched_at) end
        // 1000000 as came from told
), choice as (
    select distinct m.pool, s.second, m.inbound, weight
    from message m, (select distinct went as second from message) s, weights w
    where m.came < s.second and s.second < m.went and w.inbound = m.inbound
), contest as (
    select pool, second, inbound, weight, sum(weight) over p as all_weights, count(*) over p as queues,
        coalesce((select sum(cost) from message m where m.pool = c.pool and m.went = c.second
            and m.inbound = c.inbound), 0) as got
    from choice c window p as (partition by pool, second)
), given as (
    select *, sum(got) over (partition by pool, second) as all_got from contest where queues > 1
)
select inbound, count(distinct second)::double, sum(got), sum(all_got * weight / all_weights) from given
where all_got > 0 group by inbound order by inbound
"""


@pytest.mark.parametrize(("lane", "pool", "alone"), [(OWNED, "incarnation", "false"), (SHARED, "''", "true")])
def test_shares_are_those_of_every_choice(everything: Everything, lane: str, pool: str, alone: str) -> None:
    ledger = f"read_parquet('{everything.report.folder.parent}/ledger/lane={lane}/*/*.parquet')"
    engine = duckdb.connect()
    engine.execute("create table weights (inbound text, weight double)")
    weights = [(each["queue"], each["weight"]) for each in INBOUNDS] + [("lowest", 2)]
    engine.executemany("insert into weights values (?, ?)", weights)
    expected = engine.execute(SHARES.format(ledger=ledger, pool=pool, alone=alone)).fetchall()
    rows = sorted((r for r in everything.report.rows("fairness") if r["lane"] == lane), key=_inbound)
    found = [(r["inbound"], r["contested_s"], r["got"], r["entitled"]) for r in rows]
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other)


def test_a_queue_that_gets_nothing_to_the_end_is_starved(everything: Everything) -> None:
    rows = {r["inbound"]: r for r in everything.report.rows("fairness") if r["lane"] == STARVED}
    assert rows.keys() == {"high", "low"}, "what is paused could not go"
    assert [rows["low"][name] for name in ("contested_s", "got", "entitled", "starved_s")] == [2, 0, 5, 2]
    assert [rows["high"][name] for name in ("got", "entitled", "starved_s")] == [20, 15, 0]


def _inbound(row: dict[str, str]) -> str:
    return row["inbound"]


def test_a_queue_counts_while_it_had_something_that_could_go(everything: Everything) -> None:
    rows = [r for r in everything.report.rows("fairness") if r["lane"] == OWNED]
    high, low = sorted(rows, key=_inbound)
    assert [high["got"], low["got"]] == [200, 40], "what i2 got was no choice"
    assert [high["entitled"], low["entitled"]] == [180, 60]
    assert [low["weight"], low["contested_s"], low["starved_s"], high["starved_s"]] == [1, 6, 2, 0]
    ratios = (200 / 180, 40 / 60)
    assert high["jain"] == pytest.approx(sum(ratios) ** 2 / (2 * sum(ratio * ratio for ratio in ratios)))
