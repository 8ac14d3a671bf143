"""The advice for one lane: tries scenarios, in rounds, and recommends some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dispatcher.pipeline.advise import rules
from dispatcher.pipeline.advise.lane_options import ORDERED
from dispatcher.pipeline.advise.measures import Measures
from dispatcher.pipeline.advise.sweeps import (
    EXACT,
    Option,
    Point,
    Wanted,
    consumers_points,
    evened,
    other_points,
    weights_point,
)
from dispatcher.pipeline.advise.traffic import Scenario, Traffic


class AdviceRow(NamedTuple):
    """One row of the table."""

    point: Point
    measures: Measures
    is_current: bool
    is_recommended: bool


class LaneAdvice:
    """Ask for `rounds`: each yields scenarios to simulate, and goes on when `found` has the answers."""

    def __init__(self, traffic: Traffic, current: Scenario, wanted: Wanted, target_us: int | None) -> None:
        self.traffic, self.current, self.target_us = traffic, current, target_us
        self.found: dict[Scenario, Measures] = {}
        self.recommended: dict[Option, Point] = {}
        self.base = current  # around what the other options are tried
        self._wanted = wanted
        self._points: list[Point] = []
        self.groups = len({each.group for each in traffic.arrivals if each.group is not None})

    def rounds(self) -> Iterator[list[Scenario]]:
        """The scenarios whose results it needs next."""
        yield self._ask(consumers_points(self._wanted, self.current))
        self._recommend(Option.CONSUMERS, self._number(self.target_us))
        if self.found[self.current].is_overloaded and (best := self._best_number()) is not None:
            self.base = best.scenario
        yield self._ask(other_points(self._wanted, self.base, self.traffic))
        yield self._ask(self._evened())
        self._choose_others()
        yield self._ask(self._together())
        self._verify()

    def lines(self) -> list[AdviceRow]:
        """All tried scenarios, with their results."""
        chosen = {id(point) for point in self.recommended.values()}
        return [
            AdviceRow(
                point, self.found[point.scenario],
                point.option is not Option.RECOMMENDED and self._is_current(point), id(point) in chosen,
            )
            for point in self._points
        ]  # fmt: skip

    def _is_current(self, point: Point) -> bool:
        """Whether the lane runs with this value of the option."""
        name = point.option.value
        return bool(getattr(point.scenario, name) == getattr(self.current, name))

    def _ask(self, points: list[Point]) -> list[Scenario]:
        self._points += points
        new = dict.fromkeys(point.scenario for point in points)
        return [scenario for scenario in new if scenario not in self.found]

    def _of(self, option: Option) -> list[tuple[Point, Measures]]:
        return [(p, self.found[p.scenario]) for p in self._points if p.option is option]

    def _recommend(self, option: Option, point: Point | None) -> None:
        if point is not None:
            self.recommended[option] = point

    def _best_number(self) -> Point | None:
        """The recommended number of consumers, or the one with which messages are through soonest."""
        if Option.CONSUMERS in self.recommended:
            return self.recommended[Option.CONSUMERS]
        return self._number(None)

    def _number(self, target_us: int | None) -> Point | None:
        best = rules.best_consumers(self._of(Option.CONSUMERS), target_us)
        return best if target_us is not None else self._unless_now(Option.CONSUMERS, best)

    def _unless_now(self, option: Option, best: Point | None) -> Point | None:
        """The present value, unless the best one is better for sure."""
        now = next((point for point, _ in self._of(option) if self._is_current(point)), None)
        if best is None or now is None:
            return best
        is_better = rules.is_better(self.found[now.scenario], self.found[best.scenario])
        return best if is_better else now

    def _evened(self) -> list[Point]:
        """Weights made from how long the queues wait with those that were proposed."""
        tried = self._of(Option.WEIGHTS)
        known = {point.scenario.weights for point, _ in tried}
        made = dict.fromkeys(
            evened(point.scenario.weights, found.queues_p99_us)
            for point, found in tried
            if found.queues_p99_us
        )
        return [weights_point(self.traffic, self.base, each) for each in made if each not in known]

    def _choose_others(self) -> None:
        best = {Option.PREFETCH: rules.best_prefetch(self._of(Option.PREFETCH))}
        if self.current.policy in ORDERED:
            best[Option.BUCKETS] = rules.best_buckets(self._of(Option.BUCKETS), self.groups)
        best[Option.POLICY] = rules.best_policy(self._of(Option.POLICY), self.current.policy)
        for option, point in best.items():
            self._recommend(option, self._unless_now(option, point))
        self._recommend(Option.WEIGHTS, rules.best_weights(self._of(Option.WEIGHTS), self.current.weights))

    def _together(self) -> list[Point]:
        best = self._best_number()
        if best is None:
            return []
        scenario = replace(self.base, consumers=best.scenario.consumers)
        for option in (Option.PREFETCH, Option.BUCKETS, Option.POLICY, Option.WEIGHTS):
            if (chosen := self.recommended.get(option)) is not None:
                value = getattr(chosen.scenario, option.value)
                scenario = replace(scenario, **{option.value: value})
        return [self._combined(scenario)] if scenario != self.current else []

    def _combined(self, scenario: Scenario) -> Point:
        text = (
            f"consumers={scenario.consumers} prefetch={scenario.prefetch} policy={scenario.policy} "
            f"buckets={EXACT if scenario.buckets is None else scenario.buckets}"
        )
        if len(scenario.weights) > 1:
            text += " weights=" + ",".join(map(str, scenario.weights))
        return Point(Option.RECOMMENDED, text, None, scenario)

    def _verify(self) -> None:
        """All together are recommended only if they do what the number of consumers alone does: within the
        target, or within a tenth of its p99."""
        best, together = self._best_number(), self._of(Option.RECOMMENDED)
        if best is None or not together:
            return
        (point, found), alone = together[0], self.found[best.scenario]
        limit = rules.KNEE * (alone.total_p99_us or 0)
        is_good = (found.total_p99_us or 0) <= limit
        fits = is_good if self.target_us is None else rules.within(found, self.target_us)
        if fits and not found.is_overloaded:
            self._recommend(Option.RECOMMENDED, point)
