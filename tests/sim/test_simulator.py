"""The simulator itself: it repeats exactly, shrinks, and says what failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.settings import LaneDefaults, PolicyName
from dispatcher.sim.accepted_options import accepted_options
from dispatcher.sim.campaign import run_scenario, run_seed, shrink
from dispatcher.sim.command import run_many, run_one
from dispatcher.sim.life import Life
from dispatcher.sim.loop import BEGINNING_MS, ProcessLoop, Scheduler
from dispatcher.sim.queues import Stored
from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario
from tests.sim.digests import digest, sent
from tests.sim.plants import PLANTS

PLANT = PLANTS["copies_published_before_the_commit"].plant


def test_a_seed_is_the_same_run_in_every_process(tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("1", "2"):
        trace = tmp_path / hash_seed
        command = [sys.executable, "-m", "dispatcher", "sim", "--seed", "12", "--trace", str(trace)]
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, capture_output=True
        )
        traces.append(trace.read_text())
    assert traces[0] == traces[1]
    assert traces[0].count("\n") > 500


def test_a_failing_run_tells_its_last_events() -> None:
    outcome = run_scenario(make_scenario(1), plants=[PLANT])
    assert outcome.checker == "duplicates"
    assert "before its commit" in (outcome.problem or "")
    assert any(" got " in event for event in outcome.events)  # lines are cut: what was decided may not be


def test_a_failing_run_fails_again_in_every_detail() -> None:
    once, again = (run_scenario(make_scenario(2), plants=[PLANT], verbose=True) for _ in range(2))
    assert once.problem is not None
    assert once == again


def test_the_command_tells_the_failing_seed_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_many(range(1, 3), 20, 1, plants=[PLANT]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("seed 1 fails: duplicates: ")
    assert "again: dispatcher sim --seed 1 --trace FILE" in said
    assert said[-1] == "failed: 1 2"


def test_the_command_shrinks_and_writes_the_smallest_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    assert run_one(1, 40, trace=trace, shrinks=True, plants=[PLANT]) == 1
    assert "still fails with 1 messages, 1 consumers, 1 dispatchers" in capsys.readouterr().out
    scenario, *events = trace.read_text().splitlines()
    assert scenario.startswith("RunScenario(seed=1, ")
    assert any("Dispatched" in event for event in events)


def test_a_failing_run_shrinks() -> None:
    def fails(scenario: RunScenario) -> bool:
        return run_scenario(scenario, plants=[PLANT]).checker == "duplicates"

    smallest = shrink(make_scenario(1), fails)
    assert fails(smallest)
    assert not smallest.faults
    assert len(smallest.messages) < 20
    assert len(smallest.consumers) <= 2


def test_a_killed_process_ends_where_it_waits() -> None:
    """Its wake-up was on its way, so its end found nothing to wake: Python freed it in a later run."""
    process = ProcessLoop(Scheduler(1), "killed")
    answer, gone = process.create_future(), []

    async def ask() -> None:
        try:
            await answer
        finally:
            try:
                await process.create_future()
            finally:
                gone.append("gone")

    task = process.create_task(ask())
    process.scheduler.run(BEGINNING_MS, lambda: False)
    answer.set_result(None)
    process.dead = True
    process.kill([task])
    assert gone == ["gone"]


def test_messages_can_be_chosen() -> None:
    assert run_seed(3, messages=5).messages < 20


def test_the_command_runs_a_range_and_counts() -> None:
    result = CliRunner().invoke(app, ["sim", "--seeds", "1..3", "--messages", "20", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "3 seeds" in result.output
    assert "0 failed" in result.output


def test_the_command_refuses_what_makes_no_sense() -> None:
    assert CliRunner().invoke(app, ["sim", "--seeds", "many"]).exit_code == 2
    assert CliRunner().invoke(app, ["sim", "--shrink"]).exit_code == 2


def test_a_digest_is_that_of_all_that_is_sent() -> None:
    """Equal in every run, and another one where the program does something else."""

    def lines(*plants: object) -> list[bytes]:
        found: list[bytes] = []
        sent(3, found.append, plants)
        return found

    assert {line.split()[1] for line in lines()} == {b"RabbitMQ", b"Redis"}
    assert lines() == lines() != lines(PLANT)
    assert digest(3) == digest(3)


def test_what_a_producer_repeats_counts_as_it_was_stored() -> None:
    """The broker may have the second message alone, which may be of another group."""
    life = Life(1, "in", b"g0", repeated=True, number=27)
    properties = amqp_properties.write(Properties(), {"x-group-id": "g1"})
    life.count_from(Stored(3, b"", b"in", properties, b"1", 1))
    assert (life.group, life.number, life.place) == (b"g1", 0, 3)


def test_no_lane_has_an_option_that_check_would_refuse() -> None:
    drawn = [make_scenario(seed) for seed in range(1, 301)]
    for scenario in drawn:
        for group_map in scenario.group_maps:
            lane = {"policy": PolicyName(scenario.policy), "handover": scenario.hands_over}
            accepted = accepted_options(scenario.options, group_map=group_map, **lane)
            assert accepted == scenario.options, scenario.seed
    default = LaneDefaults.model_fields["steal_after_ms"].default
    sequenced = [each.options["steal_after_ms"] for each in drawn if each.policy == "sequenced"]
    assert set(sequenced) == {default, None}  # it only works with policy: exclusive
