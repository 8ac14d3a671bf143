"""What a run leaves behind: tables on the screen, a plot, a JSON file with the counts."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import Happened
from tests.chaos.plan import ON_CLUSTER, STREAMS, Plan
from tests.chaos.verdict import LaneVerdict, Verdict, lives_of

VIOLATIONS_SHOWN_MAX = 12
#: One colour per stream of faults.
COLOURS = {
    "dispatcher": "tab:blue", "consumer": "tab:green", "stuck": "tab:brown", "producer": "tab:gray",
    "operator": "tab:purple", "operations": "tab:pink", "decisions": "tab:olive",
    "configuration": "tab:cyan", "redis": "tab:orange", "broker": "tab:red", "node": "tab:red",
    "upkeep": "tab:red",
}  # fmt: skip
_STREAM_OF = {
    kind.name: name for streams in (STREAMS, ON_CLUSTER) for name, stream in streams.items()
    for kind in stream.kinds
}  # fmt: skip


class Report:
    """One run, told in three ways."""

    def __init__(self, seed: int, plan: Plan, begun: float, happened: list[Happened], verdict: Verdict):
        self._seed = seed
        self._plan = plan
        self._begun = begun  # of the chaos, on CLOCK_MONOTONIC
        self._happened = happened
        self._verdict = verdict

    def as_dict(self) -> dict[str, Any]:
        verdict = self._verdict
        return {
            "seed": self._seed,
            "settings": asdict(self._plan.settings),
            "lanes": {lane.lane.name: {"policy": lane.lane.policy, **lane.counts} for lane in verdict.lanes},
            "drained_s": round(verdict.drained_s, 2),
            "fault_counts": dict(sorted(self._fault_counts().items())),
            "stalls_s": {lane.lane.name: _stalls(lane) for lane in verdict.lanes if lane.stalls},
            "without_leader": verdict.without_leader,
            "violations": verdict.violations,
            "excused": verdict.excused,
            "unplanned_promotions": verdict.unplanned,
            "faults": [happened.as_dict() for happened in self._happened],
        }

    def write(self, folder: Path) -> None:
        """chaos.json and chaos.png."""
        (folder / "chaos.json").write_text(json.dumps(self.as_dict(), indent=2) + "\n")
        self._plot(folder / "chaos.png")

    def show(self, console: Console) -> None:
        """Counts, then what was violated with the whole lives of the messages concerned."""
        lanes = self._verdict.lanes
        counts = Table(title=f"Chaos, seed {self._seed}")
        counts.add_column("")
        for lane in lanes:
            counts.add_column(f"{lane.lane.name} ({lane.lane.policy})", justify="right")
        for name in lanes[0].counts:
            counts.add_row(name, *(f"{lane.counts[name]:,}" for lane in lanes))
        counts.add_section()
        counts.add_row("violations", *(_zero(len(lane.violations)) for lane in lanes))
        console.print(counts)
        faults = Table("fault", "times", title="Faults")
        for name, count in sorted(self._fault_counts().items()):
            faults.add_row(name, str(count))
        console.print(faults)
        self._show_stalls(console)
        self._show_violations(console)

    def _show_stalls(self, console: Console) -> None:
        """How long each lane stood still after what was done to a node."""
        lanes = [lane for lane in self._verdict.lanes if lane.stalls]
        if not lanes:
            return
        stalls = Table(
            title="Longest wait for a message to be settled after a fault, in seconds: median, longest"
        )
        stalls.add_column("")
        for lane in lanes:
            stalls.add_column(lane.lane.name, justify="right")
        of_lanes = [_stalls(lane) for lane in lanes]
        for name in sorted({name for one in of_lanes for name in one}):
            stalls.add_row(name, *(_median_and_longest(one.get(name, [])) for one in of_lanes))
        console.print(stalls)

    def _show_violations(self, console: Console) -> None:
        verdict = self._verdict
        if verdict.without_leader:
            text = f"RabbitMQ has left queues without a leader: {', '.join(verdict.without_leader)}"
            console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
        for text in verdict.problems:
            console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
        for lane in verdict.lanes:
            for text in sorted(lane.violations)[:VIOLATIONS_SHOWN_MAX]:
                line = f"{lane.lane.name}: {text}"
                console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
            for life in lives_of(lane):
                console.print(f"  {life}", highlight=False, markup=False, soft_wrap=True)
        if verdict.violations:
            found = f"{len(verdict.violations)} violations"
            since = f"the chaos began at {self._begun:.3f}"
            console.print(f"{found}; {since} on the clock of the record.", style="red", highlight=False)
            if verdict.unplanned:
                text = f"Redis has changed its primary {verdict.unplanned} times without a fault: no verdict."
                console.print(text, style="red", highlight=False, soft_wrap=True)
        elif verdict.hides_something:
            excused = f"{len(verdict.excused)} violations that say that something is missing or late"
            text = f"What happened was right; {excused} are not judged."
            console.print(text, style="red", highlight=False, soft_wrap=True)
        elif verdict.is_unhurt:
            text = "What happened was right; each fault of a node was skipped, so there is no verdict."
            console.print(text, style="red", highlight=False, soft_wrap=True)
        else:
            console.print(f"Everything held; drained in {verdict.drained_s:.1f} s.", style="green")

    def _fault_counts(self) -> Counter[str]:
        return Counter(h.fault for h in self._happened if not h.note.startswith("skipped"))

    def _plot(self, path: Path) -> None:
        # Only here: it takes a second to load.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(14, 7), layout="constrained")
        rates, faults = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        for lane in self._verdict.lanes:
            ended = [h.end for h in lane.evidence.handlings if h.end is not None]
            rates.plot(*self._per_second(ended), label=f"{lane.lane.name}: handled")
            published = lane.evidence.confirmed.values()
            rates.plot(*self._per_second(published), linestyle=":", label=f"{lane.lane.name}: published")
        rates.set_ylabel("messages per second")
        rates.legend(loc="upper right")
        rates.set_title(f"Chaos, seed {self._seed}: {len(self._verdict.violations)} violations")
        for place, (stream, colour) in enumerate(COLOURS.items()):
            mine = [h for h in self._happened if _STREAM_OF[h.fault] == stream]
            bars = [(h.since_s, max(h.until_s - h.since_s, 0.2)) for h in mine]
            faults.broken_barh(bars, (place - 0.4, 0.8), color=colour, alpha=0.6)
            for h in mine:
                if stream in ("broker", "node", "upkeep"):
                    rates.axvspan(h.since_s, h.until_s, color=colour, alpha=0.12)
        faults.set_yticks(range(len(COLOURS)), list(COLOURS))
        faults.set_xlabel("seconds")
        faults.set_ylabel("faults")
        figure.savefig(path, dpi=110)

    def _per_second(self, times: Iterable[float]) -> tuple[list[int], list[int]]:
        counts = Counter(int(at - self._begun) for at in times)
        if not counts:
            return [], []
        seconds = list(range(min(counts), max(counts) + 1))
        return seconds, [counts[second] for second in seconds]


def _stalls(lane: LaneVerdict) -> dict[str, list[float]]:
    """By the kind of the fault, in the order of their times."""
    found: dict[str, list[float]] = {}
    for one in lane.stalls:
        found.setdefault(one.fault.name, []).append(round(one.lasted_s, 2))
    return found


def _median_and_longest(times_s: list[float]) -> str:
    return f"{statistics.median(times_s):.1f}, {max(times_s):.1f}" if times_s else ""


def _zero(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"


def stamp() -> str:
    """The name of a folder of reports."""
    return time.strftime("%Y%m%d-%H%M%S")
