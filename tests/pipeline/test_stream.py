"""A stream finds what the batch run finds, in whatever batches the files come."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import Everything
from tests.pipeline.streams import rows, told, violations_of

#: The fixture is a batch run and a stream, and may share its cores.
pytestmark = pytest.mark.timeout(300)


def test_it_raises_what_the_batch_run_finds_each_once(everything: Everything, caught_up: Path) -> None:
    assert violations_of(caught_up) == told(everything.report.rows("violations"))
    names = [each["id"] for each in rows(caught_up, "alerts")]
    assert len(set(names)) == len(names)


def test_its_gaps_and_bad_files_are_those_of_the_batch_run(everything: Everything, caught_up: Path) -> None:
    names = (
        "lane",
        "kind",
        "is_boundary",
        "writer",
        "first_ordinal",
        "last_ordinal",
        "since",
        "until",
        "text",
    )

    def shown(found: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps([each[name] for name in names], default=str) for each in found)

    gaps = everything.report.rows("gaps")
    assert shown(rows(caught_up, "current/gaps.parquet")) == shown(gaps)
    raised = sorted("/".join(a["id"].split("/")[:4]) for a in rows(caught_up, "alerts") if a["kind"] == "gap")
    real = [gap for gap in gaps if not gap["is_boundary"]]
    assert raised == sorted(f"gap/{gap['lane']}/{gap['kind']}/{gap['writer']}" for gap in real)

    def named(files: list[dict[str, Any]]) -> set[tuple[str, str]]:
        """Bad files, by their path in the ledger."""
        return {
            (each["path"].rpartition("/ledger/")[2], each["problem"]) for each in files if each["problem"]
        }

    bad = named(everything.report.rows("files"))
    assert named(rows(caught_up, "current/files.parquet")) == bad
    assert len([a for a in rows(caught_up, "alerts") if a["kind"] == "file"]) == len(bad)


OUTCOMES = ("settled", "failed", "taken_back")


def test_minutes_and_consumers_count_every_hand_over_once(everything: Everything, caught_up: Path) -> None:
    hands = [each for each in everything.report.rows("hand_overs") if not each["lane"].startswith("readers")]
    by_minute: Counter[tuple[Any, ...]] = Counter()
    by_consumer: Counter[tuple[Any, ...]] = Counter()
    for each in hands:
        if each["outcome"] in OUTCOMES:
            minute = each["ended_at"].replace(second=0, microsecond=0)
            by_minute[each["lane"], each["inbound"], minute, each["outcome"]] += 1
            by_consumer[each["lane"], each["consumer"], each["outcome"]] += 1
        elif each["outcome"] == "open":
            by_consumer[each["lane"], each["consumer"], "in_hand"] += 1
    lanes = {each["lane"] for each in hands}
    minutes = [each for each in rows(caught_up, "current/lane_minutes.parquet") if each["lane"] in lanes]
    found = {(m["lane"], m["inbound"], m["minute"], name): m[name] for m in minutes for name in OUTCOMES}
    assert {key: count for key, count in found.items() if count} == by_minute
    consumers = [each for each in rows(caught_up, "current/consumers.parquet") if each["lane"] in lanes]
    seen = {(c["lane"], c["consumer"], n): c[n] for c in consumers for n in (*OUTCOMES, "in_hand")}
    assert {key: count for key, count in seen.items() if count} == by_consumer


def test_percentiles_are_at_most_a_bucket_too_high(everything: Everything, caught_up: Path) -> None:
    hands = [each for each in everything.report.rows("hand_overs") if each["lane"] == "traffic"]
    minutes = [each for each in rows(caught_up, "current/lane_minutes.parquet") if each["lane"] == "traffic"]
    assert len(minutes) > 100
    for each in minutes:
        spent = sorted(
            hand["process_us"] for hand in hands
            if hand["inbound"] == each["inbound"]
            and hand["ended_at"].replace(second=0, microsecond=0) == each["minute"]
        )  # fmt: skip
        for percent in (50, 95, 99):
            exact = spent[math.ceil(len(spent) * percent / 100) - 1]
            assert exact <= each[f"process_p{percent}_us"] <= exact * 1.022 + 1
        assert each["per_s"] == pytest.approx(len(spent) / 60)
