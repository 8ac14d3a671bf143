"""What `dispatcher sim` prints."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatcher.sim.campaign import RunOutcome, run_scenario, run_seeds, shrink
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario

#: Failing seeds that are told in full; of the others only the number.
FAILURES_TOLD: Final = 5
_PROGRESS_EVERY: Final = 500


def run_many(
    seeds: range, messages: int | None, jobs: int | None, *, plants: Sequence[object] = (),
    cluster: bool = False,
) -> int:  # fmt: skip
    """Run them all, with these plants (tests only); returns the exit code."""
    begun_s = time.monotonic()
    failed: list[RunOutcome] = []
    done = sent = virtual_ms = 0
    for outcome in run_seeds(
        seeds, messages=messages, jobs=jobs or os.cpu_count() or 1, plants=plants, cluster=cluster
    ):  # fmt: skip
        done, sent, virtual_ms = done + 1, sent + outcome.messages, virtual_ms + outcome.virtual_ms
        if outcome.problem is not None:
            failed.append(outcome)
            if len(failed) <= FAILURES_TOLD:
                _tell(outcome, cluster=cluster)
        if done % _PROGRESS_EVERY == 0 and done < len(seeds):
            print(f"{done:,} of {len(seeds):,} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    took_s = time.monotonic() - begun_s
    print(
        f"{done:,} seeds, {sent:,} messages, {virtual_ms / 3_600_000:.1f} hours of virtual time in "
        f"{took_s:.0f} s: {len(failed)} failed"
    )
    if failed:
        print("failed:", *sorted(outcome.seed for outcome in failed))
    return 1 if failed else 0


def run_one(
    seed: int, messages: int | None, *, trace: Path | None, shrinks: bool, plants: Sequence[object] = (),
    cluster: bool = False,
) -> int:  # fmt: skip
    """Run one seed, with these plants (tests only); returns the exit code."""
    scenario = make_scenario(seed, messages, cluster=cluster)
    outcome = run_scenario(scenario, plants=plants)
    if outcome.problem is not None and shrinks:
        _tell(outcome, cluster=cluster, events=False)
        scenario = _shrink(scenario, outcome, plants)
        outcome = run_scenario(scenario, plants=plants)
    if trace is not None:
        events = run_scenario(scenario, plants=plants, verbose=True).events
        trace.write_text("\n".join([str(scenario), *events, ""]))
        print(f"{len(events):,} events are in {trace}")
    if outcome.problem is None:
        print(f"seed {seed}: {outcome.messages:,} messages, {outcome.virtual_ms / 1_000:.1f} s: all held")
        return 0
    _tell(outcome, cluster=cluster, events=trace is None)
    return 1


def _shrink(scenario: RunScenario, outcome: RunOutcome, plants: Sequence[object]) -> RunScenario:
    def fails(candidate: RunScenario) -> bool:
        return run_scenario(candidate, plants=plants).checker == outcome.checker

    smallest = shrink(scenario, fails)
    print(
        f"still fails with {len(smallest.messages)} messages, {len(smallest.consumers)} consumers, "
        f"{smallest.dispatchers} dispatchers and these faults:"
    )
    for fault in smallest.faults:
        print(f"  {fault}")
    return smallest


def _tell(outcome: RunOutcome, *, cluster: bool, events: bool = True) -> None:
    print(f"seed {outcome.seed} fails: {outcome.checker}: {outcome.problem}")
    if events:
        print(*outcome.events, sep="\n")
    kind = "--cluster " if cluster else ""
    print(f"again: dispatcher sim {kind}--seed {outcome.seed} --trace FILE", flush=True)
