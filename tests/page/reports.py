"""Reports as a run would have written them, without Spark, with names that want to be more than text.

`tests/pipeline/test_page.py` compares their columns with those that runs write.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.wire.shards import shard_name

START = datetime(2026, 11, 22, 11, 34, tzinfo=UTC)
HOSTILE = (
    "<script>document.title = 'caught'</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></table></svg>",
    "\u202eعربي שלום",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 10_000,
    "\x1b[31mred\x07",
    "plain",
)
#: As it is shown: a terminal obeys none of it.
HARMLESS = "\ufffd[31mred\ufffd"
LANE = "orders <b>&amp;"
SPREAD = "spread"
STAGES = ("wait", "commit", "confirm", "process")
PERCENTILES = (50, 95, 99)


def write_report(
    folder: Path, *, verdict: str = "kept", violations: int = 0, unknown: int = 0, gaps: int = 0,
    lanes: int = 1, shards: int = 0, groups: tuple[str, ...] = HOSTILE, points: int = 100,
    stalls: int = 0,
) -> Path:  # fmt: skip
    """A report with `lanes` busy lanes, with so many shards of another one, and an idle one."""
    busy = [LANE, *(f"lane-{number:03d}" for number in range(1, lanes))][:lanes]
    busy += [shard_name(SPREAD, number) for number in range(1, shards + 1)]
    folder.mkdir(parents=True)
    tables = {
        "files": [_file(None), *([_file("is empty")] if gaps else [])],
        "gaps": [_gap("begins"), *(_gap("no_end") for _ in range(gaps))],
        "violations": [_violation(number) for number in range(violations)],
        "groups": [_group(number, number < unknown) for number in range(max(unknown, 3))],
        "timeline": [_point(lane, place) for lane in busy
                     for place in range(points) if place not in (40, 41)],
        "hot_groups": [_hot(lane, rank, name) for lane in busy for rank, name in enumerate(groups, 1)],
        "holders": [_holder(lane, rank, name, consumer) for lane in busy
                    for rank, name in enumerate(groups, 1) for consumer in range(rank % 4 + 1)],
        "lanes": [_shape(lane) for lane in busy],
        "fairness": [_share(lane, inbound) for lane in busy for inbound in ("high", "low")],
        "consumer_stats": [_consumer(lane, consumer) for lane in busy for consumer in range(5)],
        "cost_model": [_cost(lane, band) for lane in busy for band in (256, 4_096)],
        "hand_overs": [_hand_over(lane, group, number) for lane in busy for group in groups[:20]
                       for number in range(0, 100, 3)],
        "lifecycle": [_message(groups[-1], number) for number in range(30)],
        "stalls": [_stall(lane, number) for lane in busy for number in range(stalls)],
    }  # fmt: skip
    for name, rows in tables.items():
        write_table(folder, name, rows)
    summary = _summary([*busy, "idle"], verdict, violations, unknown, stalls)
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def add_advice(folder: Path) -> None:
    """As `pipeline advise` does: one option with numbers, one without, and a scenario that can't keep up."""
    rows = [_scenario("consumers", str(2**power), 2.0**power, 90_000.0 / 4**power if power else None)
            for power in range(7)]  # fmt: skip
    rows += [_scenario("policy", value, None, 1_000.0) for value in ("exclusive", "<policy>")]
    write_table(folder, "advise", rows)


def add_plan(folder: Path, groups: tuple[str, ...] = HOSTILE) -> None:
    """As `pipeline plan` does: every second group moves, the last one had nobody. Consumer 1 needs half."""
    rows: list[dict[str, Any]] = [
        {
            "group": name, "from_consumer": "consumer-<0>" if number < len(groups) - 1 else None,
            "to_consumer": f"consumer-<{number % 2}>", "cost_us": 5_000_000 - number, "messages": 10,
            "now_us": 5_000_000 - number if number < len(groups) - 1 else None,
            "planned_us": round((5_000_000 - number) / (1 + number % 2)),
            "moves": number % 2 == 1 or number == len(groups) - 1,
        }
        for number, name in enumerate(groups)
    ]  # fmt: skip
    place = folder / "plan" / f"lane={quote(LANE, safe='')}"
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), place / "part-0.parquet")


