"""The generated ledger of `bench.pipeline` holds what it says, and the run finds it: all of it, no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pipeline.__main__ import differences
from bench.pipeline.ledger import make_ledger
from tests.pipeline.conftest import Everything


def test_planted_faults_are_found_and_nothing_else(everything: Everything) -> None:
    made, folder = everything.made, everything.report.folder
    assert {rule for _, _, rule, _ in made.violations} == {"order", "overlap"}
    assert set(made.gaps) == {"ordinals", "no_end", "no_ledger"}
    assert differences(folder, made) == []
    # What is not planted would be told.
    other = made._replace(violations=set(sorted(made.violations)[1:]), gaps=made.gaps + made.gaps)
    unplanted, gaps, *_ = differences(folder, other)
    assert unplanted.startswith("1 violations not planted, as ('billing',")
    assert gaps.startswith("gaps: ")


def test_a_ledger_too_small_for_its_faults_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lane orders is too small"):
        make_ledger(tmp_path, 1_000, 10_000, planted=100)
