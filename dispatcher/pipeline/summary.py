"""The verdict, and the facts that it rests on: as plain values, and as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import WaitCause
from dispatcher.pipeline.few_rows import together
from dispatcher.pipeline.gaps import BOUNDARIES, Gap, Window
from dispatcher.pipeline.ledger_files import Found
from dispatcher.pipeline.order_audit import KEPT, UNKNOWN, VIOLATED
from dispatcher.pipeline.statistics import STAGES, percentiles
from dispatcher.pipeline.whole_lanes import by_whole_lane, of_shards
from dispatcher.wire.shards import lane_order

#: Of each list; the tables have all.
SHOWN_MAX: Final = 10


def summarise(
    tables: dict[str, DataFrame],
    rows: dict[str, list[dict[str, Any]]],
    outcomes: dict[str, dict[str, int]],
    found: Found,
    gaps: list[Gap],
    ledger: str,
    window: Window,
) -> dict[str, Any]:
    """What a run found, for `summary.json`. `rows` are those of small tables, `outcomes` how many messages
    each lane has of each outcome. The table `left` is not needed where nothing was left waiting."""
    told = together({
        "verdicts": tables["groups"].groupBy("lane", "verdict").count(),
        "hand_overs": _hand_overs(tables["hand_overs"]),
        "violations": _first_violations(tables["violations"]),
        "unknown": _first_unknown(tables["groups"]),
        **({"left": tables["left"]} if "left" in tables else {}),
    })  # fmt: skip
    verdicts: dict[str, dict[str, int]] = {}
    for row in told["verdicts"].to_pylist():
        counts = verdicts.setdefault(row["lane"], {KEPT: 0, VIOLATED: 0, UNKNOWN: 0})
        counts[row["verdict"]] = row["count"]
    hand_overs = {row["lane"]: row for row in told["hand_overs"].to_pylist()}
    shapes = {row["lane"]: row for row in rows["lanes"]}
    hottest = {row["lane"]: row for row in rows["hot_groups"] if row["rank"] == 1}
    left = {row["lane"]: row["left"] for row in told["left"].to_pylist()} if "left" in told else {}
    shares: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows["fairness"], key=lambda row: (row["lane"], row["inbound"] or "")):
        shares.setdefault(row["lane"], []).append(row)

    stalled = {row["lane"] for row in rows["stalls"]}
    lanes = {*verdicts, *hand_overs, *outcomes, *stalled, *(gap.lane for gap in gaps)}
    real = [gap for gap in gaps if gap.kind not in BOUNDARIES]
    return {
        "ledger": ledger,
        "window": {"since": _shown(window.since_us), "until": _shown(window.until_us)},
        "verdict": _worst(verdicts, real),
        "files": {"read": len(found.files), "left_out": len(found.bad)},
        "lanes": {
            lane: {
                "verdict": _worst({lane: verdicts.get(lane, {})}, [gap for gap in real if gap.lane == lane]),
                "groups": verdicts.get(lane, {KEPT: 0, VIOLATED: 0, UNKNOWN: 0}),
                "hand_overs": hand_overs[lane]["hand_overs"] if lane in hand_overs else 0,
                "first": hand_overs[lane]["first"] if lane in hand_overs else None,
                "last": hand_overs[lane]["last"] if lane in hand_overs else None,
                "messages": dict(sorted(outcomes.get(lane, {}).items())),
                "stages": hand_overs[lane]["stages"] if lane in hand_overs else {},
                "waits": hand_overs[lane]["waits"] if lane in hand_overs else {},
                "shape": shapes.get(lane),
                "hottest": hottest.get(lane),
                "shares": shares.get(lane, []),
                "left_waiting": left.get(lane, 0),
                "stalls": _stalls([row for row in rows["stalls"] if row["lane"] == lane]),
            }
            for lane in sorted(lanes, key=lane_order)
        },
        "violations": told["violations"].to_pylist(),
        "unknown": told["unknown"].to_pylist(),
        "gaps": [{"lane": gap.lane, "kind": gap.kind.value, "text": gap.text} for gap in gaps],
        "bad_files": [{"path": bad.path, "problem": bad.problem} for bad in found.bad],
        "remarks": found.remarks,
    }  # fmt: skip


def _hand_overs(table: DataFrame) -> DataFrame:
    return table.groupBy("lane").agg(
        F.count("*").alias("hand_overs"),
        F.struct(*(percentiles(stage) for stage in STAGES)).alias("stages"),
        F.struct(*(_waited_for(cause) for cause in WaitCause)).alias("waits"),
        F.date_format(F.min("dispatched_at"), "yyyy-MM-dd HH:mm:ss").alias("first"),
        F.date_format(F.max(F.coalesce("ended_at", "dispatched_at")), "yyyy-MM-dd HH:mm:ss").alias("last"),
    )


def _waited_for(cause: WaitCause) -> Column:
    """The sum of the waits until the first hand-over that ended with this cause, in µs."""
    waited = F.when(F.col("wait_cause") == cause, F.greatest("wait_us", F.lit(0)))
    return F.coalesce(F.sum(waited), F.lit(0)).cast("bigint").alias(cause.value)


def _stalls(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many, how many seconds they lasted together, and the longest ones."""
    spans = [
        {"since": _shown_at(row["since"]), "until": _shown_at(row["until"]),
         "seconds": (row["until"] - row["since"]).total_seconds(),
         **{name: row[name] for name in ("waiting", "in_flight", "ended", "held_groups")}}
        for row in sorted(rows, key=lambda row: (row["since"] - row["until"], row["since"]))
    ]  # fmt: skip
    return {
        "count": len(spans), "seconds": sum(span["seconds"] for span in spans), "longest": spans[:SHOWN_MAX],
    }  # fmt: skip


