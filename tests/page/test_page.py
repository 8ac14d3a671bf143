"""The page of a report: everything that somebody else named is text in it, what is not known is said, and it
stays small however much there is."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from tests.page.reports import HOSTILE, LANE, add_advice, add_plan, write_report

#: Of the page, whatever the ledger has (docs/pipeline.md).
PAGE_BYTES_MAX = 3 << 20


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pipeline", "report", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def page(report: Path) -> str:
    code, output = command("--report", str(report))
    assert code == 0, output
    assert output == f"Report: {report}/report.html"
    return (report / "report.html").read_text()


def test_names_are_text(tmp_path: Path) -> None:
    text = page(write_report(tmp_path / "report", verdict="violated", violations=2, unknown=3, gaps=1))
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("</style>") == 1
    assert "&lt;script&gt;document.title" in text
    assert "{{ 7 * 7 }}" in text
    for name in ("<i>", "<b>", "<u>", "<s>", "<1>", "<file>", "<remark>"):
        assert name not in text
    assert "x" * 200 not in text
    assert "… (10,000 characters)" in text


def test_the_verdict_is_the_first_thing_with_its_evidence(tmp_path: Path) -> None:
    text = page(write_report(tmp_path / "violated", verdict="violated", violations=60, unknown=3, gaps=1))
    assert text.index("Order was violated") < text.index("<main>")
    assert text.count('<details class="broken"') == 50
    assert "10 more are in the table <code>violations</code>" in text
    assert "VIOLATED in 60 groups (kept in 3, unknown for 3)" in text
    for fact in ("a number &lt;s&gt;is missing", "something &lt;u&gt;no_end", "is empty", "a &lt;remark&gt;"):
        assert fact in text
    kept = page(write_report(tmp_path / "kept"))
    assert "Order was kept" in kept
    assert "75.0 % for others of its group, 25.0 % for its turn." in kept
    assert "Violations</h2>" not in kept
    assert '<span class="pill kept">' in kept
    assert '<span class="pill nothing">nothing to judge</span>' in kept  # of the idle lane
    nothing = page(write_report(tmp_path / "nothing", lanes=0))
    assert "Nothing to judge" in nothing
    assert "Order was kept" not in nothing
    unknown = page(write_report(tmp_path / "unknown", verdict="unknown", unknown=2, gaps=1))
    assert "Unknown: records are missing" in unknown
    assert '<rect class="missing"' in unknown


def test_a_kept_order_is_not_green_beside_what_is_not_well(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")

    def shown(dead: int, wait_us: int) -> str:
        summary = json.loads((report / "summary.json").read_text())
        facts = summary["lanes"][LANE]
        facts["messages"]["dead_lettered"], facts["stages"]["wait_us"][-1] = dead, wait_us
        (report / "summary.json").write_text(json.dumps(summary))
        return page(report).partition("<main>")[0]

    fine = shown(0, 5_000)
    assert '<p class="word kept">' in fine
    assert "Beside that" not in fine
    given_up = shown(1, 5_000)
    assert '<p class="word unknown">' in given_up
    assert "1 message given up (dead-lettered)" in given_up
    slow = shown(0, 49_000_000)
    assert '<p class="word unknown">' in slow
    assert "waited for 49 s or longer, most of all for others of its group (75.0 %)" in slow


def test_a_lane_that_stood_still_is_told_beside_the_verdict(tmp_path: Path) -> None:
    fine = page(write_report(tmp_path / "fine"))
    assert "stood still" not in fine
    still = page(write_report(tmp_path / "still", stalls=60))
    head, _, body = still.partition("<main>")
    assert '<p class="word unknown">' in head
    assert "stood still for 30 s (2026-11-22 11:34:00 to 2026-11-22 11:34:30 UTC)" in head
    assert "up to 190,000 messages waited" in head
    assert "60 times, for 1,800 s together" in head
    assert "left waiting at the end: 4,321 messages" in head
    assert body.count('<td class="n">190,000</td>') == 40
    assert "20 more are in the table <code>stalls</code>" in body


def test_nothing_may_come_from_elsewhere(tmp_path: Path) -> None:
    text = page(write_report(tmp_path / "report"))
    assert "default-src 'none'; style-src 'sha256-" in text
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*|url\(|@import|https?:", text) == []
    assert " style=" not in text


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    text = page(write_report(tmp_path / "report"))
    idle = text[text.index('Lane <bdi class="name">idle') :]
    for sentence in (
        "No hand-over has ended in this time.", "No group was handed over.",
        "No message of a group was settled.",
        "There was no choice between two inbound queues for any second.",
        "No consumer has ended a hand-over.", "No settled message has both a size and a time.",
    ):  # fmt: skip
        assert sentence in idle
        assert sentence not in text[: text.index('Lane <bdi class="name">idle')]


def test_what_was_added_to_a_report_is_shown(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    assert "<code>dispatcher pipeline advise</code> adds that" in page(report)
    assert "<code>dispatcher pipeline plan</code> adds that" in page(report)
    add_advice(report)
    add_plan(report)
    text = page(report)
    busy = text[: text.index('Lane <bdi class="name">idle')]
    assert "adds that" not in busy
    assert "grows without bound" in busy
    assert "expected wait over consumers, 1 to 64; 4 is now; 16 is recommended" in busy
    assert '<circle class="point recommended"' in busy
    assert "Replayed are the busiest 10,000 of 2,000,000 messages: waits, and how busy" in busy
    assert "&lt;policy&gt;" in busy
    assert "3 of 8 groups move to another consumer, and 1 that nobody owns get one." in busy
    assert "The 4 moves with most work" in busy
    assert "<policy>" not in text


def test_a_page_stays_small(tmp_path: Path) -> None:
    groups = tuple(f"{number:03d}{'é' * 500}" for number in range(100))
    report = write_report(
        tmp_path / "report", verdict="violated", lanes=40, groups=groups, violations=500, unknown=500,
        gaps=500, stalls=500,
    )  # fmt: skip
    text = page(report)
    assert len(text.encode()) < PAGE_BYTES_MAX
    assert "12 of 41 lanes are shown in full" in text
    assert "450 more are in the table <code>groups</code>" in text


def test_the_shards_of_a_lane_stand_together_under_its_name(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report", lanes=2, shards=11)
    summary = json.loads((report / "summary.json").read_text())
    lanes = summary["lanes"]
    lanes["spread@3"] |= {"verdict": "unknown", "groups": {"kept": 1, "violated": 0, "unknown": 2}}
    lanes["lane-001"]["hand_overs"] = 2_000
    (report / "summary.json").write_text(json.dumps(summary))
    text = page(report)
    table = text[text.index('<h2 id="lanes">') : text.index("<section")]
    rows = [re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", row)) for row in table.split("<tr>")[2:]]
    shards = [f"spread@{number}" for number in (3, 1, 10, 11, 2, 4, 5, 6, 7, 8, 9)]  # the worst one first
    names = [row.split()[0] for row in rows]
    assert names == ["spread", *shards, "lane-001", "orders", "idle"]
    assert rows[0].split()[1:] == ["11", "shards", "?", "unknown", "11,000", "31", "0", "2"]
    sections = re.findall(r'<h2 id="(lane-\d+)">Lane <bdi class="name">([^<]*)</bdi>', text)
    assert [name.split()[0] for _, name in sections] == [*shards[:-1], "lane-001", "orders"]
    assert re.findall(r'<a href="#(lane-\d+)"><bdi class="name">([^<]*)</bdi>', table) == sections


def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert command("--report", str(missing)) == (
        1, f"dispatcher: {missing}: is no whole report (there is no such directory): make one with "
        "`dispatcher pipeline run`",
    )  # fmt: skip
    report = write_report(tmp_path / "report")
    (report / "hot_groups" / "part-0.parquet").write_bytes(b"not Parquet")
    code, output = command("--report", str(report))
    assert code == 1
    assert output.startswith(f"dispatcher: {report}/hot_groups: can't be read")
    assert not (report / "report.html").exists()
    (report / "hot_groups" / "part-0.parquet").unlink()
    (report / "hot_groups").rmdir()
    assert "has no table hot_groups: it was made by another version" in command("--report", str(report))[1]
    (report / "hot_groups").mkdir()
    (report / "summary.json").write_text(json.dumps({"lanes": []}))
    assert "is not the summary of a report" in command("--report", str(report))[1]
    (report / "summary.json").unlink()
    assert "the run that wrote it did not end" in command("--report", str(report))[1]
    with (report / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "a run writes its report there" in command("--report", str(report))[1]


def test_the_page_may_go_elsewhere(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    code, _ = command("--report", str(report), "--output", str(tmp_path / "page.html"))
    assert code == 0
    assert (tmp_path / "page.html").is_file()
    assert not (report / "report.html").exists()
    code, output = command("--report", str(report), "--output", str(tmp_path / "none" / "page.html"))
    assert (code, output) == (
        1,
        f"dispatcher: {tmp_path}/none/page.html: can't be written: No such file or directory",
    )


@pytest.mark.parametrize("name", [HOSTILE[0], LANE])
def test_hostile_names_are_there(tmp_path: Path, name: str) -> None:
    """Escaped, not dropped."""
    from html import escape

    assert escape(name)[:60] in page(write_report(tmp_path / "report")).replace("&#39;", "&#x27;")
