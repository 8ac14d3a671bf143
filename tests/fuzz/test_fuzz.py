"""A slice of `python -m tests.fuzz`, the same inputs each time."""

from __future__ import annotations

import pytest

from tests.fuzz.running import GROWTH_BYTES_MAX, run
from tests.fuzz.targets import TARGETS

#: A second or two each.
INPUTS = {"headers": 1_500, "control": 1_500, "http": 1_000, "configuration": 80}
#: Inputs that did harm once. Of the first one nothing is left behind its headers, not even its delivery mode.
FOUND = [("headers", 73_788_609)]


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_does_harm(target: str) -> None:
    report = run(target, TARGETS[target](), 0, inputs=INPUTS[target])
    assert report.failure is None
    assert report.inputs == INPUTS[target]
    assert report.refused < report.inputs, "some are good"


@pytest.mark.parametrize(("target", "seed"), FOUND)
def test_what_did_harm_does_none_any_more(target: str, seed: int) -> None:
    assert run(target, TARGETS[target](), seed, inputs=1).failure is None


def test_what_grows_is_found() -> None:
    kept: list[bytes] = []
    report = run("headers", lambda _: kept.append(b"x" * (GROWTH_BYTES_MAX // 16)), 0, inputs=30)
    assert report.failure is not None
    assert report.grown_bytes == pytest.approx(20 * len(kept[0]), rel=0.1), "the first third may be needed"


def test_a_failure_names_its_seed() -> None:
    def breaks(random: object) -> None:
        raise KeyError("x")

    report = run("headers", breaks, 7, inputs=5)
    assert report.failure is not None
    assert report.failure.startswith("headers, seed 7:")
    assert "KeyError" in report.failure
