"""A report on the terminal, and for programs: the same tables as on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.pipeline.page import wording
from dispatcher.pipeline.summary import as_text
from tests.page.reports import HARMLESS, HOSTILE, LANE, add_advice, add_plan, write_report


@pytest.fixture
def report(tmp_path: Path) -> Path:
    made = write_report(tmp_path / "report", verdict="violated", violations=60, unknown=3, gaps=1, stalls=2)
    add_advice(made)
    add_plan(made)
    return made


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pipeline", "report", *arguments])
    return result.exit_code, result.output


def test_a_lane_with_shards_has_a_line_for_all_of_them(tmp_path: Path) -> None:
    made = write_report(tmp_path / "report", shards=2)
    code, text = command("--report", str(made), "--text")
    assert code == 0
    lines = text.splitlines()
    (whole,) = (line for line in lines if line.startswith("Lane spread: kept; 2 shards"))
    assert "2,000 hand-overs; groups: 6 kept, 0 violated, 0 unknown" in whole
    of_each = [lines.index(f"Lane spread@{number}: kept") for number in (1, 2)]
    assert lines.index(whole) < of_each[0] < of_each[1]
    summary = json.loads((made / "summary.json").read_text())
    told = as_text(summary | {"unknown": [], "violations": []}).splitlines()
    heads = [line.partition(":")[0] for line in told if line.startswith("lane spread")]
    assert heads == ["lane spread", "lane spread@1", "lane spread@2"]


def test_all_parts_are_printed_with_the_verdict_last(report: Path) -> None:
    code, text = command("--report", str(report), "--text")
    assert code == 0
    assert not (report / "report.html").exists()
    assert text.splitlines()[-1] == "Verdict: VIOLATED in 60 groups (kept in 3, unknown for 3)"
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "Lane idle: nothing to judge",
        "Wait 1.2 ms 5 ms 40 ms",  # latency by stage
        "Waited for: others of its group 75.0 %, its turn 25.0 %",
        f"beside the verdict: lane {LANE}: 2 messages given up (dead-lettered)",
        "2026-11-22 11:34:00 10.0 500 µs 990 µs 1 ms 1.98 ms 1.5 ms 2.97 ms 2 ms 3.96 ms",
        "2026-11-22 11:34:00 2026-11-22 11:34:30 30 s 190,000 1 400 100",  # when it stood still
        "1 <script>document.title = 'caught'</script> 100 30.0 % 40.0 %",  # hot groups
        "high 3 70.0 % 75.0 % 40 s 0 s",  # shares
        "Shares against weights, Jain's index 0.990",
        "consumer-<0> 200 198 1 1 5 s 40.0",
        "high order<1> 4 KiB 500 1.23 ms 9 µs",  # cost model
        "1 – grows without bound 100.0 %",  # what-if
        "16 352 µs 352 µs 40.0 % recommended",
        "exclusive 1 ms 1 ms 40.0 % now",
        "Planned: 3 of 8 groups move",
        "consumer-<0> 7 4 35 s 20 s",
        "10 more (table violations)",
        f"{LANE} a number <s>is missing</s> 3",
        f"{LANE} gap something <u>no_end</u>",
        "not read: lane=orders/<file>.parquet is empty",
        "remark: a <remark>",
    ):
        assert line in lines, line


def test_a_terminal_is_not_controlled_by_names(report: Path) -> None:
    _, text = command("--report", str(report), "--text")
    assert HARMLESS in text
    assert not any(letter in text for letter in ("\x1b", "\x07"))
    assert "x" * 200 not in text


def test_programs_get_numbers_and_whole_names(report: Path) -> None:
    code, text = command("--report", str(report), "--json")
    assert code == 0
    told: dict[str, Any] = json.loads(text)
    assert told["summary"]["verdict"] == "violated"
    assert len(told["violations"]) == 50
    lane = told["lanes"][LANE]
    assert {each["group"] for each in lane["hot_groups"]} == set(HOSTILE)
    assert lane["timeline"][0]["at"] == "2026-11-22T11:34:00+00:00"
    assert lane["timeline"][0]["wait_p99_us"] == 990
    assert [each["number"] for each in lane["advise"] if each["option"] == "consumers"][:2] == [1.0, 2.0]
    assert lane["plan"]["moved"] == 3
    one = next(each for each in lane["plan"]["consumers"] if each["consumer"] == "consumer-<1>")
    halves = [round((5_000_000 - n) / 2) for n in (1, 3, 5, 7)]
    assert (one["groups_planned"], one["planned"]) == (4, sum(halves))
    assert lane["consumers"][0]["busy_us"] == 5_000_000
    assert told["lanes"]["idle"]["plan"] is None
    histories = {each["group"]: each for each in told["histories"][LANE]}
    assert set(histories) == set(HOSTILE), "those of the hottest, and of the violations, each once"
    assert histories["plain"]["since"] == "2026-11-22T11:34:00+00:00"
    assert len(histories["plain"]["waiting"]) == len(histories["plain"]["holders"][0]["held"]) == 60
    assert {"key", "history"} & told["violations"][0].keys() == set()
    assert [each["waiting"] for each in lane["stalls"]] == [190_000, 190_000]
    assert told["summary"]["lanes"][LANE]["stalls"]["count"] == 2


def test_a_page_is_not_asked_for_at_the_same_time(report: Path) -> None:
    for form in ("--text", "--json"):
        code, text = command("--report", str(report), form, "--output", "page.html")
        assert code == 2
        assert "no page is written" in " ".join(text.replace("│", " ").split())


def test_durations_have_three_digits_and_a_unit() -> None:
    values = (0, 740, 1_234, 59_600, 416_400, 999_700, 6_940_000, 59_990_000)
    shown = [wording.duration(each) for each in values]
    assert shown == ["0 s", "740 µs", "1.23 ms", "59.6 ms", "416 ms", "1 s", "6.94 s", "60 s"]
    spans = [wording.duration(each * 1e6) for each in (60, 200, 3_600, 187_200)]
    assert spans == ["1 min", "3 min 20 s", "1 h", "2 d 4 h"]
    assert wording.duration(None) == "–"
