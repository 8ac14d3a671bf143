"""The tables of a report once more, from the ledger and by SQL that has nothing of the pipeline's code, with
DuckDB: `python -m bench.pipeline.by_duckdb LEDGER DATABASE` makes them. `differences` compares every cell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

import duckdb

from bench.pipeline.ledger import LANES

STAGES: Final = ("wait", "commit", "confirm", "process")
#: How far the rank of a percentile may be off, rounded up to a whole one (docs/pipeline.md).
RANKS_OFF: Final = "n / 2000.0"

#: Each hand-over once: its first end, and of an end that another leader tells what the beginning had.
HANDS = """
create table hands as
with records as (
    select *, lane_epoch * 2 as turn
    from read_parquet('{ledger}/lane=*/date=*/*.parquet', hive_partitioning = true,
                      hive_types = {{'lane': varchar, 'date': varchar}})
    where seq is not null and incarnation is not null and lane in {lanes}
), ends as (
    select * from records where event in ('settled', 'failed', 'taken_back', 'vanished')
    qualify row_number() over (partition by lane, incarnation, seq order by turn, ordinal) = 1
), begun as (
    select * from records where event = 'dispatched'
    qualify row_number() over (partition by lane, incarnation, seq order by turn, ordinal) = 1
), joined as (
    select e.event is null or e.dispatched_at is null as is_part,
        coalesce(e.lane, b.lane) as lane, coalesce(e.incarnation, b.incarnation) as incarnation,
        coalesce(e.seq, b.seq) as seq, e.event as ended, e.time as ended_at,
        coalesce(e.turn, b.turn) as turn,
        case when e.dispatched_at is not null then e.turn else coalesce(b.turn, e.turn) end as began_turn,
        {known}
    from ends e full join begun b on (e.lane, e.incarnation, e.seq) = (b.lane, b.incarnation, b.seq)
)
select * exclude (ended, is_part), coalesce(ended, 'open') as outcome, date_trunc('day', ended_at) as day,
    date_trunc('hour', ended_at) as hour,
    case when attempt = 1 then {wait} end as wait_us, {commit} as commit_us, {confirm} as confirm_us,
    case when began_turn = turn then {process} end as process_us
from joined
"""
_KNOWN: Final = (
    "inbound", "arrival_epoch", "arrival", '"group"', "consumer", "attempt", "size", "cost", "type",
    "received_at", "dispatched_at", "committed_at", "confirmed_at",
)  # fmt: skip
#: A consumer is busy with what it settles since its settle before on that day, or since the hand-over.
WORK = """
create table worked as
with told as (
    select *, case when outcome in ('settled', 'failed') then epoch_us(ended_at) end as told from hands
), s as (
    select *, count(*) over at_once as n, min(epoch_us(dispatched_at)) over at_once as first_us,
        max(told) over (partition by lane, turn, incarnation, day order by told
                        range between unbounded preceding and 1 preceding) as before_us
    from told window at_once as (partition by lane, turn, incarnation, day, told)
)
select * exclude (n, first_us, before_us, told),
    case when told is not null and began_turn = turn and dispatched_at is not null
         then greatest(0, told - greatest(before_us, first_us)) / n end as work_us
from s
"""
STATS = """
create table {table} as
select lane, {by}, hour, count(*) as hand_overs, count(*) filter (outcome = 'settled') as settled,
    count(*) filter (outcome = 'failed') as failed, count(*) filter (outcome = 'taken_back') as taken_back,
    count(*) / 3600 as per_s, sum(size)::bigint as bytes, sum(cost)::bigint as cost,
    coalesce(round(sum(work_us)), 0)::bigint as busy_us, {lists}
from worked where ended_at is not null and {by} is not null group by all
"""
#: The work of a consumer on a day is in whole µs, and days and consumers add up.
GROUPS = """
create table by_group as
with parts as (
    select lane, "group", consumer, day, count(*) as messages, sum(cost) as cost,
        coalesce(round(sum(work_us)), 0) as busy_us
    from worked where outcome = 'settled' and "group" is not null group by all
)
select lane, "group", sum(messages)::bigint as messages, sum(cost)::bigint as cost,
    sum(busy_us)::bigint as busy_us
from parts group by all
"""
HOT = """
create table hot_groups as
select *, messages / sum(messages) over (partition by lane) as share,
    row_number() over (partition by lane order by messages desc, "group") as rank
from by_group qualify rank <= 100
"""
UNEVENNESS = """
create table lanes as
with ranked as (
    select *, row_number() over (partition by lane order by messages, "group") as up,
        row_number() over (partition by lane order by messages desc, "group" desc) as down
    from by_group
)
select lane, count(*) as groups, sum(messages)::bigint as messages,
    2 * sum(up * messages) / (count(*) * sum(messages)) - (count(*) + 1) / count(*) as gini,
    sum(messages) filter (down <= 10) / sum(messages) as top_share
from ranked group by lane
"""
HOLDERS = """
create table holders as
with parts as (
    select w.lane, rank, w."group", consumer, day, count(*) as hand_overs,
        coalesce(round(sum(work_us)), 0) as busy_us
    from worked w join hot_groups h on w.lane = h.lane and w."group" = h."group" and rank <= 20 group by all
)
select lane, rank, "group", consumer, sum(hand_overs)::bigint as hand_overs, sum(busy_us)::bigint as busy_us
from parts group by all
"""
COSTS = """
create table cost_model as
select lane, inbound, type, power(2, ceil(log2(size + 1)))::bigint as size_below, count(*) as messages,
    avg(work_us) as mean_us, stddev_samp(work_us) as deviation_us
