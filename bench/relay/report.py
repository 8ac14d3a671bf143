"""Medians of all rounds, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.relay.rounds import Latency, Throughput
from dispatcher import form


class Results:
    """Everything measured in a run, by contender."""

    def __init__(self) -> None:
        self.throughputs: dict[str, list[Throughput]] = {}
        self.latencies: dict[str, Latency] = {}

    def add(self, name: str, measured: Throughput) -> None:
        self.throughputs.setdefault(name, []).append(measured)

    def rows(self, shovel: str, automatic: str, baseline: str) -> list[dict[str, Any]]:
        """One row per contender: medians, ratios to the Shovel with either kind of acks, added latency.

        A ratio is the median of the rounds' ratios, and comes with the smallest and the largest of them: a
        machine's speed changes between rounds, and then changes both.
        """
        references = {"to_shovel": self._rates(shovel), "to_shovel_auto": self._rates(automatic)}
        direct = self.latencies.get(baseline)
        names = list(dict.fromkeys([*self.throughputs, *self.latencies]))
        return [self._row(name, references, direct) for name in names]

    def _rates(self, name: str) -> list[float]:
        return [measured.per_second for measured in self.throughputs.get(name, [])]

    def _row(self, name: str, references: dict[str, list[float]], direct: Latency | None) -> dict[str, Any]:
        measured = self.throughputs.get(name, [])
        latency = self.latencies.get(name)
        rates = self._rates(name)
        ratios = {key: [a / b for a, b in zip(rates, than, strict=False)] for key, than in references.items()}
        return {
            "contender": name,
            "messages_per_s": _median(rates),
            **{key: _median(found) for key, found in ratios.items()},
            **{f"{key}_range": [min(found), max(found)] if found else None for key, found in ratios.items()},
            "own_cpu_us": _median([m.own_us for m in measured]),
            "broker_cpu_us": _median([m.broker_us for m in measured]),
            "redis_cpu_us": _median([m.redis_us for m in measured]),
            "p50_ms": latency.p50_ms if latency else None,
            "p99_ms": latency.p99_ms if latency else None,
            "added_p50_ms": latency.p50_ms - direct.p50_ms if latency and direct else None,
            "added_p99_ms": latency.p99_ms - direct.p99_ms if latency and direct else None,
            "own_cpu_us_at_steady_rate": latency.own_us if latency else None,
            "rounds": [asdict(m) for m in measured],
        }


def machine() -> dict[str, Any]:
    """The shape of the machine, without its name."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "cpu": _cpu_model(),
        "python": f"{platform.python_version()} ({'optimised' if _is_optimised() else 'plain'} build)",
        "dispatcher": form(),
    }


def _is_optimised() -> bool:
    """Whether Python was built with the help of a profile, which makes programs faster."""
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


_COLUMNS = (
    ("messages_per_s", "messages/s", ",.0f"), ("to_shovel", "× Shovel", ".2f"),
    ("to_shovel_auto", "× auto", ".2f"), ("own_cpu_us", "own CPU µs", ".1f"),
    ("broker_cpu_us", "broker µs", ".1f"), ("redis_cpu_us", "Redis µs", ".1f"),
    ("p50_ms", "p50 ms", ".2f"), ("p99_ms", "p99 ms", ".2f"),
    ("added_p50_ms", "added p50", ".2f"), ("added_p99_ms", "added p99", ".2f"),
)  # fmt: skip


def print_table(console: Console, rows: list[dict[str, Any]], caption: str) -> None:
    """CPU is per message; latency from publish to arrival at a steady rate."""
    table = Table(caption=caption, caption_justify="left")
    table.add_column("contender")
    for _, title, _ in _COLUMNS:
        table.add_column(title, justify="right")
    for row in rows:
        cells = [_cell(row, key, form) for key, _, form in _COLUMNS]
        table.add_row(row["contender"], *cells)
    console.print(table)


def _cell(row: dict[str, Any], key: str, form: str) -> str:
    if row[key] is None:
        return "–"
    spread = row.get(f"{key}_range")
    low_to_high = f" ({spread[0]:{form}}–{spread[1]:{form}})" if spread and spread[0] != spread[1] else ""
    return format(row[key], form) + low_to_high


def write_json(
    path: Path, shape: dict[str, Any], rows: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    """Everything, for a program to compare."""
    document = {"machine": shape, "options": options, "results": rows}
    path.write_text(json.dumps(document, indent=2) + "\n")
