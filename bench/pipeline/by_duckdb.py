"""The tables of a report once more, with DuckDB, from the ledger and by SQL that has nothing of the
pipeline's code (`tables.sql`): `python -m bench.pipeline.by_duckdb LEDGER DATABASE` makes them. `differences`
compares every cell, and `violation_differences` the violations of a small ledger (`violations.sql`).

Not made: `files`, `gaps`, `fairness`, and the verdicts of `groups`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

STAGES: Final = ("wait", "commit", "confirm", "process")
#: How far the rank of a percentile may be off, rounded up to a whole one (docs/pipeline.md).
RANKS_OFF: Final = "n / 2000.0"
#: Of the newest ledger that this SQL reads.
SCHEMA_VERSION: Final = 1
_META: Final = "dispatcher.ledger."
FIRST: Final = datetime(1970, 1, 2, tzinfo=UTC)
#: Files of a day before and after it may have records of a time.
MARGIN: Final = timedelta(days=1)
LAST: Final = datetime(9999, 1, 1, tzinfo=UTC)

RECORDS: Final = """
create view all_records as
select r.* exclude (date, lane, filename), f.lane, lane_epoch * 2 as turn
from read_parquet({files}, filename = true, union_by_name = true) r join files f on r.filename = f.path
where date between '{first_day}' and '{last_day}'
{once}
"""
EACH_ONCE: Final = "qualify row_number() over (partition by f.lane, writer, ordinal) = 1"
LISTS: Final = ", ".join(
    f"list_sort(list({stage}_us) filter ({stage}_us is not null)) as {stage}s" for stage in STAGES
)
STATISTICS: Final = """
create table {table} as
select lane, {by}, hour, count(*) as hand_overs, count(*) filter (outcome = 'settled') as settled,
    count(*) filter (outcome = 'failed') as failed, count(*) filter (outcome = 'taken_back') as taken_back,
    count(*) / 3600 as per_s, sum(size)::bigint as bytes, sum(cost)::bigint as cost,
    coalesce(round(sum(work_us)), 0)::bigint as busy_us, {lists}
