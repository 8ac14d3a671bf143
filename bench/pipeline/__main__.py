"""How long `dispatcher pipeline run` takes, and whether it finds what is planted: `python -m bench.pipeline`.

A ledger is generated, run over in a process of its own, and deleted. The measure is plain Spark SQL, which
scans the ledger and makes its heaviest single aggregate, once. With --duckdb also DuckDB makes most tables of
the report, by SQL of its own, and every cell is compared. With --hot-share an even ledger is compared with
one in which one group of each lane has that share of its messages.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.dataset as ds

from bench.pipeline import by_duckdb
from bench.pipeline.ledger import LANES, TORN, Made, make_ledger
from bench.pipeline.processes import PROGRAM, Spent, spend
from dispatcher.pipeline.session import heap_mib

#: Limits: of the run's time as a multiple of the measure's, and of time over rows between two sizes.
RATIO_MAX: Final = 14.0
GROWTH_MAX: Final = 1.1
#: Of a ledger with a hot group, as multiples of an even one's.
HOT_TIME_MAX: Final = 1.3
HOT_MEMORY_MAX: Final = 1.15
GROUPS: Final = 100_000


class Measured(NamedTuple):
    """One size."""

    made: Made
    run: Spent
    plain: Spent
    faults: list[str]

    @property
    def ratio(self) -> float:
        return self.run.seconds / self.plain.seconds


def measure(folder: Path, rows: int, planted: int, *, with_duckdb: bool) -> Measured:
    ledger, report = folder / "ledger", folder / "report"
    made = make_ledger(ledger, rows, GROUPS, planted)
    run, faults = _run(ledger, report, made)
    plain = spend([
        sys.executable, "-m", "bench.pipeline.baseline", str(ledger), str(folder / "plain"), str(made.rows),
    ])  # fmt: skip
    _say(f"  one aggregate in plain Spark SQL: {plain.seconds:.1f} s, {plain.cpu_seconds:.0f} of CPU")
    if with_duckdb:
        faults += _compare(ledger, report, folder / "duckdb")
    return Measured(made, run, plain, faults)


def _run(ledger: Path, report: Path, made: Made) -> tuple[Spent, list[str]]:
    """What a run spends, and what is wrong."""
    _say(f"{made.rows:,} rows, {made.bytes / 2**20:,.0f} MiB, {made.days} days")
    # Each run is the first one of its user: none finds Spark's classes in a file, or keeps them at its end.
    run = spend(
        [sys.executable, "-c", PROGRAM, "pipeline", "run", "--input", str(ledger), "--output", str(report)],
        expected=(0, 1), XDG_CACHE_HOME=str(report.parent / "cache"),
    )  # fmt: skip
    if not (report / "summary.json").exists():  # exit code 1 is also that of a violation
        sys.exit(f"the run made no report: {run.words[-2_000:]}")
    _say(
        f"  run: {run.seconds:.1f} s, {run.cpu_seconds:.0f} of CPU, {run.peak_bytes / 2**20:,.0f} MiB "
        f"({run.java.partition('-Xmx')[2].partition(' ')[0]} of it heap): " + run.stderr.replace("\n", "; ")
    )
    faults = [*differences(report, made), *_heap(run, made)]
    _say(f"  {len(made.violations)} planted violations, {sum(made.gaps.values())} planted gaps: "
         + ("; ".join(faults) or "found, and no others"))  # fmt: skip
    return run, faults


def measure_hot(folder: Path, rows: int, planted: int, share: float) -> list[str]:
    """What it costs that one group of each lane has this share of its messages; returns what is wrong, or
    costs too much."""
    spent: list[Spent] = []
    wrong: list[str] = []
    for name, part in ("even", 0.0), ("hot", share):
        made = make_ledger(folder / name / "ledger", rows, GROUPS, planted, hot_share=part)
        _say(f"{name}: {part:.0%} of each lane are one group's" if part else name)
        run, faults = _run(folder / name / "ledger", folder / name / "report", made)
        spent.append(run)
        wrong += faults
    even, hot = spent
    ratios = {
        "time": (hot.seconds / even.seconds, HOT_TIME_MAX),
        "memory": (hot.peak_bytes / even.peak_bytes, HOT_MEMORY_MAX),
    }
    _say(
        f"with a hot group: {ratios['time'][0]:.2f} times the time, "
        f"{hot.cpu_seconds / even.cpu_seconds:.2f} times the CPU time, "
        f"{ratios['memory'][0]:.2f} times the memory"
    )
    return wrong + [
        f"a hot group takes {ratio:.2f} times the {name} (at most {most:g})"
        for name, (ratio, most) in ratios.items() if round(ratio, 2) > most
    ]  # fmt: skip


def _compare(ledger: Path, report: Path, database: Path) -> list[str]:
    """What DuckDB finds otherwise."""
    duckdb = spend([sys.executable, "-m", "bench.pipeline.by_duckdb", str(ledger), str(database)])
    found = by_duckdb.differences(report, database)
    names = ", ".join(by_duckdb.COMPARED)
    spent = f"{duckdb.seconds:.1f} s, {duckdb.cpu_seconds:.0f} of CPU, {duckdb.peak_bytes / 2**20:,.0f} MiB"
    _say(f"  {names} by DuckDB: {spent}: {'; '.join(found) or 'every cell is the same'}")
    return found


def measure_new_day(folder: Path, rows: int, planted: int) -> list[str]:
    """What the last date costs a report that has all others; returns what it says that is wrong."""
    ledger, report, aside = folder / "ledger", folder / "report", folder / "aside"
    made = make_ledger(ledger, rows, GROUPS, planted)
    last = max(each.name for each in ledger.glob("lane=*/date=*"))
    new = list(ledger.glob(f"lane=*/{last}"))
    for each in new:
        (aside / each.parent.name).mkdir(parents=True)
        each.rename(aside / each.parent.name / last)
    run = [sys.executable, "-c", PROGRAM, "pipeline", "run", "--input", str(ledger), "--output"]
    spend([*run, str(report)], expected=(0, 1))
    for each in new:
        (aside / each.parent.name / last).rename(each)
    added = spend([*run, str(report)], expected=(0, 1))
    whole = spend([*run, str(folder / "whole")], expected=(0, 1))
    _say(
        f"{made.rows:,} rows, {made.days} dates: the last date added to a report of the others "
        f"{added.seconds:.1f} s, all from nothing {whole.seconds:.1f} s"
    )
    for name, spent in ("added", added), ("from nothing", whole):
        _say(f"  {name}: " + spent.stderr.replace("\n", "; "))
    return differences(report, made)


def differences(report: Path, made: Made) -> list[str]:
    """What a report says of these lanes otherwise than was planted."""
    summary = json.loads((report / "summary.json").read_text())
    rows = _rows(report, "violations", "lane", "group", "rule", "arrival")
    found = [(row["lane"], row["group"], row["rule"], row["arrival"]) for row in rows]
    faults = [f"{len(found) - len(set(found))} violations are told twice"] * (len(found) != len(set(found)))
    for name, some in (
        ("not found", made.violations - set(found)),
        ("not planted", set(found) - made.violations),
    ):
        if some:
            faults.append(f"{len(some)} violations {name}, as {min(some)}")
    gaps = Counter(
        row["kind"] for row in _rows(report, "gaps", "lane", "kind", "is_boundary") if not row["is_boundary"]
    )
    if gaps != made.gaps:
        faults.append(f"gaps: {dict(gaps)} where {dict(made.gaps)} were planted")
    for lane in LANES:
        facts = summary["lanes"][lane]
        violated = len({group for place, group, *_ in made.violations if place == lane})
        if facts["groups"]["violated"] != violated or bool(facts["groups"]["unknown"]) != (lane == TORN):
            faults.append(f"lane {lane}: {facts['groups']}")
    return faults


def _rows(report: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    found = ds.dataset(report / table).to_table(list(columns), filter=ds.field("lane").isin(list(LANES)))
    return found.to_pylist()  # type: ignore[no-any-return]


def _heap(run: Spent, made: Made) -> list[str]:
    mib = heap_mib(made.rows)
    return [] if f"-Xmx{mib}m" in run.java else [f"the run did not have {mib} MiB of heap"]


def verdicts(all_measured: list[Measured]) -> list[str]:
    """What is over its limit, or wrong."""
    broken = [fault for each in all_measured for fault in each.faults]
    broken += [
        f"{each.made.rows:,} rows: {each.ratio:.2f} times one aggregate in plain Spark SQL (at most "
        f"{RATIO_MAX:g})"
        for each in all_measured if round(each.ratio, 2) > RATIO_MAX
    ]  # fmt: skip
    for less, more in pairwise(all_measured):
        growth = more.run.seconds / less.run.seconds / (more.made.rows / less.made.rows)
        if growth > GROWTH_MAX:
            broken.append(
                f"{more.made.rows:,} rows take {growth:.2f} times as long a row as {less.made.rows:,}"
            )
    return broken


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help="of a ledger; may be repeated (5000000)")
    parser.add_argument("--planted", type=int, default=50, help="violations of each rule and lane (50)")
    parser.add_argument("--duckdb", action="store_true", help="also make the tables with DuckDB, and compare")
    parser.add_argument("--folder", help="where ledger and report are made, and deleted (the system's)")
    parser.add_argument("--new-day", action="store_true", help="what the last date costs, instead")
    parser.add_argument("--hot-share", type=float, help="what a group with this share costs, instead")
    given = parser.parse_args()
    sizes = sorted(given.rows or [5_000_000])
    if sizes[0] < 1 or given.planted < 0:
        parser.error("--rows must be at least 1, --planted at least 0")
    if given.hot_share is not None and not 0 < given.hot_share < 1:
        parser.error("--hot-share must be between 0 and 1")
    found, broken = [], []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-pipeline-", dir=given.folder) as name:
            folder = Path(name)
            try:
                if given.new_day:
                    broken += measure_new_day(folder, rows, given.planted)
                    continue
                if given.hot_share is not None:
                    broken += measure_hot(folder, rows, given.planted, given.hot_share)
                    continue
                found.append(measure(folder, rows, given.planted, with_duckdb=given.duckdb))
            except ValueError as problem:
                parser.error(f"--rows {rows}: {problem}")
    for each in found:
        _say(
            f"{each.made.rows:,} rows: run {each.run.seconds:.1f} s, {each.ratio:.2f} times the "
            f"{each.plain.seconds:.1f} s of one plain aggregate; "
            f"at most {each.run.peak_bytes / 2**20:,.0f} MiB"
        )
    broken += verdicts(found)
    for line in broken:
        print(f"bench.pipeline: {line}", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
