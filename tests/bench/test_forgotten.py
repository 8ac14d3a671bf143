"""The benchmark of a map that forgets groups runs with one command, and sees what is out of order."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.forgotten import Handled, Measured, exceeded
from bench.relay.load import body
from dispatcher.client import Message
from dispatcher.client.testing import PracticeLane
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
GOOD = Measured(groups=10, kept=3, messages=40, slow=9, moved=20, disordered=0, forgotten=30)


@pytest.mark.slow
@pytest.mark.seed("C18")
def test_many_more_groups_than_the_map_keeps_stay_in_order(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    small = ("--groups", "500", "--kept", "50", "--messages", "2000", "--rate", "1000")
    ended = subprocess.run(
        [sys.executable, "-m", "bench.forgotten", *small, "--json", str(file)], cwd=ROOT,
        env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert document["disordered"] == 0
    assert document["forgotten"] >= 450
    assert min(document["moved"], document["slow"]) > 0


def test_what_must_not_be_is_named() -> None:
    assert exceeded(GOOD) == []
    disorder, nothing = exceeded(replace(GOOD, disordered=2, forgotten=0))
    assert disorder == "2 of 40 messages were out of order"
    assert nothing.startswith("no group was forgotten")


async def test_a_message_that_is_begun_before_the_one_before_it_is_done_is_seen() -> None:
    """The handlers of two groups run side by side; for the record both are messages of its first group."""
    handled = Handled(groups=10, messages=11)

    async def handle(message: Message) -> None:
        await handled.handle(0, message)

    practice = PracticeLane()
    practice.add(body(0), group="one")
    practice.add(body(10), group="other")
    await practice.run(handle)
    assert (handled.disordered, handled.moved, handled.count(0)) == (1, 0, 2)
