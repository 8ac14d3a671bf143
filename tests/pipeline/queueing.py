"""Queueing theory, for tests of the simulation: formulas with their source, and traffic for them."""

from __future__ import annotations

import heapq
from math import exp, factorial
from random import Random

from dispatcher.pipeline.advise.traffic import SampledArrival, Scenario, Traffic

WORK_US = 10_000  # mean demand
FIFO = Scenario(consumers=1, prefetch=1, policy="none", weights=(1,))


def traffic(
    load: float, count: int, *, seed: int, is_constant: bool = False, groups: list[bytes | None] | None = None
) -> Traffic:
    """Poisson arrivals that keep `load` consumers busy, with exponential or constant demands. Gaps and
    demands are scaled to have exactly their mean: what is left of chance is their order and shape."""
    random = Random(seed)
    gaps = _scaled([random.expovariate(1) for _ in range(count)], WORK_US / load)
    demands = _scaled([1.0 if is_constant else random.expovariate(1) for _ in range(count)], WORK_US)
    owners = groups or [None]
    arrivals, at_us = [], 0.0
    for gap, demand in zip(gaps, demands, strict=True):
        at_us += gap
        arrivals.append(SampledArrival(round(at_us), 0, random.choice(owners), 100, 1, round(demand)))
    return Traffic("orders", ("in",), arrivals, arrivals[-1].at_us, is_whole=False)


def _scaled(values: list[float], mean: float) -> list[float]:
    factor = mean * len(values) / sum(values)
    return [factor * value for value in values]


def erlang_c(consumers: int, load: float) -> float:
    """The probability that an arrival of M/M/c waits (L. Kleinrock: Queueing Systems I, 1975, 3.40);
    `load` is λ/μ."""
    waits = load**consumers / factorial(consumers) * consumers / (consumers - load)
    return waits / (sum(load**n / factorial(n) for n in range(consumers)) + waits)


def mm_mean_wait_us(consumers: int, load: float) -> float:
    """Of M/M/c: C(c, λ/μ) / (cμ - λ)."""
    return erlang_c(consumers, load) * WORK_US / (consumers - load)


def mm_waits_longer(consumers: int, load: float, wait_us: float) -> float:
    """The part of the arrivals of M/M/c that wait longer than that: C(c, λ/μ) exp(-(cμ - λ)t)."""
    return erlang_c(consumers, load) * exp(-(consumers - load) * wait_us / WORK_US)


def md_mean_wait_us(load: float) -> float:
    """Of M/D/1: Pollaczek–Khinchine's λE[S²] / 2(1 - ρ) (Kleinrock I, 5.71), where E[S²] is E[S]²."""
    return load * WORK_US / (2 * (1 - load))


def first_come_first_served(traffic: Traffic, consumers: int) -> list[int]:
    """When each message is begun with, computed without the core: by whoever is free first (J. Kiefer,
    J. Wolfowitz: On the theory of queues with many servers, 1955)."""
    free_us, begun = [0] * consumers, []
    for arrival in traffic.arrivals:
        begun.append(max(arrival.at_us, heapq.heappop(free_us)))
        heapq.heappush(free_us, begun[-1] + arrival.demand_us)
    return begun