def _shown_at(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _first_violations(table: DataFrame) -> DataFrame:
    return table.orderBy("lane", "group", "dispatched_at", "ordinal").limit(SHOWN_MAX).select(
        "lane", "group", "inbound", "rule", "arrival_epoch", "arrival", "consumer", "incarnation", "seq",
        F.col("dispatched_at").cast("string").alias("dispatched_at"), "other_arrival_epoch", "other_arrival",
        "other_consumer", "other_incarnation", "other_seq",
        F.col("other_ended_at").cast("string").alias("other_ended_at"), "writer", "ordinal",
    )  # fmt: skip


def _first_unknown(groups: DataFrame) -> DataFrame:
    found = groups.where(F.col("verdict") == UNKNOWN).orderBy("lane", "group")
    return found.select("lane", "group", "because").limit(SHOWN_MAX)


def _worst(verdicts: dict[str, dict[str, int]], gaps: list[Gap]) -> str:
    if any(counts.get(VIOLATED) for counts in verdicts.values()):
        return VIOLATED
    if gaps or any(counts.get(UNKNOWN) for counts in verdicts.values()):
        return UNKNOWN
    return KEPT


def _shown(time_us: int | None) -> str | None:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat() if time_us is not None else None


def as_text(summary: dict[str, Any]) -> str:
    """The summary for people, the verdict last."""
    return "\n".join(_lines(summary))


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    for whole, names in by_whole_lane(summary["lanes"]).items():
        if (facts := of_shards(summary["lanes"], whole)) is not None:
            yield f"lane {whole}: {about_shards(facts)}"
        for lane in names:
            yield from _about_lane(lane, summary["lanes"][lane])
    for bad in summary["bad_files"][:SHOWN_MAX]:
        yield f"not read: {bad['path']} {bad['problem']}"
    if len(summary["bad_files"]) > SHOWN_MAX:
        yield f"not read: {len(summary['bad_files']) - SHOWN_MAX:,} files more (table files)"
    yield from (f"remark: {remark}" for remark in summary["remarks"])
    gaps = summary["gaps"]
    yield from (f"{_noun(gap['kind'])}: lane {gap['lane']}: {gap['text']}" for gap in gaps[:SHOWN_MAX])
    if len(gaps) > SHOWN_MAX:
        yield f"gap: {len(gaps) - SHOWN_MAX:,} more (table gaps)"
    for unknown in summary["unknown"]:
        yield f"unknown: lane {unknown['lane']}, group {unknown['group']}: {unknown['because']}"
    for broken in summary["violations"]:
        yield about_violation(broken)
    yield f"Verdict: {verdict_sentence(summary)}"


def _about_lane(lane: str, facts: dict[str, Any]) -> Iterator[str]:
    groups, messages = facts["groups"], facts["messages"]
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in messages.items()) or "none"
    span = f" from {facts['first']} to {facts['last']} UTC" if facts["first"] else ""
    yield f"lane {lane}: {facts['hand_overs']:,} hand-overs{span}; messages: {outcomes}"
    waits, work = facts["stages"].get("wait_us"), facts["stages"].get("process_us")
    if waits and work:
        spent = [_ms(each) for each in (waits[0], waits[2], work[0], work[2])]
        yield "  waited p50 {}, p99 {}; processed p50 {}, p99 {}".format(*spent)
    if facts["shape"]:
        yield _about_groups(facts["shape"], facts["hottest"])
    for share in facts["shares"]:
        yield (
            f"  {share['inbound']}: got {share['ratio'] or 0:.2f} × its part by weight {share['weight']} "
            f"over {share['contested_s']:.0f} s of backlog; starved for {share['starved_s']:.0f} s at most"
        )
    if facts["shares"] and facts["shares"][0]["jain"] is not None:
        yield f"  Jain's index of these shares: {facts['shares'][0]['jain']:.3f}"
    yield from (f"  {line}" for line in about_stalls(facts))
    yield f"  {_of_groups(groups)}"


