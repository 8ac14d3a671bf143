"""The top of the page: the verdict, and the facts that it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dispatcher.pipeline.order_audit import EVIDENCE, KEPT, UNKNOWN, VIOLATED
from dispatcher.pipeline.page import wording
from dispatcher.pipeline.page.history_view import HistoryChart
from dispatcher.pipeline.page.source import ReportRow, Source, judged
from dispatcher.pipeline.summary import about_stalls, about_violation, verdict_sentence

#: Of each list; the tables have all.
LIST_MAX: Final = 50
#: A p99 of the wait from here on is told beside the verdict.
LONG_WAIT_US: Final = 10_000_000
_HEADLINES: Final = {
    VIOLATED: "Order was violated",
    UNKNOWN: "Unknown: records are missing",
    KEPT: "Order was kept",
    "nothing": "Nothing to judge",
}


@dataclass(frozen=True)
class Listed:
    """The beginning of a list, and how long it is."""

    rows: list[ReportRow]
    count: int

    @property
    def more(self) -> int:
        return self.count - len(self.rows)


@dataclass(frozen=True)
class VerdictView:
    verdict: str
    headline: str
    sentence: str
    facts: list[tuple[str, str]]
    violations: Listed
    reasons: Listed  # why groups are unknown
    unknown: Listed
    gaps: Listed
    bad_files: Listed
    remarks: list[str]
    violated_at: list[datetime | None]
    beside: list[str]  # what else is not as one wishes it, although order was kept
    #: Of groups with violations, by the place of the first one in the list, from 1 on.
    histories: dict[int, HistoryChart] = field(default_factory=dict)


def verdict_view(source: Source) -> VerdictView:
    """Raises ConfigurationError."""
    import pyarrow.compute as pc

    summary = source.summary
    groups = _groups(summary)
    verdict = judged({"verdict": summary["verdict"], "groups": groups})
    is_unknown = pc.field("verdict") == UNKNOWN
    reasons = source.counted("groups", ("lane", "because"), is_unknown).most_common()
    gaps = sorted(source.rows("gaps"), key=lambda gap: (gap["is_boundary"], gap["lane"], gap["text"]))
    bad_files, bad_count = source.first(
        "files", LIST_MAX, ("path", "lane", "problem"), pc.is_valid(pc.field("problem"))
    )
    violations, violated_at = _violations(source)
    return VerdictView(
        verdict=verdict,
        headline=_HEADLINES[verdict],
        sentence=verdict_sentence(summary),
        facts=_facts(summary),
        violations=violations,
        violated_at=violated_at,
        reasons=Listed(
            [{"lane": lane, "because": because, "groups": number}
             for (lane, because), number in reasons[:LIST_MAX]], len(reasons),
        ),
        unknown=Listed(*source.first("groups", LIST_MAX, ("lane", "group", "because"), is_unknown)),
        gaps=Listed(gaps[:LIST_MAX], len(gaps)),
        bad_files=Listed(bad_files, bad_count),
        remarks=summary.get("remarks", [])[:LIST_MAX],
        beside=_beside(summary),
    )  # fmt: skip


def _beside(summary: ReportRow) -> list[str]:
    """Messages that were given up, lanes that stood still, and lanes that made messages wait for long."""
    found = []
    for lane, facts in summary["lanes"].items():
        name, dead = wording.clipped(lane), facts["messages"].get("dead_lettered", 0)
        if dead:
            found.append(f"lane {name}: {wording.plural(dead, 'message')} given up (dead-lettered)")
        found += [f"lane {name}: {each}" for each in about_stalls(facts)]
        wait_us = ((facts.get("stages") or {}).get("wait_us") or [None])[-1]
        if wait_us is not None and wait_us >= LONG_WAIT_US:
            why = waited_for(facts)
            most = f", most of all for {why[0][0]} ({why[0][1]})" if why else ""
            longest = f"one message in a hundred waited for {wording.duration(wait_us)} or longer"
            found.append(f"lane {name}: {longest}{most}")
    return found[:LIST_MAX]


def waited_for(facts: ReportRow) -> list[tuple[str, str]]:
    """What a lane's messages waited for until they were handed over, and which part of all their waiting
    that is, the largest first. Older reports don't have it."""
    waits = {cause: us for cause, us in (facts.get("waits") or {}).items() if us}
    total = sum(waits.values())
    return [
        (wording.WAITS.get(cause, cause), wording.percent(us / total))
        for cause, us in sorted(waits.items(), key=lambda each: -each[1])
    ]


def _facts(summary: ReportRow) -> list[tuple[str, str]]:
    lanes = summary["lanes"].values()
    spans = [(facts["first"], facts["last"]) for facts in lanes if facts["first"]]
    window = summary.get("window") or {}
    groups = _groups(summary)
    found = [
        ("ledger", summary["ledger"]),
        ("groups kept", wording.count(groups["kept"])),
        ("groups violated", wording.count(groups["violated"])),
        ("groups unknown", wording.count(groups["unknown"])),
        ("hand-overs", wording.count(sum(facts["hand_overs"] for facts in lanes))),
    ]
    if spans:
        found.append(("from", f"{min(first for first, _ in spans)} UTC"))
        found.append(("to", f"{max(last for _, last in spans)} UTC"))
    found += [(f"only {side}", window[side]) for side in ("since", "until") if window.get(side)]
    files = summary["files"]
    left_out = f", {files['left_out']:,} left out" if files["left_out"] else ""
    found.append(("files", f"{files['read']:,} read{left_out}"))
    return found


def _groups(summary: ReportRow) -> dict[str, int]:
    lanes = summary["lanes"].values()
    return {name: sum(facts["groups"][name] for facts in lanes) for name in (KEPT, VIOLATED, UNKNOWN)}


def _violations(source: Source) -> tuple[Listed, list[datetime | None]]:
    """The first ones, with the two hand-overs of each side by side; and when the first of these two was
    handed over."""
    rows, count = source.first("violations", LIST_MAX)
    rows.sort(key=lambda row: (row["lane"], row["group"] or "", row["epoch"] or 0, row["group_seq"] or 0))
    found: list[ReportRow] = [
        {
            "lane": row["lane"], "group": row["group"], "rule": row["rule"],
            "sentence": about_violation(row | {
                "dispatched_at": wording.moment(row["dispatched_at"]),
                "other_ended_at": row["other_ended_at"] and wording.moment(row["other_ended_at"]),
            }),
            "evidence": [
                (name, _shown(name, row[name]), _shown(name, row[f"other_{name}"])) for name in EVIDENCE
            ],
        }
        for row in rows
    ]  # fmt: skip
    return Listed(found, count), [row["dispatched_at"] for row in rows]


def _shown(name: str, value: object) -> str:
    if value is None:
        return wording.NOTHING
    if name.endswith("_at"):
        return wording.moment(value)  # type: ignore[arg-type]
    return str(value)