from worked where ended_at is not null {more} group by all
"""
#: At most 100 steps, of which the first and the last one are parts.
STEPS_MS: Final = (
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
    1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
)  # fmt: skip
TIMELINE: Final = """
create table timeline as
with reached as (
    select lane, greatest(min(time), getvariable('since')) as first,
        least(max(time), getvariable('until')) as last
    from all_records group by lane, writer having first <= last
), steps as (
    select lane, coalesce(list_min(list_filter({steps}, lambda step: step >= span_ms / 99)),
                          ceil(span_ms / 99 / 86400000) * 86400000)::bigint as step_ms
    from (select lane, (epoch_us(max(last)) - epoch_us(min(first))) / 1000 as span_ms
          from reached group by lane)
), points as (
    select *, make_timestamptz(epoch_us(ended_at) // (1000 * step_ms) * 1000 * step_ms) as "at"
    from worked join steps using (lane) where ended_at is not null
)
select lane, "at", step_ms, count(*) as hand_overs, count(*) * 1000 / step_ms as per_s,
    count(*) filter (outcome = 'taken_back') as taken_back, {lists}
from points group by lane, "at", step_ms
"""


class Compared(NamedTuple):
    """How a table is compared: by which key, and which of its columns in which way."""

    key: tuple[str, ...]
    exact: tuple[str, ...] = ()
    near: tuple[str, ...] = ()  # floating point, or sums of it
    has_percentiles: bool = False
    folders: str = ""  # that its rows lie in
    as_json: tuple[str, ...] = ()  # in the same order, but with other spaces


_COUNTS: Final = ("hand_overs", "settled", "failed", "taken_back", "bytes", "cost")
_MESSAGE: Final = ("lane", "inbound", "arrival_epoch", "arrival")
_TIMES: Final = ("received_at", "dispatched_at", "committed_at", "confirmed_at", "ended_at")
COMPARED: Final = {
    "hand_overs": Compared(
        ("lane", "incarnation", "seq"),
        ("inbound", "arrival_epoch", "arrival", "group", "group_seq", "epoch", "consumer", "attempt", "calls",
         "size", "cost", "type", *_TIMES, "wait_cause", "outcome", "reason", "turn", "began_turn", "wait_us",
         "commit_us", "confirm_us", "process_us"), folders="*/*/",
    ),
    "lifecycle": Compared(
        _MESSAGE,
        ("group", "size", "cost", *_TIMES, "parked_at", "times_parked", "first_dispatched_at", "outcome",
         "reason", "hand_overs", "attempts", "calls", "consumers", "wait_retry_us", "wait_parked_us",
         "wait_paused_us", "wait_group_us", "wait_window_us", "wait_consumer_us", "wait_turn_us", "total_us"),
        folders="*/",
    ),
    "lane_stats": Compared(("lane", "inbound", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "consumer_stats": Compared(("lane", "consumer", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "group_stats": Compared(("lane", "group", "hour"), _COUNTS, ("per_s", "busy_us"), True, "*/"),
    "timeline": Compared(("lane", "at"), ("step_ms", "hand_overs", "taken_back"), ("per_s",), True, "*/"),
    "hot_groups": Compared(("lane", "rank"), ("group", "messages", "cost"), ("busy_us", "share")),
    "lanes": Compared(("lane",), ("groups", "messages"), ("gini", "top_share")),
    "holders": Compared(("lane", "rank", "consumer"), ("group", "hand_overs"), ("busy_us",)),
    "cost_model": Compared(
        ("lane", "inbound", "type", "size_below"), ("messages",), ("mean_us", "deviation_us")
    ),
    "owners": Compared(
        ("lane", "group"),
        ("consumer", "incarnation", "turn", "since", "closed_inbound", "closed_arrival_epoch",
         "closed_arrival", "pinned_to"),
    ),
    "incarnations": Compared(("lane", "consumer", "incarnation"), ("prefetch", "joined_at", "ended_at")),
    "options": Compared(("lane", "turn", "since"), as_json=("options",)),
    "groups": Compared(("lane", "group"), ("hand_overs", "incarnations", "open", "first_at", "last_at")),
    "stalls": Compared(("lane", "since"), ("until", "waiting", "in_flight", "ended", "held_groups")),
}  # fmt: skip


class _File(NamedTuple):
    path: str
    lane: str
    writer: str
    first: int
    last: int


def make(ledger: Path, database: Path, since: datetime = FIRST, until: datetime = LAST) -> None:
    """All of them, from the records whose time is not before `since` and before `until`."""
    engine = duckdb.connect(str(database))
    engine.execute("set timezone = 'UTC'")
    engine.execute("set preserve_insertion_order = false")
    files = sorted(_files(ledger), key=lambda file: file[1:])
    engine.execute("create table files (path varchar, lane varchar)")
    engine.executemany("insert into files values (?, ?)", [(file.path, file.lane) for file in files])
    repeats = any(
        a[1:3] == b[1:3] and b.first <= a.last for a, b in pairwise(files)
    )  # of a ledger that was copied into itself
    names = ", ".join(f"'{_escaped(file.path)}'" for file in files)
    engine.execute(
        RECORDS.format(
            files=f"[{names}]",
            first_day=(since - MARGIN).date(),
            last_day=(until + MARGIN).date(),
            once=EACH_ONCE if repeats else "",
        )
    )
    engine.execute(f"set variable since = timestamptz '{since}'; set variable until = timestamptz '{until}'")
    engine.execute(f"create view records as from all_records where time >= '{since}' and time < '{until}'")
    engine.execute(_sql("tables.sql"))
    for table, by in ("lane_stats", "inbound"), ("consumer_stats", "consumer"), ("group_stats", '"group"'):
        more = "" if table != "group_stats" else 'and "group" is not null'
        engine.execute(STATISTICS.format(table=table, by=by, more=more, lists=LISTS))
    engine.execute(TIMELINE.format(steps=list(STEPS_MS), lists=LISTS))
    engine.close()


def _files(ledger: Path) -> Iterator[_File]:
    """Those that are whole, and of a version that is known."""
    for path in ledger.glob("lane=*/date=*/[!.]*.parquet"):
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError):
            continue
        told = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}
        told = {key.removeprefix(_META): value for key, value in told.items() if key.startswith(_META)}
        if told and footer.num_rows and int(told["schema_version"]) <= SCHEMA_VERSION:
            first, last = int(told["first_ordinal"]), int(told["last_ordinal"])
            yield _File(str(path), told["lane"], told["writer"], first, last)


def differences(report: Path, database: Path) -> list[str]:
    """By table, how many rows have a cell that is another one, or are missing, with an example."""
    engine = duckdb.connect(str(database), read_only=True)
    engine.execute("set timezone = 'UTC'")
    found = []
    for name, how in COMPARED.items():
        folders = f"{_escaped(str(report / name))}/{how.folders}"
        same = " and ".join(f'o."{each}" is not distinct from d."{each}"' for each in how.key)
        faults = [f'o."{each}" is distinct from d."{each}"' for each in how.exact]
        faults += [f'json(o."{each}") is distinct from json(d."{each}")' for each in how.as_json]
        faults += [
            _is_far(each, 1, 1e-9) if each == "busy_us" else _is_far(each, 1e-6, 1e-6) for each in how.near
        ]
        if how.has_percentiles:
            faults += [_is_off(stage, percent) for stage in STAGES for percent in (50, 95, 99)]
        is_missing = f'o."{how.key[0]}" is null or d."{how.key[0]}" is null'
        condition = " or ".join(f"coalesce({each}, false)" for each in [is_missing, *faults])
        of_folders = "true, hive_types = {'lane': varchar}" if how.folders == "*/*/" else "false"
        ours = f"read_parquet('{folders}*.parquet', hive_partitioning = {of_folders})"
        query = f"from {ours} o full join {name} d on {same} where {condition}"
        counted = engine.execute(f"select count(*) {query}").fetchone()
        if counted is not None and counted[0]:
            row = engine.execute(f"select o, d {query} limit 1").fetchone()
            found.append(f"{name}: {counted[0]} rows differ, as {str(row)[:1_000]}")
    return found


def violation_differences(report: Path, database: Path) -> list[str]:
    """Which hand-overs only one of both says to have broken a rule, among those of which SQL says anything.
    Adds tables to the database."""
    engine = duckdb.connect(str(database))
    engine.execute(_sql("violations.sql"))
    engine.execute(f"""
        create temp view told as
        from read_parquet('{_escaped(str(report))}/violations/*.parquet', hive_partitioning = false)
    """)
    key = "using (lane, rule, incarnation, seq)"
    # Of hand-overs without times, or against one that has no end, SQL says nothing.
    certain = """
        lane not in (from handing_over) and other_outcome <> 'open'
        and dispatched_at is not null and other_dispatched_at is not null
    """
    found = [f"not told: {row}" for row in engine.execute(f"from violations anti join told {key}").fetchall()]
    others = engine.execute(
        f"select lane, rule, incarnation, seq from told anti join violations {key} where {certain}"
    )
    found += [f"told, and none: {row}" for row in others.fetchall()]
    engine.close()
    return found


def _sql(name: str) -> str:
    return (Path(__file__).parent / name).read_text()


def _escaped(text: str) -> str:
    return text.replace("'", "''")


def _is_far(name: str, least: float, share: float) -> str:
    """Whether numbers differ by more than the least difference and this share of them."""
    ours, theirs = f'o."{name}"', f'd."{name}"'
    far = f"abs({ours} - {theirs}) > {least} + {share} * abs({theirs})"
    return f"({ours} is null) <> ({theirs} is null) or {far}"


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
