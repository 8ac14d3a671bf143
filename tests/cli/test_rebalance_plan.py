"""`dispatcher rebalance --plan`: what is sent of a plan, what is shown, and what is refused before."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.pipeline.plan_file import PlanFile, PlannedMove, write_plan
from tests.cli.conftest import Responder, Run

MOVED = {"group": "g0", "from": "c-1", "to": "c-2", "waits_for": 3}
ANSWER = {
    "groups": 1, "moves": [MOVED], "applied": True, "pause": "group",
    "skipped": {"consumer c-9 is not there": 2, "is pinned": 1},
    "skipped_groups": [
        {"group": "a", "why": "consumer c-9 is not there"}, {"group": "b", "why": "is pinned"},
        {"group": "c", "why": "consumer c-9 is not there"},
    ],
}  # fmt: skip


def plan(folder: Path, count: int = 2, **values: Any) -> str:
    moves = [PlannedMove(f"g{number}", "c-1" if number else None, "c-2") for number in range(count)]
    write_plan(folder / "plan.json", {}, PlanFile("orders", 64, datetime.now(UTC), moves)._replace(**values))
    return str(folder / "plan.json")


def test_a_plan_travels_and_what_was_skipped_is_listed(
    run: Run, responder: Responder, tmp_path: Path
) -> None:
    responder.answer = ANSWER
    result = run("rebalance", "orders", "--plan", plan(tmp_path), "--pause", "lane", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    (received,) = responder.received
    assert (received.name, received.arguments) == ("rebalance.plan", {
        "moves": [["g0", None, "c-2"], ["g1", "c-1", "c-2"]], "buckets": 64, "pause": "lane", "dry_run": True,
    })  # fmt: skip
    *_, table, gone, pinned, last = result.stdout.splitlines()
    assert table.split() == ["g0", "c-1", "c-2", "3"]
    assert gone == "skipped, consumer c-9 is not there: 2 groups (a, c)"
    assert pinned == "skipped, is pinned: 1 group (b)"
    assert last == "1 group would move, 3 skipped"


def test_a_long_plan_is_several_commands(run: Run, responder: Responder, tmp_path: Path) -> None:
    responder.answer = ANSWER | {"moves": [MOVED] * 60, "skipped_groups": []}
    result = run("rebalance", "orders", "--plan", plan(tmp_path, 1_100), "--json")
    sent = [command.arguments["moves"] for command in responder.received]
    assert [len(moves) for moves in sent] == [500, 500, 100]
    assert [move[0] for moves in sent for move in moves] == [f"g{number}" for number in range(1_100)]
    assert len({command.uuid for command in responder.received}) == 3
    found = json.loads(result.stdout)
    assert (found["groups"], len(found["moves"])) == (3, 100)
    assert found["skipped"] == {"consumer c-9 is not there": 6, "is pinned": 3}


def test_a_refusal_half_way_says_how_far_it_came(run: Run, responder: Responder, tmp_path: Path) -> None:
    responder.answers, responder.answer = [ANSWER], "all groups are being reset"
    result = run("rebalance", "orders", "--plan", plan(tmp_path, 600))
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "all groups are being reset; 500 of 600 moves were looked at before: apply the plan again, moves "
        "that are done are skipped\n"
    )


def test_a_plan_without_moves_is_asked_about(run: Run, responder: Responder, tmp_path: Path) -> None:
    responder.answer = "groups of a sequenced lane have no lasting owner: there is nothing to rebalance"
    result = run("rebalance", "orders", "--plan", plan(tmp_path, 0))
    assert (result.exit_code, len(responder.received)) == (1, 1)
    assert "no lasting owner" in result.stderr


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lane": "bills"}, "is a plan for lane bills, not for orders"),
        ({"until": datetime.now(UTC) - timedelta(hours=25)}, "more than 24 h ago: run the pipeline and plan"),
    ],
)
def test_a_plan_that_can_not_be_meant_moves_nothing(
    run: Run, responder: Responder, tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    result = run("rebalance", "orders", "--plan", plan(tmp_path, **values))
    assert (result.exit_code, responder.received) == (1, [])
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_is_no_plan_moves_nothing(run: Run, responder: Responder, tmp_path: Path) -> None:
    file = tmp_path / "cost_model.json"
    file.write_text('{"version": 1, "lanes": {}}')
    result = run("rebalance", "orders", "--plan", str(file))
    assert (result.exit_code, responder.received) == (1, [])
    assert f"{file}: is not a plan: `dispatcher pipeline plan` writes one" in result.stderr
    missing = run("rebalance", "orders", "--plan", str(tmp_path / "none.json"))
    assert "none.json: can't be read: No such file or directory" in missing.stderr


@pytest.mark.parametrize("option", [["--reset"], ["--group", "g"], ["--group", "g", "--to", "c-1"]], ids=str)
def test_a_plan_goes_with_no_other_choice_of_groups(run: Run, tmp_path: Path, option: list[str]) -> None:
    result = run("rebalance", "orders", "--plan", plan(tmp_path), *option)
    assert result.exit_code == 2
    assert "does not go with --reset, --group or --to" in " ".join(result.output.replace("│", "").split())
