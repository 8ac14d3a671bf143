"""How far long work has come, where nobody watches a terminal: a plain line now and then."""

from __future__ import annotations

import pytest

from dispatcher.cli.progress import progress


def test_there_is_a_line_for_every_ten_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("replay", 20_001) as step:
        for _ in range(20_001):
            step()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "replay: 10,000 of 20,001\nreplay: 20,000 of 20,001\n")