from worked where outcome = 'settled' and work_us is not null and size is not null group by all
"""


class Compared(NamedTuple):
    """How a table is compared: by which key, and which of its columns in which way."""

    key: tuple[str, ...]
    exact: tuple[str, ...]
    near: tuple[str, ...] = ()  # floating point, or sums of it
    has_percentiles: bool = False
    folders: str = ""  # that its rows lie in


_COUNTS: Final = ("hand_overs", "settled", "failed", "taken_back", "bytes", "cost")
COMPARED: Final = {
    "hand_overs": Compared(
        ("lane", "incarnation", "seq"),
        ("inbound", "arrival_epoch", "arrival", "group", "consumer", "attempt", "size", "cost", "type",
         "received_at", "dispatched_at", "committed_at", "confirmed_at", "ended_at", "outcome", "turn",
         "began_turn", "wait_us", "commit_us", "confirm_us", "process_us"), folders="*/*/",
    ),
    "lane_stats": Compared(("lane", "inbound", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "consumer_stats": Compared(("lane", "consumer", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "group_stats": Compared(("lane", "group", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "hot_groups": Compared(("lane", "rank"), ("group", "messages", "cost"), ("busy_us", "share")),
    "lanes": Compared(("lane",), ("groups", "messages"), ("gini", "top_share")),
    "holders": Compared(("lane", "rank", "consumer"), ("group", "hand_overs"), ("busy_us",)),
    "cost_model": Compared(
        ("lane", "inbound", "type", "size_below"), ("messages",), ("mean_us", "deviation_us")
    ),
}  # fmt: skip


def _spent(since: str, until: str) -> str:
    return f"nullif(greatest(epoch_us({until}) - epoch_us({since}), -1), -1)"


def make(ledger: Path, database: Path) -> None:
    """All of them."""
    engine = duckdb.connect(str(database))
    engine.execute("set timezone = 'UTC'")
    engine.execute("set preserve_insertion_order = false")
    known = ", ".join(
        f"case when e.dispatched_at is not null then e.{name} else coalesce(e.{name}, b.{name}) end as {name}"
        for name in _KNOWN
    )
    engine.execute(HANDS.format(
        ledger=ledger, lanes=tuple(LANES), known=known, wait=_spent("received_at", "dispatched_at"),
        commit=_spent("dispatched_at", "committed_at"), confirm=_spent("committed_at", "confirmed_at"),
        process=_spent("committed_at", "ended_at"),
    ))  # fmt: skip
    engine.execute("create view hand_overs as select * from hands")
    engine.execute(WORK)
    lists = ", ".join(
        f"list_sort(list({stage}_us) filter ({stage}_us is not null)) as {stage}s" for stage in STAGES
    )
    for table, by in ("lane_stats", "inbound"), ("consumer_stats", "consumer"), ("group_stats", '"group"'):
        engine.execute(STATS.format(table=table, by=by, lists=lists))
    for query in (GROUPS, HOT, UNEVENNESS, HOLDERS, COSTS):
        engine.execute(query)
    engine.close()


def differences(report: Path, database: Path) -> list[str]:
    """By table, how many rows have a cell that is another one, or are missing, with an example."""
    engine = duckdb.connect(str(database), read_only=True)
    engine.execute("set timezone = 'UTC'")
    found = []
    for name, how in COMPARED.items():
        ours = f"read_parquet('{report / name}/{how.folders}*.parquet', hive_partitioning = true, " + (
            "hive_types = {'lane': varchar})" if how.folders == "*/*/" else "hive_types_autocast = false)"
        )
        same = " and ".join(f'o."{each}" is not distinct from d."{each}"' for each in how.key)
        faults = [f'o."{each}" is distinct from d."{each}"' for each in how.exact]
        faults += [
            f'(o."{each}" is null) <> (d."{each}" is null) or abs(o."{each}" - d."{each}") > '
            f'1 + 1e-9 * abs(d."{each}")' if each == "busy_us" else
            f'(o."{each}" is null) <> (d."{each}" is null) or abs(o."{each}" - d."{each}") > '
            f'1e-6 * (1 + abs(d."{each}"))'
            for each in how.near
        ]  # fmt: skip
        if how.has_percentiles:
            faults += [_is_off(stage, percent) for stage in STAGES for percent in (50, 95, 99)]
        is_missing = f'o."{how.key[0]}" is null or d."{how.key[0]}" is null'
        condition = " or ".join(f"coalesce({each}, false)" for each in [is_missing, *faults])
        mine = f"(from {ours} where lane in {tuple(LANES)})"
        query = f"from {mine} o full join {name} d on {same} where {condition}"
        counted = engine.execute(f"select count(*) {query}").fetchone()
        if counted is not None and counted[0]:
            row = engine.execute(f"select o, d {query} limit 1").fetchone()
            found.append(f"{name}: {counted[0]} rows differ, as {str(row)[:1_000]}")
    return found


def _is_off(stage: str, percent: int) -> str:
    """Whether a percentile of ours is none of the values whose rank is near enough."""
    value, sorted_values = f"o.{stage}_p{percent}_us", f"d.{stage}s"
    ranks = f"len({sorted_values})"
    off = RANKS_OFF.replace("n", ranks, 1)
    low = f"{sorted_values}[greatest(1, floor({percent / 100} * {ranks} - ({off})))::bigint]"
    high = f"{sorted_values}[least({ranks}, ceil({percent / 100} * {ranks} + ({off})))::bigint]"
    return f"({value} is null) <> ({ranks} is null) or {value} < {low} or {value} > {high}"


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
