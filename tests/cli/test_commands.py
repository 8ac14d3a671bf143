"""Commands travel through RabbitMQ and back, and their results can be read."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.cli.conftest import Responder, Run, as_user
from tests.conftest import Vhost

STATUS: dict[str, Any] = {
    "lane": "orders", "policy": "exclusive", "state": "active", "dispatcher": "mq-1:77", "lane_epoch": 12,
    "since_ms": 200_000, "consumers": 2, "groups": 1_000, "held": 5, "in_flight": 60, "unconfirmed": 3,
    "counters": {"settled": 12_345},
    "hold": {"reason": "lane_paused", "facts": {}, "verdict": "The lane is paused."},
    "inbound": [{
        "queue": "orders.high", "weight": 4, "held": 5, "in_flight": 60, "dispatched": 4_000, "share": 0.8,
        "look_ahead": 100, "full": True, "full_of": "90 messages of group [red]g[/red]",
        "settled_unacked": 1_200, "settled_unacked_ms": 1_500,
        "ungrouped_hold": {"reason": "no_capacity", "facts": {}, "verdict": "No consumer has room."},
    }, {
        "queue": "orders.low", "weight": 1, "held": 0, "in_flight": 0, "dispatched": 0, "share": 0.2,
        "look_ahead": 100, "full": False, "full_of": None, "settled_unacked": 7, "settled_unacked_ms": 900,
    }],
}  # fmt: skip
GROUP = {
    "group": "a%FF[b]", "state": "owned", "owner": "c-1", "epoch": 7, "held": 2, "in_flight": 1,
    "oldest_ms": 1500,
}  # fmt: skip
MESSAGE = {
    "inbound": "orders.high", "arrival": "12.34", "state": "in flight", "seq": 99, "group_seq": 3,
    "attempt": 2, "consumer": "c-1", "size": 256, "age_ms": 64_000,
}  # fmt: skip
CONSUMER = {
    "consumer": "c-1", "incarnation": "u-1", "state": "live", "prefetch": 50, "in_flight": 1, "groups": 1,
    "queue": "amq.gen-x", "oldest_in_flight_ms": 61_000, "last_heartbeat_ms": 340,
}  # fmt: skip
READER = {
    **CONSUMER,
    "consumer": "c-2",
    "queue": "dispatch.orders.consumer.c-2",
    "readers": 2,
    "waiting_there": 7,
}
MOVES = {"groups": 1, "moves": [{"group": "g", "from": "c-1", "to": "c-2", "waits_for": 4}], "applied": True}
WHY = {
    "group": "g", "verdict": "Sequenced: waits.", "reason": "batch_out", "facts": {"in_flight": 2},
    "blocking": {"message": MESSAGE, "consumer": "c-1", "since_ms": 61_000},
    "behind": 1_234, "details": ["look-ahead of orders.high is full"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "sent", "arguments", "answer", "shown"),
    [
        (
            ["status", "orders"], "status", {}, STATUS,
            ["orders: exclusive, active at mq-1:77 for 3 m 20 s, lane epoch 12", "80.0%", "4,000",
             "held: The lane is paused. (lane_paused)", "No consumer has room. (no_capacity)",
             "the look-ahead is full of 90 messages of group [red]g[/red]", "settled 12,345", "60 in flight",
             "orders.high: 1,200 settled messages not acked, the first one for 1.5 s\n"
             "2 consumers"],
        ),
        (
            ["groups", "list", "orders"], "groups.list",
            {"limit": 50, "offset": 0, "sort": "depth", "after": None, "state": None, "owner": None,
             "match": None},
            {"total": 1_001, "groups": [GROUP]},
            ["a%FF[b]", "owned", "c-1", "1.5 s", "1 of 1,001 groups"],
        ),
        (
            ["groups", "list", "orders", "--limit", "2", "--offset", "4", "--sort", "age",
             "--state", "draining", "--owner", "c-1", "--match", "a*"],
            "groups.list", {"limit": 2, "offset": 4, "sort": "age", "after": None, "state": "draining",
                            "owner": "c-1", "match": "a*"},
            {"total": 0, "groups": []}, ["0 of 0 groups"],
        ),
        (
            ["groups", "show", "orders", "a%FF[b]"], "groups.show", {"group": "a%FF[b]"},
            {**GROUP, "messages": [MESSAGE]}, ["a%FF[b]", "hand-overs", "12.34", "1 m 4 s", "256"],
        ),
        (
            ["groups", "show", "orders", "g"], "groups.show", {"group": "g"},
            {**GROUP, "last_number": 1_234, "messages": [{**MESSAGE, "number": 1_235}, MESSAGE]},
            ["number     1234 was the last", "1235"],
        ),
        (
            ["groups", "show", "orders", "g", "--headers"], "groups.show", {"group": "g"},
            {**GROUP, "messages": [{**MESSAGE, "exchange": "", "routing_key": "in", "headers": {"n": 7},
                                    "properties": {"message_id": "m-1"}, "headers_left_out": 2}]},
            ["routing_key: in", "message_id: m-1", "header n: 7", "and 2 headers more"],
        ),
        (
            ["groups", "why", "orders", "g"], "groups.why", {"group": "g"}, WHY,
            ["g: Sequenced: waits. (batch_out)",
             "message 12.34 of orders.high (seq 99, hand-over 2), at consumer c-1 for 1 m 1 s",
             "Behind it: 1,234 messages", "- look-ahead of orders.high is full"],
        ),
        (
            ["groups", "why", "orders", "g"], "groups.why", {"group": "g"},
            {**WHY, "reason": "paused", "blocking": None}, ["(paused)\nWaiting: 1,234 messages"],
        ),
        (
            ["groups", "close", "orders", "g"], "groups.close", {"group": "g"},
            {"group": "g", "owner": "c-1", "waits_for": 1_002},
            ["g: closes when c-1 has settled 1,002 messages"],
        ),
        (
            ["groups", "close", "orders", "g"], "groups.close", {"group": "g"},
            {"group": "g", "owner": "c-1", "waits_for": 0}, ["g: closed; it belonged to c-1"],
        ),
        (
            ["groups", "close", "orders", "g"], "groups.close", {"group": "g"},
            {"group": "g", "owner": None, "waits_for": 0}, ["g: it has no owner"],
        ),
        (
            ["consumers", "list", "orders", "--wide"], "consumers.list", {}, {"consumers": [CONSUMER]},
            ["c-1", "u-1", "amq.gen-x", "1 m 1 s", "340 ms", "1 consumer"],
        ),
        (
            ["consumers", "list", "orders"], "consumers.list", {}, {"consumers": [READER], "unread": ["c-3"]},
            ["c-2",
             "\nwarning: dispatch.orders.consumer.c-2: 2 readers, 7 messages waiting there; two at a time",
             "nothing reads the queue of c-3"],
        ),
        (
            ["rebalance", "orders"], "rebalance",
            {"group": None, "to": None, "reset": False, "dry_run": False, "pause": None}, MOVES,
            ["c-2", "1 group moves"],
        ),
        (
            ["rebalance", "orders", "--group", "g", "--to", "c-2", "--dry-run"], "rebalance",
            {"group": "g", "to": "c-2", "reset": False, "dry_run": True, "pause": None},
            {**MOVES, "applied": False},
            ["1 group would move"],
        ),
        (
            ["rebalance", "orders", "--pause", "none"], "rebalance",
            {"group": None, "to": None, "reset": False, "dry_run": False, "pause": "none"},
            {**MOVES, "pause": "none"}, ["1 group moves", "two consumers may work on one group"],
        ),
        (
            ["rebalance", "orders", "--pause", "lane"], "rebalance",
            {"group": None, "to": None, "reset": False, "dry_run": False, "pause": "lane"},
            {**MOVES, "pause": "lane"}, ["Nothing is handed out until everything in flight is settled"],
        ),
        (
            ["rebalance", "orders", "--reset"], "rebalance",
            {"group": None, "to": None, "reset": True, "dry_run": False, "pause": None},
            {"groups": 0, "moves": [], "applied": True}, ["0 groups move"],
        ),
        (
            ["rebalance", "orders", "--reset"], "rebalance",
            {"group": None, "to": None, "reset": True, "dry_run": False, "pause": None},
            {**MOVES, "groups": 1_000_000},
            ["c-2", "… and 999,999 more", "1,000,000 groups move"],
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_command_travels_and_its_result_is_shown(
    run: Run, responder: Responder, command: list[str], sent: str, arguments: dict[str, Any],
    answer: dict[str, Any], shown: list[str],
) -> None:  # fmt: skip
    responder.answer = answer
    result = run(*command)
    assert (result.exit_code, result.stderr) == (0, "")
    for text in shown:
        assert text in result.stdout
    (received,) = responder.received
    assert (received.name, received.arguments) == (sent, arguments)
    assert abs(received.sent_at_ms - time.time() * 1_000) < 60_000
    (properties,) = responder.properties
    assert (properties.correlation_id, properties.delivery_mode) == (received.uuid, 2)

    as_json = json.loads(run(*command, "--json").stdout)
    if sent == "groups.why":
        answer = {**answer, "dead_letters": None}  # there is no dead queue yet
    assert as_json == ({"lanes": [answer]} if sent == "status" else answer)
    assert len({command.uuid for command in responder.received}) == 2


def test_status_tells_what_is_not_normal_and_nothing_else(run: Run, responder: Responder) -> None:
    def said(**facts: Any) -> list[str]:
        responder.answer = {**STATUS, **facts}
        _, *lines = run("status", "orders").stdout.splitlines()
        return [line for line in lines if line.startswith(("problem", "attention"))]

    assert said(groups_paused=0, operations=0, problem=None, consumers_frozen=0) == []
    assert said(problem="Redis: no answer", redis_unavailable=True) == ["problem: Redis: no answer"]
    assert said(
        groups_paused=1, groups_pinned=2, groups_stopped=3, operations=1, consumers_drained=1,
        consumers_frozen=2, consumers_waiting=1, undeliverable=1,
    ) == [
        "attention: 1 group paused, 2 groups pinned, 3 groups stopped, 1 operation under way, "
        "1 consumer drained, 2 consumers frozen, 1 consumer waiting for an id that another one has, "
        "1 message undeliverable"
    ]  # fmt: skip
    assert said(dead_letters=0) == said(dead_letters=None) == []
    assert said(dead_letters=1) == ["attention: 1 message in the dead queue"]


def test_status_says_who_stands_by_and_who_led_before(run: Run, responder: Responder) -> None:
    def said(**facts: Any) -> str:
        responder.answer = {**STATUS, "hold": None, **facts}
        lines = run("status", "orders").stdout.replace("\n", " ").split("inbound queue")[0]
        return lines.partition("lane epoch 12")[2].strip()

    assert said(standbys=None, leaderships=[]) == ""
    assert said(standbys=[]) == "stands by: nobody"
    both = [{"dispatcher": "b:2", "since_ms": 1_500}, {"dispatcher": "c:3", "since_ms": 64_000}]
    assert said(standbys=both) == "stands by: b:2 for 1.5 s, c:3 for 1 m 4 s"
    rows = [
        {
            "lane_epoch": 20 - n,
            "dispatcher": f"h:{n}",
            "began_ms": 2_000,
            "ended_ms": None,
            "why": "[red]" * n,
        }
        for n in range(9)
    ]
    assert said(leaderships=rows) == " ".join(
        f"fail-over 2.0 s ago: from h:{n + 1} to h:{n}, lane epoch {20 - n}, because: {'[red]' * (n + 1)}"
        for n in range(3)
    )
    rows[1]["why"] = None
    assert said(leaderships=rows[:2]).endswith("because: not known")


def test_why_mentions_the_dead_queue_when_something_is_there(
    run: Run, responder: Responder, vhost: Vhost
) -> None:
    def said(answer: dict[str, Any] | str) -> str:
        responder.answer = answer
        result = run("groups", "why", "orders", "a b")
        return result.stdout + result.stderr

    advice = "`dispatcher dead list orders --group 'a b'`"
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(responder.names.dead, durable=True)
        assert advice not in said(WHY) + said("no group 'a b' is known here")
        channel.confirm_delivery()
        channel.basic_publish("", responder.names.dead, b"")
    for answer in (WHY, "no group 'a b' is known here"):
        assert advice in said(answer)
        assert "1 message;" in said(answer)


def test_why_says_how_many_of_the_group_went_there(run: Run, responder: Responder) -> None:
    responder.answer = {**WHY, "dead_lettered": {"count": 0, "since_ms": 64_000}}
    assert "went to the dead queue" not in run("groups", "why", "orders", "g").stdout
    responder.answer = {**WHY, "dead_lettered": {"count": 2, "since_ms": 64_000}}
    said = run("groups", "why", "orders", "g").stdout.replace("\n", " ")
    assert "at least 2 messages of it went to the dead queue in the last 1 m 4 s, since this" in said


def test_status_shows_the_lanes_that_answer_and_fails_for_the_others(run: Run, responder: Responder) -> None:
    responder.answer = STATUS
    result = run("status")
    assert result.exit_code == 1
    assert "orders: exclusive, active" in result.stdout
    assert result.stderr.startswith("dispatcher: lane bills does not exist on RabbitMQ")
    assert result.stderr.count("\n") == 1


def test_a_result_of_another_version_is_shown_as_far_as_it_goes(run: Run, responder: Responder) -> None:
    for command in ("status", "groups list", "consumers list", "rebalance"):
        assert run(*command.split(), "orders").exit_code == 0
    for command in ("groups show", "groups why"):
        assert run(*command.split(), "orders", "g").exit_code == 0


def test_a_refusal_is_one_line_and_exit_code_1(run: Run, responder: Responder) -> None:
    responder.answer = "no live consumer 'c-9'; `dispatcher consumers list` shows who is there"
    result = run("rebalance", "orders", "--group", "g", "--to", "c-9")
    assert result.exit_code == 1
    assert result.stderr == f"dispatcher: {responder.answer}\n"
    assert result.stdout == ""


def test_nobody_answers(run: Run, responder: Responder) -> None:
    responder.answer = None
    result = run("groups", "list", "orders", "--timeout", "100ms")
    assert result.exit_code == 1
    question = "is one running, and is it ready (/readyz)?"
    nobody = "dispatcher: no dispatcher answered for lane orders within 100ms: "
    assert result.stderr == f"{nobody}{question}\n"
    result = run("groups", "pause", "orders", "g", "--timeout", "100ms")
    assert result.exit_code == 1
    doubt = "groups.pause may be done, or may yet be done within 1m after it was sent; "
    assert result.stderr == f"{nobody}{doubt}{question}\n"


def test_a_lane_that_never_ran(run: Run) -> None:
    result = run("consumers", "list", "orders")
    assert result.exit_code == 1
    assert "lane orders does not exist on RabbitMQ: there is no exchange " in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_lane_that_lost_its_command_queue(run: Run, responder: Responder) -> None:
    responder.lose_the_queue()
    result = run("consumers", "list", "orders")
    assert result.exit_code == 1
    assert "lane orders: RabbitMQ could not store the command" in result.stderr


def test_an_operator_needs_one_right_only(
    run: Run, responder: Responder, vhost: Vhost, config_file: Path, limited_user: str
) -> None:
    exchange = responder.names.command_exchange
    rights = {"configure": "^$", "write": f"^{re.escape(exchange)}$", "read": "^$"}
    vhost.management(f"permissions/{vhost.name}/{limited_user}", "PUT", rights)
    as_user(config_file, vhost, limited_user)
    responder.answer = {"consumers": []}
    assert run("consumers", "list", "orders").exit_code == 0
    assert run("status", "orders").exit_code == 0

    vhost.management(f"permissions/{vhost.name}/{limited_user}", "PUT", {**rights, "write": "^$"})
    result = run("consumers", "list", "orders")
    assert result.exit_code == 1
    assert "403 ACCESS_REFUSED - " in result.stderr
    assert f"access to exchange '{exchange}'" in result.stderr
    assert result.stderr.count("\n") == 1
