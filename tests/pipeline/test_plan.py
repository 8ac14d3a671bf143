"""Plans of groups over consumers, from a report of which the work is known exactly."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.owners import Holder, LastOwner, MessageOrigin, Owner, owned
from dispatcher.pipeline.plan import Cell, Planned, PlannedLane, Wishes, plan, plan_file
from dispatcher.pipeline.plan_file import PlannedMove, read_plan
from dispatcher.pipeline.planning import WrittenPlan, look_at, make_plan
from tests.pipeline import planted_owners
from tests.pipeline.conftest import Everything, Report
from tests.pipeline.planted_skew import FAST, GONE, GROUPS, IDLE, LANE, SLOW, SPEEDS, cost_us


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@pytest.fixture
def report(everything: Everything, tmp_path: Path) -> Report:
    """A copy, which gets a plan."""
    shutil.copytree(everything.report.folder, tmp_path / "report")
    return Report(tmp_path / "report", everything.report.summary)


class Made(NamedTuple):
    """A report with the plan of a lane, the plan's file, and what was said of it."""

    report: Report
    file: Path
    outcome: WrittenPlan

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in self.report.rows("plan") if row["lane"] == LANE]


@pytest.fixture(scope="module")
def plan_of_lane(
    spark: SparkSession, everything: Everything, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """With no wishes. Tests may add plans of other lanes."""
    folder = tmp_path_factory.mktemp("planned")
    shutil.copytree(everything.report.folder, folder / "report")
    report = Report(folder / "report", everything.report.summary)
    return Made(report, folder / "plan.json", made(spark, report))


def made(spark: SparkSession, report: Report, lane: str = LANE, **wishes: Any) -> WrittenPlan:
    output = report.folder.parent / "plan.json"
    return make_plan(spark, report.folder, lane, Wishes(**wishes), output, _stage)


def test_work_is_what_consumers_were_busy_with(plan_of_lane: Made) -> None:
    """Not how long they had it in hand: five times as long."""
    facts = plan_of_lane.outcome.facts
    speeds = {each["consumer"]: each["speed"] for each in facts["consumers"]}
    assert speeds == {f"c-{name}": round(SPEEDS[name], 3) for name in (SLOW, FAST, IDLE)}
    rows = {row["group"]: row for row in plan_of_lane.rows()}
    assert {group: row["cost_us"] for group, row in rows.items()} == {
        group: pytest.approx(cost_us(group), abs=1) for groups in GROUPS.values() for group in groups
    }
    assert {(row["from_consumer"], group) for group, row in rows.items()} == {
        (None if name == GONE else f"c-{name}", group) for name, groups in GROUPS.items() for group in groups
    }


def test_the_plan_is_even_and_the_file_has_what_changes(plan_of_lane: Made) -> None:
    facts, rows = plan_of_lane.outcome.facts, plan_of_lane.rows()
    busy = dict.fromkeys((SLOW, FAST, IDLE), 0.0)
    for row in rows:
        busy[row["to_consumer"].removeprefix("c-")] += cost_us(row["group"])
    times = [round(busy[name] / SPEEDS[name]) for name in busy]
    assert max(times) == pytest.approx(facts["makespan_us"]["planned"], abs=1)
    assert facts["makespan_us"]["now"] == 2_000_000  # slow: 200 messages of 10 ms
    total = sum(cost_us(group) for groups in GROUPS.values() for group in groups)
    even = total / (SPEEDS[SLOW] + SPEEDS[FAST] + SPEEDS[IDLE])
    assert facts["makespan_us"]["lower_bound"] == pytest.approx(even, abs=1)
    assert facts["lower_bound_is"] == "all of it shared out evenly"
    assert facts["makespan_us"]["planned"] <= even * 1.1
    for each in facts["consumers"]:  # the page adds up what the command prints
        for side, column in (("now", "from_consumer"), ("planned", "to_consumer")):
            of_it = [row[f"{side}_us"] for row in rows if row[column] == each["consumer"]]
            assert sum(of_it) == pytest.approx(each[f"{side}_us"], abs=len(of_it) + 1)
    plan = read_plan(plan_of_lane.file)
    changed = {row["group"]: row for row in rows if row["moves"]}
    assert {move.group: move for move in plan.moves} == {
        group: PlannedMove(group, row["from_consumer"], row["to_consumer"]) for group, row in changed.items()
    }
    assert [facts["groups_given"], facts["groups_moved"]] == [1, len(changed) - 1]
    assert (plan.lane, plan.buckets) == (LANE, None)
    assert plan.until == datetime(2026, 11, 22, 23, 59, 52, tzinfo=UTC)


def test_it_may_be_for_certain_consumers_and_so_many_moves(spark: SparkSession, report: Report) -> None:
    consumers = [f"c-{SLOW}", f"c-{FAST}"]
    assert made(spark, report, consumers=consumers, moves_max=0).facts["groups_moved"] == 0
    assert {row["to_consumer"] for row in report.rows("plan")} == set(consumers)
    alone = made(spark, report, consumers=[f"c-{IDLE}"], equal_speeds=True).facts
    assert (alone["groups_moved"], {each["speed"] for each in alone["consumers"]}) == (7, {1.0})
    with pytest.raises(ConfigurationError, match=r"^lane skew: 7 groups belong to consumers that take no"):
        made(spark, report, consumers=[f"c-{IDLE}"], moves_max=6)
    with pytest.raises(ConfigurationError, match=r"--consumer c-x: lane skew has no such consumer .*c-idle"):
        made(spark, report, consumers=["c-x"])


def test_plans_of_several_lanes_stand_beside_each_other(spark: SparkSession, plan_of_lane: Made) -> None:
    """And each replaces that of its own lane alone."""
    before = plan_of_lane.rows()
    made(spark, plan_of_lane.report, "traffic", consumers=["c-i0", "c-i1"])
    assert {row["lane"] for row in plan_of_lane.report.rows("plan")} == {LANE, "traffic"}
    assert plan_of_lane.rows() == before


def test_owners_are_those_that_the_ledger_told_of_last(spark: SparkSession, report: Report) -> None:
    """Moved without a hand-over since, closed, closed and gone on, nobody's any more."""
    assert made(spark, report, planted_owners.LANE).facts["groups_pinned"] == 1
    rows = {row["group"]: row for row in report.rows("plan")}
    assert {group: row["from_consumer"] for group, row in rows.items()} == planted_owners.OWNERS
    assert all(row["to_consumer"] in ("c-a", "c-b") for row in rows.values())
    assert rows["pinned"]["to_consumer"] == "c-b"


def test_what_can_not_be_planned_is_said(spark: SparkSession, report: Report, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^lane traffic: no consumer is there at the end"):
        made(spark, report, "traffic")
    with pytest.raises(ConfigurationError, match=r"report: has several lanes \(.*traffic.*name one with"):
        look_at(report.folder, None)
    with pytest.raises(ConfigurationError, match=r"has nothing of a lane 'orderz' \(it has "):
        look_at(report.folder, "orderz")
    shutil.rmtree(report.folder / "incarnations")
    with pytest.raises(ConfigurationError, match="has no table incarnations: it was made by another version"):
        made(spark, report)
    (report.folder / "summary.json").unlink()
    with pytest.raises(ConfigurationError, match=r"is no finished report: it has no summary\.json"):
        look_at(report.folder, None)


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", "plan", *arguments])
    assert result.exit_code in (1, 2)
    return " ".join((result.output or str(result.exception)).replace("│", "").split())


def test_the_command_refuses_before_spark_starts(tmp_path: Path) -> None:
    assert "is a directory: name the file" in command("--report", "r", "--output", str(tmp_path))
    assert "there is no directory" in command(
        "--report", "r", "--output", str(tmp_path / "none" / "plan.json")
    )
    said = command("--report", str(tmp_path), "--output", str(tmp_path / "plan.json"))
    assert "is no finished report" in said
    (tmp_path / "summary.json").write_text('{"lanes": {"orders": {"hand_overs": 0}}}')
    said = command("--report", str(tmp_path), "--output", str(tmp_path / "plan.json"))
    assert "lane orders: the report has no hand-overs of it" in said
    (tmp_path / "summary.json").write_text("{")
    assert "is damaged: run the pipeline again" in command("--report", str(tmp_path), "--output", "plan.json")


def test_a_damaged_report_is_named(spark: SparkSession, report: Report) -> None:
    for file in (report.folder / "hand_overs").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:100] + b"x" * 50)
    with pytest.raises(ConfigurationError, match=r"/report/hand_overs/\S+: can't be read: it is damaged"):
        made(spark, report)