def _scenario(option: str, value: str, number: float | None, wait_us: float | None) -> dict[str, Any]:
    names = [f"wait_{each}_us" for each in ("p50", "p95", "p99", "p99_low", "p99_high")]
    names += ["dispatch_p50_us", "dispatch_p99_us", "total_p99_us", "queue_p99_us"]
    waits = dict.fromkeys(names, wait_us)
    return {
        "lane": LANE, "option": option, "value": value, "number": number, **waits,
        "utilisation": 1.0 if wait_us is None else 0.4, "throughput_per_s": 10.0, "waiting_max": 4,
        "is_overloaded": wait_us is None, "is_current": value in ("4", "exclusive"),
        "is_recommended": value == "16", "replayed": 10_000, "of_messages": 2_000_000,
    }  # fmt: skip


def write_table(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).mkdir(exist_ok=True)
    if rows:
        pq.write_table(pa.Table.from_pylist(rows), folder / name / "part-0.parquet")


def _summary(lanes: list[str], verdict: str, violated: int, unknown: int, stalls: int) -> dict[str, Any]:
    stages = {f"{stage}_us": [1_200, 5_000, 40_000] for stage in STAGES}
    nothing = {"kept": 0, "violated": 0, "unknown": 0}
    idle: dict[str, Any] = {
        "verdict": "kept", "groups": nothing, "hand_overs": 0, "first": None, "last": None, "messages": {},
        "stages": {}, "waits": {}, "shape": None, "hottest": None, "shares": [],
        "left_waiting": 0, "stalls": {"count": 0, "seconds": 0, "longest": []},
    }  # fmt: skip
    busy = idle | {
        "verdict": verdict, "groups": {"kept": 3, "violated": violated, "unknown": unknown},
        "hand_overs": 1_000, "first": "2026-11-22 11:34:00", "last": "2026-11-22 11:35:40",
        "messages": {"settled": 1_000, "dead_lettered": 2}, "stages": stages,
        "waits": {"group": 3_000_000, "turn": 1_000_000, "paused": 0},
        "shape": _shape(""), "hottest": _hot("", 1, "plain"), "left_waiting": 4_321 * bool(stalls),
        "stalls": {
            "count": stalls, "seconds": 30.0 * stalls,
            "longest": [_told(_stall("", number)) for number in range(min(stalls, 10))],
        },
    }  # fmt: skip
    return {
        "ledger": "/ledger/<i>", "window": {"since": None, "until": None}, "verdict": verdict,
        "files": {"read": 1, "left_out": 1},
        "lanes": {each: idle if each == "idle" else busy for each in lanes},
        "violations": [], "unknown": [], "gaps": [], "bad_files": [], "remarks": ["a <remark>"],
    }  # fmt: skip


def _hand_over(lane: str, group: str, number: int) -> dict[str, Any]:
    """Each is a second in hand; the consumer changes every 10 s."""
    at = START + timedelta(seconds=number)
    return {
        "lane": lane, "group": group, "consumer": f"consumer-<{number // 10}>", "attempt": 1,
        "received_at": at - timedelta(seconds=number % 7), "dispatched_at": at,
        "ended_at": at + timedelta(seconds=1),
    }  # fmt: skip


def _message(group: str, number: int) -> dict[str, Any]:
    """One that waits to the end."""
    return {
        "lane": LANE, "group": group, "outcome": "waiting", "received_at": START + timedelta(seconds=number),
    }  # fmt: skip


def _stall(lane: str, number: int) -> dict[str, Any]:
    since = START + timedelta(minutes=number)
    return {
        "lane": lane, "since": since, "until": since + timedelta(seconds=30), "waiting": 190_000,
        "in_flight": 400, "ended": 100, "held_groups": 1,
    }  # fmt: skip


def _told(stall: dict[str, Any]) -> dict[str, Any]:
    """As the summary has it."""
    times = {name: f"{stall[name]:%Y-%m-%d %H:%M:%S}" for name in ("since", "until")}
    return {name: value for name, value in stall.items() if name != "lane"} | times | {"seconds": 30.0}


def _file(problem: str | None) -> dict[str, Any]:
    return {
        "path": "lane=orders/<file>.parquet", "lane": LANE, "writer": "1-1", "first_ordinal": 1,
        "last_ordinal": 9, "problem": problem,
    }  # fmt: skip


