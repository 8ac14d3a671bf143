"""The advice for people: a small table for each option, then the recommendation and its expected results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from dispatcher.pipeline.advise.advice import AdviceRow, LaneAdvice
from dispatcher.pipeline.advise.lane_options import ORDERED
from dispatcher.pipeline.advise.measures import Measures, bound, percentile
from dispatcher.pipeline.advise.run import AdviceResult, Advised, row
from dispatcher.pipeline.advise.sample import Sample
from dispatcher.pipeline.advise.sweeps import CONSUMERS, EXACT, Option

UNBOUNDED: Final = "grows without bound"
NOT_SIMULATED: Final = (
    "not simulated: retries, failures and deaths, expiry, pauses, the time that parking takes, and the "
    "dispatcher's own processor"
)
#: A simulation of what the lane ran with that is off by more is no good guide.
_FAR_OFF: Final = 2.0
#: Shorter waits are noise of the machine.
_NOTICED_US: Final = 1_000


def as_text(result: AdviceResult) -> str:
    lines = [line for each in result.lanes for line in _about_lane(each)]
    return "\n".join([*lines, *(f"left out: {reason}" for reason in result.left_out), NOT_SIMULATED])


def as_json(result: AdviceResult) -> dict[str, Any]:
    """The same for programs."""
    return {
        "lanes": {
            each.sample.lane: {
                "replayed": len(each.sample.messages) - each.sample.warm_up,
                "messages": each.sample.all_messages,
                "measured": dict(
                    zip(("dispatch_p50_us", "dispatch_p99_us"), measured(each.sample), strict=True)
                ),
                "at_a_time": each.advice.traffic.at_a_time,
                "remarks": remarks(each),
                "rows": [row(each.sample, line) for line in each.advice.lines()],
            }
            for each in result.lanes
        },
        "left_out": result.left_out,
        "not_simulated": NOT_SIMULATED.partition(": ")[2],
    }


def measured(sample: Sample) -> tuple[float | None, float | None]:
    """p50 and p99 from received to dispatched, in the ledger, of the messages that are counted."""
    counted = sample.messages[sample.warm_up :]
    waits = sorted(r["dispatched_us"] - r["at_us"] for r in counted if r["dispatched_us"] is not None)
    return (percentile(waits, 50), percentile(waits, 99)) if waits else (None, None)


def remarks(advised: Advised) -> list[str]:
    """What makes the advice less sure."""
    advice, found = advised.advice, []
    now, (_, told_us) = advice.found[advice.current], measured(advised.sample)
    if now.is_overloaded:
        others = f"; other options are tried with {advice.base.consumers:,} consumers"
        found.append("its present options can't keep up" + ("" if advice.base == advice.current else others))
    elif told_us is not None and now.dispatch_p99_us is not None:
        low, high = sorted((max(told_us, _NOTICED_US), max(now.dispatch_p99_us, _NOTICED_US)))
        if high > _FAR_OFF * low:
            found.append(
                f"the ledger measured a p99 of {_time(told_us)} from received to dispatched, the simulation "
                f"of the same options says {_time(now.dispatch_p99_us)}: something else made them wait"
            )
    look_ahead = advice.traffic.options.get("look_ahead")
    if look_ahead and (now.waiting_max or 0) >= look_ahead:
        found.append("its look-ahead was full: messages may have come before they are known to have come")
    return found


def _about_lane(advised: Advised) -> Iterator[str]:
    sample, advice = advised.sample, advised.advice
    now = advice.current
    yield f"lane {sample.lane}: {_window(sample)}"
    yield (
        f"  now: consumers={now.consumers} prefetch={now.prefetch} policy={now.policy} "
        f"buckets={EXACT if now.buckets is None else now.buckets}; {_effect(advice.found[now])}"
    )
    if (count := advice.traffic.at_a_time) > 1:
        yield f"  a consumer works on {count:,} messages at a time"
    told = measured(sample)
    if (
        told[0] is not None
        and told[1] is not None
        and (mine := advice.found[now]).dispatch_p50_us is not None
    ):
        yield (
            f"  received to dispatched: measured p50 {_time(told[0])}, p99 {_time(told[1])}; simulated p50 "
            f"{_time(mine.dispatch_p50_us)}, p99 {_time(mine.dispatch_p99_us)}"
        )
    for option, lines in groupby(advice.lines(), key=lambda line: line.point.option):
        if option is not Option.RECOMMENDED:
            yield from _curve(option, sorted(lines, key=lambda line: line.point.number or 1 << 62))
    yield from (f"  remark: {remark}" for remark in remarks(advised))
    yield from _recommendations(advice)


def _window(sample: Sample) -> str:
    counted = sample.messages[sample.warm_up :]
    first, last = (_instant(counted[place]["at_us"]) for place in (0, -1))
    if len(sample.messages) == sample.all_messages:
        return f"all its {len(counted):,} messages replayed, {first} to {last} UTC"
    count = f"the busiest {len(counted):,} of its {sample.all_messages:,} messages replayed"
    return f"{count}, {first} to {last} UTC"


def _curve(option: Option, lines: list[AdviceRow]) -> Iterator[str]:
    width = max(len(option), *(len(line.point.value) for line in lines)) + 2
    yield f"  {option:<{width}} {'p50':>10} {'p95':>10} {'p99':>10}  {'95 %':^21} {'busy':>6}"
    for line in lines:
        marks = ("=" if line.is_current else " ") + ("*" if line.is_recommended else " ")
        found = line.measures
        if found.is_overloaded:
            yield f"{marks}{line.point.value:<{width}} {UNBOUNDED:>32}  {'':^21} {1:>6.0%}"
            continue
        times = " ".join(
            f"{_time(each):>10}" for each in (found.wait_p50_us, found.wait_p95_us, found.wait_p99_us)
        )
        yield f"{marks}{line.point.value:<{width}} {times}  {_between(found):^21} {found.utilisation:>6.0%}"


def _recommendations(advice: LaneAdvice) -> Iterator[str]:
    target = advice.target_us
    if Option.CONSUMERS not in advice.recommended:
        yield f"  recommended: no number of consumers that was tried {_why_none(advice)}"
    for option, point in advice.recommended.items():
        name = "together" if option is Option.RECOMMENDED else option.value
        now = "" if option is Option.RECOMMENDED else _now(advice, option, point.value)
        yield f"  recommended: {name} {point.value}{now}: {_effect(advice.found[point.scenario])}"
    has_tried = any(line.point.option is Option.RECOMMENDED for line in advice.lines())
    if has_tried and Option.RECOMMENDED not in advice.recommended and Option.CONSUMERS in advice.recommended:
        what = "do worse than the consumers alone" if target is None else "miss the target"
        yield f"  not recommended: all of these at once: together they {what}"
    if target is not None:
        yield f"  target: p99 of the wait within {_time(target)}"


def _why_none(advice: LaneAdvice) -> str:
    needed = bound(advice.traffic, replace(advice.base, consumers=CONSUMERS[1]))
    if needed >= 1 and advice.base.policy in ORDERED:
        return f"keeps up: the hottest group alone needs {needed:.1f} × the time that there is"
    return f"has its p99 within {_time(advice.target_us)}" if advice.target_us is not None else "keeps up"


def _now(advice: LaneAdvice, option: Option, value: str) -> str:
    lines = [line for line in advice.lines() if line.point.option is option and line.is_current]
    now = lines[0].point.value if lines else "?"
    return " (as it is)" if now == value else f" (now {now})"


def _effect(found: Measures) -> str:
    if found.is_overloaded:
        return f"the wait {UNBOUNDED}"
    return f"waits p99 {_time(found.wait_p99_us)} ({_between(found)}), consumers {found.utilisation:.0%} busy"


def _between(found: Measures) -> str:
    if found.wait_p99_low_us is None:
        return "too few messages"
    return f"{_time(found.wait_p99_low_us)} - {_time(found.wait_p99_high_us)}"


def _time(duration_us: float | None) -> str:
    if duration_us is None:
        return "?"
    return f"{duration_us / 1e6:,.2f} s" if duration_us >= 1e6 else f"{duration_us / 1e3:,.1f} ms"


def _instant(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")[:19]