def test_the_command_shows_the_plan_and_writes_it(
    spark: SparkSession, report: Report, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    command = ["pipeline", "plan", "--report", str(report.folder), "--lane", LANE, "--output", str(plan)]
    found = CliRunner().invoke(app, command)  # in the session that all tests share
    assert found.exit_code == 0, found.output
    stages = [line.partition(":")[0] for line in found.stderr.splitlines()]
    assert stages == ["reading costs", "assignment", "writing"]
    lines = found.stdout.splitlines()
    slow = next(line for line in lines if line.startswith("c-slow")).split()
    assert slow[:3] == ["c-slow", "0.751", "2.000"]
    assert "The busiest consumer had 2.000 s of work, and has " in found.stdout
    assert "(all of it shared out evenly)." in found.stdout
    assert "1 group without an owner gets one." in found.stdout
    moved = sum(move.owner is not None for move in read_plan(plan).moves)
    assert lines[-1].startswith(f"{moved} groups of 8 move: `dispatcher rebalance skew --plan {plan}`")


# -- without Spark --


def lane(**values: Any) -> PlannedLane:
    present = {"a-1": True, "b-1": True}
    return PlannedLane("orders", "exclusive", None, False, present, {"a-1": "a", "b-1": "b"})._replace(
        **values
    )


def planned(
    of: PlannedLane, groups: dict[str, int], owner: str = "a", pins: dict[str, str] | None = None
) -> Planned:
    """All groups are of one consumer; a message takes a second."""
    told = [
        LastOwner(group, Owner(None, None), None, 0, MessageOrigin(None, None, None), name)
        for group, name in (pins or {}).items()
    ]
    cells = [Cell(group, owner, n * 1e6, n * 1e6, n) for group, n in groups.items()]
    holders = [held(group, owner, place + 1) for place, group in enumerate(groups)]
    return plan(of, cells, holders, told, Wishes())


def held(group: str, owner: str, epoch: int) -> Holder:
    return Holder(group, owner, f"{owner}-1", epoch, 14, epoch * 1_000, MessageOrigin("in", 7, epoch))


def test_only_owners_that_last_can_be_planned() -> None:
    with pytest.raises(ConfigurationError, match=r"^lane orders: is sequenced: only groups of an exclusive"):
        planned(lane(policy="sequenced"), {"g": 1})
    with pytest.raises(ConfigurationError, match=r"^lane orders: hands over"):
        planned(lane(hands_over=True), {"g": 1})
    with pytest.raises(ConfigurationError, match=r"^lane orders: the report has no hand-overs of groups"):
        planned(lane(), {})


def test_pinned_groups_stay_and_what_they_cost_counts() -> None:
    groups = {"hot": 5, "warm": 4, "g": 3, "h": 2}
    found = planned(lane(), groups, pins={"hot": "a", "warm": "a"})
    assert dict(zip([unit.name for unit in found.units], found.targets, strict=True)) == {
        "hot": "a", "warm": "a", "g": "b", "h": "b",
    }  # fmt: skip
    assert (found.moves, found.given, found.pinned) == (2, 0, 2)
    assert found.makespan_us == {"now": 14e6, "planned": 9e6, "lower_bound": 9e6}
    assert found.bound_by == "the groups pinned to a"
    moved = plan_file(lane(), found, datetime(2026, 11, 22, tzinfo=UTC)).moves
    assert [move.group for move in moved] == ["g", "h"]
    # Where it waits for a consumer that takes no part it is nobody else's; with all of them there is no plan.
    found = planned(lane(), {"hot": 5, "g": 1}, pins={"hot": "gone"})
    assert dict(zip([unit.name for unit in found.units], found.targets, strict=True))["hot"] == "a"
    alone = planned(lane(), groups, pins=dict.fromkeys(groups, "a"))
    assert (alone.moves, alone.pinned) == (0, 4)


def test_in_a_lane_with_buckets_buckets_move() -> None:
    groups = {"a": 5, "%FF%00": 4, "c+d": 3, "ü": 2}
    ids = [b"a", b"\xff\x00", b"c+d", "ü".encode()]
    names = {f"bucket:{crc32(each) % 3}/3" for each in ids}
    found = planned(lane(buckets=3), groups)
    assert {unit.name for unit in found.units} == names
    assert sum(unit.cost_us for unit in found.units) == pytest.approx(14e6)


def test_of_a_bucket_its_own_record_or_a_later_hand_over_says_whose_it_is() -> None:
    unit = f"bucket:{crc32(b'g') % 3}/3"
    nothing, holders = MessageOrigin(None, None, None), [held("g", "a", 5)]
    for told, expected in [
        (LastOwner(unit, Owner("b", "b-1"), 14, 5_000, nothing), Owner("b", "b-1")),
        (LastOwner(unit, Owner("b", "b-1"), 14, 4_999, nothing), Owner("a", "a-1")),
        (LastOwner(unit, Owner("b", "b-1"), 16, 1, nothing), Owner("b", "b-1")),
        (LastOwner("g", Owner("b", "b-1"), 16, 1, nothing), Owner("a", "a-1")),
        (LastOwner(unit, Owner(None, None), 14, 6_000, MessageOrigin("in", 7, 5)), Owner(None, None)),
    ]:
        assert owned(holders, [told], 3) == {unit: expected}
    told = LastOwner("g", Owner(None, None), 14, 6_000, MessageOrigin("in", 7, 5))
    with pytest.raises(ConfigurationError, match=r"^lane orders: all groups of the report were closed"):
        plan(lane(), [Cell("g", "a", 1.0, 1.0, 1)], holders, [told], Wishes())


def test_without_the_options_the_lane_is_taken_for_an_exclusive_one() -> None:
    """Their record may have been deleted with the oldest files; consumers that came before are there too."""
    found = planned(lane(policy=None, is_present={}, consumers={}), {"g": 1, "h": 1})
    assert [unit.owner for unit in found.units] == ["a", "a"]
    assert found.moves == 0


def test_the_bound_may_be_one_group() -> None:
    found = planned(lane(), {"hot": 10, "g": 1, "h": 2})
    assert found.bound_by == "group hot alone"
    assert found.makespan_us == {"now": 13e6, "planned": 10e6, "lower_bound": 10e6}
    assert (found.moves, found.given) == (1, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no JSON", "is not a plan"),
        ("[]", "is not a plan"),
        ('{"version": 1, "lanes": {}}', "is not a plan"),
        ('{"kind": "dispatcher plan", "version": 2}', "is a plan of version 2, and this dispatcher knows"),
        ('{"kind": "dispatcher plan", "version": 1, "lane": "orders"}', "is a damaged plan"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "change",
    [
        {"lane": 7}, {"buckets": True}, {"until": "2026-11-22T00:00:00"}, {"until": "yesterday"},
        {"moves": [{"group": "g", "from": "a"}]}, {"moves": [{"group": "g", "from": "a", "to": None}]},
        {"moves": [{"group": "g", "from": "a", "to": "b"}] * 2}, {"moves": "all"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_plan_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    whole = {
        "kind": "dispatcher plan", "version": 1, "lane": "orders", "buckets": None,
        "until": "2026-11-22T00:00:00+00:00", "moves": [{"group": "g", "from": None, "to": "b"}],
    }  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(whole))
    assert read_plan(file).moves == [PlannedMove("g", None, "b")]
    file.write_text(json.dumps(whole | change))
    with pytest.raises(ConfigurationError, match="is a damaged plan: make it again"):
        read_plan(file)


def test_a_group_that_was_never_closed_stays_after_a_hand_over_without_a_place() -> None:
    nothing = MessageOrigin(None, None, None)
    holder = held("g", "a", 5)._replace(message=nothing)
    told = LastOwner("g", Owner(None, None), 14, 6_000, nothing)
    assert owned([holder], [told], None) == {"g": Owner(None, None)}