def _gap(kind: str) -> dict[str, Any]:
    is_boundary = kind == "begins"
    since = None if is_boundary else START + timedelta(seconds=40)
    return {
        "lane": LANE, "kind": kind, "is_boundary": is_boundary, "writer": "1-1", "first_ordinal": None,
        "last_ordinal": None, "since": since, "until": START if is_boundary else None,
        "text": f"something <u>{kind}</u>",
    }  # fmt: skip


def _violation(number: int) -> dict[str, Any]:
    one = {
        "arrival_epoch": 7, "arrival": number, "epoch": 1, "group_seq": 2, "attempt": 1, "consumer": "c<1>",
        "incarnation": "i1", "seq": 2, "dispatched_at": START, "ended_at": START, "outcome": "settled",
        "writer": "1-1", "ordinal": number,
    }  # fmt: skip
    if number == 1:  # only its consumer knew of it, and nobody knows of its end
        one |= {"dispatched_at": None, "ended_at": None, "writer": None}
    other = {f"other_{name}": value for name, value in one.items()}
    return {"lane": LANE, "group": HOSTILE[0], "inbound": "high", "rule": "order", **one, **other}


def _group(number: int, is_unknown: bool) -> dict[str, Any]:
    return {
        "lane": LANE, "group": HOSTILE[number % len(HOSTILE)], "hand_overs": 10, "incarnations": 1, "open": 0,
        "first_at": START, "last_at": START, "disorders": 0, "overlaps": 0,
        "because": "a number <s>is missing</s>" if is_unknown else None,
        "verdict": "unknown" if is_unknown else "kept",
    }  # fmt: skip


def _percentiles(base: int) -> dict[str, int]:
    return {f"{stage}_p{percent}_us": base * percent * (place + 1)
            for place, stage in enumerate(STAGES) for percent in PERCENTILES}  # fmt: skip


def _point(lane: str, place: int) -> dict[str, Any]:
    return {
        "lane": lane, "at": START + timedelta(seconds=place), "step_ms": 1_000, "hand_overs": 10 + place % 7,
        "per_s": 10.0 + place % 7, "taken_back": 0, **_percentiles(10 + place % 13),
    }  # fmt: skip


def _hot(lane: str, rank: int, group: str) -> dict[str, Any]:
    return {
        "lane": lane, "group": group, "messages": 100 // rank, "cost": 100, "busy_us": 1_000_000 // rank,
        "rank": rank, "share": 0.3 / rank, "busy_share": 0.4 / rank,
    }  # fmt: skip


def _holder(lane: str, rank: int, group: str, consumer: int) -> dict[str, Any]:
    return {
        "lane": lane, "rank": rank, "group": group, "consumer": f"consumer-<{consumer}>",
        "hand_overs": 100 // rank // (consumer + 1), "busy_us": 1_000,
    }  # fmt: skip


def _shape(lane: str) -> dict[str, Any]:
    return {
        "lane": lane,
        "groups": 7,
        "messages": 1_000,
        "gini": 0.4,
        "top_share": 0.7,
        "parallelism_max": 3.5,
    }


def _share(lane: str, inbound: str) -> dict[str, Any]:
    got = {"high": 700, "low": 300}[inbound]
    entitled = {"high": 750.0, "low": 250.0}[inbound]
    return {
        "lane": lane, "inbound": inbound, "weight": 3 if inbound == "high" else 1, "contested_s": 40.0,
        "got": got, "entitled": entitled, "starved_s": 0.0, "ratio": got / entitled, "jain": 0.99,
    }  # fmt: skip


def _consumer(lane: str, consumer: int) -> dict[str, Any]:
    return {
        "lane": lane, "consumer": f"consumer-<{consumer}>", "hour": START, "hand_overs": 200, "settled": 198,
        "failed": 1, "taken_back": 1, "per_s": 0.1, "bytes": 10_000, "cost": 200, "busy_us": 5_000_000,
        **_percentiles(10), "speed": 40.0,
    }  # fmt: skip


def _cost(lane: str, band: int) -> dict[str, Any]:
    return {
        "lane": lane, "inbound": "high", "type": "order<1>" if band > 256 else None, "size_below": band,
        "messages": 500, "mean_us": 1_234.5, "deviation_us": 100.0, "error_us": 8.8,
    }  # fmt: skip
