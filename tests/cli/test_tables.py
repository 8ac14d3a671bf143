"""Tables in a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from dispatcher.cli.consumers import _COLUMNS as CONSUMERS
from dispatcher.cli.groups import _COLUMNS as GROUPS
from dispatcher.cli.output import table
from tests.cli.conftest import Responder, Run

LONG = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
WIDE_ONLY = ("epoch", "incarnation", "queue")
CONSUMER = {
    "consumer": "worker-1", "incarnation": LONG, "state": "live", "prefetch": 50, "in_flight": 1,
    "groups": 1_000, "queue": "amq.gen-x", "oldest_in_flight_ms": 61_000, "last_heartbeat_ms": 340,
}  # fmt: skip
GROUP = {
    "group": "order-17", "state": "owned", "owner": "worker-1", "epoch": 1_849_702_104_104_960, "held": 2,
    "in_flight": 1, "parked": 0, "oldest_ms": 61_000, "reason": "group_window_full", "paused": True,
}  # fmt: skip


@pytest.mark.parametrize("columns", [GROUPS, CONSUMERS])
def test_no_title_is_split_inside_a_word(columns: tuple[str, ...]) -> None:
    narrow = Console(width=80, color_system=None)
    with narrow.capture() as captured:
        narrow.print(table(columns, [[LONG] * len(columns)] * 3, left_out=WIDE_ONLY))
    head = captured.get().partition("─")[0].split()
    titles = [title for title in columns if title not in WIDE_ONLY]
    assert sorted(head) == sorted(" ".join(titles).split())


MESSAGE = {
    "inbound": "orders.high", "arrival": "1795714712.1234", "state": "in flight",
    "seq": 1_849_702_104_104_961, "group_seq": 1_849_702_104_104_962, "attempt": 1, "consumer": "worker-1",
    "size": 10_000, "age_ms": 61_000,
}  # fmt: skip


def test_a_groups_messages_fit_and_no_cell_is_cut(run: Run, responder: Responder) -> None:
    responder.answer = {**GROUP, "messages": [MESSAGE]}
    narrow = run("groups", "show", "orders", "order-17").stdout
    title, _, row = narrow.splitlines()[-3:]
    assert (title.split()[-1], row.split()[1], row.endswith("1 m 1 s")) == ("age", MESSAGE["arrival"], True)
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 80
    for seq in ("seq", "group_seq"):
        assert str(MESSAGE[seq]) not in narrow
        assert str(MESSAGE[seq]) in run("groups", "show", "orders", "order-17", "--wide").stdout


@pytest.mark.parametrize(
    ("command", "answer", "wide_only"),
    [("consumers", {"consumers": [CONSUMER]}, LONG), ("groups", {"groups": [GROUP]}, str(GROUP["epoch"]))],
)
def test_what_is_long_is_shown_on_demand(
    run: Run, responder: Responder, command: str, answer: dict[str, Any], wide_only: str
) -> None:
    responder.answer = answer
    narrow = run(command, "list", "orders").stdout
    assert wide_only not in narrow
    assert wide_only in run(command, "list", "orders", "--wide").stdout
    if command == "consumers":  # a group's reason and flags may be long: they are folded
        assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 80


YELLOW, RED, END = "\x1b[33m", "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize(
    ("command", "answer", "coloured"),
    [
        (
            ["consumers", "list", "orders"],
            {"consumers": [{**CONSUMER, "state": "frozen", "drained": True}]},
            [f"{YELLOW}frozen{END}", f"{YELLOW}drained{END}"],
        ),
        (["consumers", "list", "orders"], {"consumers": [CONSUMER]}, [f"\x1b[32mlive{END}"]),
        (
            ["groups", "list", "orders"], {"groups": [{**GROUP, "stopped": "a live, lost one"}]},
            [f"{YELLOW}paused{END}, {RED}stopped{END}: a live"],
        ),
        (
            ["status", "orders"], {"lane": "orders", "problem": "Redis: gone", "groups_paused": 1},
            [f"{RED}problem: Redis: gone{END}", f"{YELLOW}attention: 1 group paused{END}"],
        ),
    ],
)  # fmt: skip
def test_states_have_colours_on_a_terminal_alone(
    run: Run, responder: Responder, monkeypatch: pytest.MonkeyPatch, command: list[str],
    answer: dict[str, Any], coloured: list[str],
) -> None:  # fmt: skip
    responder.answer = answer
    assert "\x1b" not in run(*command).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = run(*command).stdout
    for text in coloured:
        assert text in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in run(*command).stdout


def test_what_check_finds_has_colours_on_a_terminal_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("check").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert f"{RED}problem:  lanes.orders.inbound[0].queue" in run("check").stdout