def about_shards(facts: dict[str, Any]) -> str:
    """Of a lane with shards, all of them together."""
    shards = "1 shard" if facts["shards"] == 1 else f"{facts['shards']:,} shards"
    return f"{shards} with {facts['hand_overs']:,} hand-overs; {_of_groups(facts['groups'])}"


def _of_groups(groups: dict[str, int]) -> str:
    return f"groups: {groups[KEPT]:,} kept, {groups[VIOLATED]:,} violated, {groups[UNKNOWN]:,} unknown"


def _about_groups(shape: dict[str, Any], hottest: dict[str, Any]) -> str:
    text = (
        f"  hottest group {hottest['group']}: {hottest['share']:.1%} of {shape['messages']:,} messages in "
        f"{_groups(shape['groups'])}; top 10 {shape['top_share']:.1%}, Gini {shape['gini']:.2f}"
    )
    if shape["parallelism_max"] is None:
        return text
    return f"{text}; at most {shape['parallelism_max']:.1f} consumers busy on average"


def about_stalls(facts: dict[str, Any]) -> Iterator[str]:
    """Of a lane that stood still: the longest time, all of them together, and what was left. Reports of
    earlier versions don't have it."""
    stalls = facts.get("stalls") or {"count": 0}
    if not stalls["count"]:
        return
    longest = stalls["longest"][0]
    held = longest["held_groups"]
    yield (
        f"stood still for {longest['seconds']:,.0f} s ({longest['since']} to {longest['until']} UTC): "
        f"nothing was handed over, and up to {_messages(longest['waiting'])} waited"
        + (f", also of {_groups(held)} that {_were(held)} paused or stopped" if held else "")
        + f"; consumers had {_messages(longest['in_flight'])} and ended {longest['ended']:,} of them"
    )
    if stalls["count"] > 1:
        yield f"stood still {stalls['count']:,} times, for {stalls['seconds']:,.0f} s together"
    yield f"left waiting at the end: {_messages(facts['left_waiting'])}"


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _ms(duration_us: int) -> str:
    return f"{duration_us / 1_000:,.1f} ms"


def about_violation(broken: dict[str, Any]) -> str:
    """One row of `violations`, its times as text."""
    place = f"lane {broken['lane']}, group {broken['group']}"
    this = f"{_message(broken['arrival'], broken['inbound'])} to {broken['consumer']} (seq {broken['seq']})"
    other = f"{_message(broken['other_arrival'])} to {broken['other_consumer']} (seq {broken['other_seq']})"
    if broken["rule"] == "order":
        return f"out of order: {place}: {this} was handed over after {other}"
    end = f"ended at {broken['other_ended_at']}" if broken["other_ended_at"] else "has not ended"
    return f"overlap: {place}: {this} was handed over at {broken['dispatched_at']}, but {other} {end}"


def _message(arrival: int | None, inbound: str | None = None) -> str:
    """Where it came from is not always known."""
    known = "a message" if arrival is None else f"arrival {arrival}"
    return known if inbound is None else f"{known} of {inbound}"


def _noun(kind: str) -> str:
    return "boundary" if kind in BOUNDARIES else "gap"


def verdict_sentence(summary: dict[str, Any]) -> str:
    """The verdict with its numbers of groups."""
    counts = [facts["groups"] for facts in summary["lanes"].values()]
    kept, violated, unknown = (sum(each[name] for each in counts) for name in (KEPT, VIOLATED, UNKNOWN))
    match summary["verdict"]:
        case "violated":
            return f"VIOLATED in {_groups(violated)} (kept in {kept:,}, unknown for {unknown:,})"
        case "unknown":
            return f"UNKNOWN for {_groups(unknown)}, because records are missing; kept in {kept:,}"
        case _ if not kept:
            return "nothing to judge: no group was handed over"
        case _:
            return f"KEPT in all {_groups(kept)}: in order, and never with two consumers at a time"


def _groups(count: int) -> str:
    return f"{count:,} group" if count == 1 else f"{count:,} groups"
