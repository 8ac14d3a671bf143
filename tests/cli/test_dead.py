"""`dispatcher dead`: what was given up is listed, released and dropped; the queue keeps its order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from typer.testing import CliRunner

from dispatcher.cli.app import app
from dispatcher.wire.protocol import LaneNames
from tests.cli.conftest import Run
from tests.conftest import Vhost

Headers = dict[str, Any]


class Dead:
    """The dead queue of the lane `orders` and its inbound queue, without a dispatcher."""

    def __init__(self, channel: BlockingChannel, names: LaneNames) -> None:
        self.channel = channel
        self.queue = names.dead
        channel.exchange_declare(names.command_exchange, "direct", durable=True)
        for queue in (self.queue, "orders.high"):
            channel.queue_declare(queue, durable=True)
        self.bound = partial(channel.queue_bind, "orders.high", names.command_exchange, "orders.high")
        self.bound()

    def put(self, body: bytes, group: str | None, reason: str, origin: str | None, **headers: Any) -> None:
        added: Headers = {"x-dispatch-reason": reason, "x-dispatch-attempt": 2, **headers}
        if group is not None:
            added |= {"x-dispatch-group": group, "x-group-id": group}
        if origin is not None:
            added["x-dispatch-origin"] = origin
        properties = pika.BasicProperties(headers=added, delivery_mode=2, message_id=f"id-{body.decode()}")
        self.channel.basic_publish("", self.queue, body, properties)

    def fill(self) -> None:
        self.put(b"0", "a", "ValueError: no stock", "orders.high 7.1", **{"x-dispatch-calls": 3})
        self.put(b"1", "b", "poison", "orders.high 7.2")
        self.put(b"2", "a", "expired", "orders.high 7.5")
        self.put(b"2", "a", "expired", "orders.high 7.5")  # stored twice by a crash
        self.put(b"{}", None, "control: the body is not JSON", None)

    def bodies(self, queue: str) -> list[bytes]:
        """What is in the queue; it is taken out."""
        found = []
        while (got := self.channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[2])
        return found


@pytest.fixture
def dead(vhost: Vhost) -> Iterator[Dead]:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        yield Dead(connection.channel(), LaneNames("orders", vhost.redis_prefix))


def listed(run: Run, *arguments: str) -> list[str]:
    result = json.loads(run("dead", "list", "orders", "--json", *arguments).stdout)
    return [row["message_id"] for row in result["messages"]]


@pytest.mark.seed("R10", "R20")
def test_every_message_is_listed_with_its_reason_and_its_attempts(run: Run, dead: Dead) -> None:
    dead.fill()
    shown = run("dead", "list", "orders")
    assert (shown.exit_code, shown.stderr) == (0, "")
    for text in ("orders.high 7.1", "ValueError: no stock", "poison", "4 messages; 5 in the dead queue"):
        assert text in shown.stdout
    result = json.loads(run("dead", "list", "orders", "--json").stdout)
    assert result["messages"][0] == {
        "origin": "orders.high 7.1", "inbound": "orders.high", "group": "a", "reason": "ValueError: no stock",
        "attempt": 2, "calls": 3, "exchange": None, "routing_key": None, "message_id": "id-0", "size": 1,
    }  # fmt: skip
    assert (result["in_queue"], result["more"]) == (5, False)
    assert dead.bodies(dead.queue) == [b"0", b"1", b"2", b"2", b"{}"], "nothing is moved by looking"


def test_what_others_wrote_does_not_steer_the_terminal(run: Run, dead: Dead) -> None:
    dead.put(b"0", "a", "red \x1b[31m\nand \x9b2J", "orders.high 7.1\x1b[2J")
    shown = run("dead", "list", "orders")
    assert r"red \x1b[31m\nand \x9b2J" in shown.stdout
    assert r"orders.high 7.1\x1b[2J" in shown.stdout
    assert all(line.isprintable() for line in shown.stdout.splitlines())
    assert listed(run, "--reason", "\x1b[31m") == ["id-0"]


def test_a_list_is_filtered_and_paged(run: Run, dead: Dead) -> None:
    dead.fill()
    assert listed(run, "--group", "a") == ["id-0", "id-2"]
    assert listed(run, "--reason", "poison") == ["id-1"]
    assert listed(run, "--group", "a", "--reason", "stock") == ["id-0"]
    assert listed(run, "--limit", "2", "--offset", "1") == ["id-1", "id-2"]
    assert "and more" in run("dead", "list", "orders", "--limit", "1").stdout


def test_released_messages_are_back_in_their_inbound_queue_as_they_were(run: Run, dead: Dead) -> None:
    dead.fill()
    dead.put(b"3", "c", "expired", "orders.high 7.9", CC=[dead.queue], kept="yes")
    result = run("dead", "release", "orders", "--all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "4 messages released; 1 message of no inbound queue left\n"
    for expected in (b"0", b"1", b"2"):
        assert dead.channel.basic_get("orders.high", auto_ack=True)[2] == expected
    _, properties, body = dead.channel.basic_get("orders.high", auto_ack=True)
    assert (body, properties.message_id, properties.delivery_mode) == (b"3", "id-3", 2)
    assert properties.headers == {"x-group-id": "c", "kept": "yes", "x-dispatch-origin": "orders.high 7.9"}
    assert dead.bodies("orders.high") == []
    assert dead.bodies(dead.queue) == [b"{}"], "what came twice is released once"


def test_only_what_was_asked_for_is_released(run: Run, dead: Dead) -> None:
    dead.fill()
    assert run("dead", "release", "orders", "--group", "a", "--dry-run").stdout == (
        "2 messages would be released\n"
    )
    assert json.loads(run("dead", "release", "orders", "--origin", "orders.high 7.2", "--json").stdout) == {
        "lane": "orders", "released": 1, "skipped": 0, "applied": True,
    }  # fmt: skip
    assert run("dead", "release", "orders", "--group", "a", "--limit", "1").stdout == "1 message released\n"
    assert dead.bodies("orders.high") == [b"1", b"0"]
    assert dead.bodies(dead.queue) == [b"2", b"2", b"{}"]


@pytest.mark.parametrize(("option", "named"), [("--group", "group 'c'"), ("--origin", "message 'c'")])
def test_what_is_not_there_is_named(run: Run, dead: Dead, option: str, named: str) -> None:
    dead.fill()
    for command in ("release", "drop"):
        assert refused(run, command, "orders", option, "c") == (
            f"dispatcher: the dead queue has nothing of {named}; `dispatcher dead list` shows what it has\n"
        )
    assert run("dead", "drop", "orders", "--reason", "unheard of").exit_code == 0, "that is a filter"
    assert len(dead.bodies(dead.queue)) == 5


def test_an_inbound_queue_that_can_not_be_one_is_left(run: Run, dead: Dead) -> None:
    dead.put(b"0", "a", "put here by hand", "q" * 300 + " 7.1")
    assert run("dead", "release", "orders", "--all").stdout == (
        "0 messages released; 1 message of no inbound queue left\n"
    )


def test_dropped_messages_are_gone(run: Run, dead: Dead) -> None:
    dead.fill()
    assert run("dead", "drop", "orders", "--reason", "expired", "--dry-run").stdout == (
        "1 message would be dropped\n"
    )
    assert run("dead", "drop", "orders", "--reason", "expired").stdout == "1 message dropped\n"
    assert run("dead", "drop", "orders", "--reason", "control:").stdout == "1 message dropped\n"
    assert dead.bodies(dead.queue) == [b"0", b"1"]
    assert dead.bodies("orders.high") == []


def test_everything_is_dropped_when_that_is_confirmed(run: Run, dead: Dead, config_file: Path) -> None:
    dead.fill()
    assert run("dead", "drop", "orders", "--all").exit_code == 1, "nobody has answered"
    for answer, left in (("n\n", 5), ("y\n", 0)):
        arguments = ["dead", "drop", "orders", "--all", "-c", str(config_file)]
        result = CliRunner().invoke(app, arguments, input=answer, prog_name="dispatcher")
        assert "Delete everything" in result.stderr
        assert result.exit_code == (left > 0)
        assert json.loads(run("dead", "list", "orders", "--json").stdout)["in_queue"] == left
    dead.fill()
    assert run("dead", "drop", "orders", "--all", "--dry-run").exit_code == 0
    assert run("dead", "drop", "orders", "--all", "--yes").exit_code == 0
    assert dead.bodies(dead.queue) == []


def test_a_message_is_shown_with_what_its_producer_set(run: Run, dead: Dead) -> None:
    dead.fill()
    odd, at = ["dead", "show", "orders", "--origin", "orders.high 7.9"], "orders.high 7.9"
    body = b"not text \xff\x1b[2J" + b"x" * 5_000
    dead.channel.basic_publish(
        "", dead.queue, body,
        pika.BasicProperties(headers={"x-dispatch-origin": at, "color": "r\x07d", "x-n": 7}, delivery_mode=2),
    )  # fmt: skip
    result = run(*odd)
    assert result.exit_code == 0
    for text in (at, r"r\x07d", "x-n", "delivery_mode", r"not text \xff\x1b[2J", f"{len(body):,} bytes"):
        assert text in result.stdout
    assert "x" * 1_024 not in result.stdout, "a body may be large"
    (told,) = json.loads(run(*odd, "--json").stdout)["messages"]
    assert (told["headers"]["x-n"], told["cut"]) == (7, True)
    assert told["body"] == r"not text \xff\x1b[2J" + "x" * (1_024 - 14)
    shown = run("dead", "show", "orders", "--group", "a", "--limit", "1").stdout
    assert shown.count("bytes") == 1
    assert shown.startswith("origin"), "there is no title, and no line below it"
    assert "nothing 1.1" in refused(run, "show", "orders", "--origin", "nothing 1.1")
    assert len(dead.bodies(dead.queue)) == 6, "it stays"


def test_nothing_happens_without_a_choice(run: Run, dead: Dead) -> None:
    dead.fill()
    for command in ("release", "drop"):
        for choice in ([], ["--all", "--group", "a"]):
            assert run("dead", command, "orders", *choice).exit_code == 2
    assert len(dead.bodies(dead.queue)) == 5


def refused(run: Run, *arguments: str) -> str:
    result = run("dead", *arguments)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_what_can_not_go_back_stays(run: Run, dead: Dead) -> None:
    dead.fill()
    dead.channel.queue_delete("orders.high")
    assert "there is no queue 'orders.high'" in refused(run, "release", "orders", "--all")
    assert dead.bodies(dead.queue) == [b"0", b"1", b"2", b"2", b"{}"]


def test_a_full_inbound_queue_is_named(run: Run, dead: Dead) -> None:
    dead.fill()
    dead.channel.queue_delete("orders.high")
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    dead.channel.queue_declare("orders.high", durable=True, arguments=full)
    dead.bound()
    error = refused(run, "release", "orders", "--all")
    assert "queue 'orders.high' refuses messages: is it full?; 1 message released before" in error
    assert dead.bodies("orders.high") == [b"0"]
    assert dead.bodies(dead.queue) == [b"1", b"2", b"2", b"{}"]


def test_two_readers_would_each_see_a_part(run: Run, dead: Dead) -> None:
    dead.fill()
    dead.channel.basic_consume(dead.queue, lambda *_: None, exclusive=True)
    assert "another program reads" in refused(run, "list", "orders")


def test_a_lane_that_never_ran(run: Run) -> None:
    assert "lane orders has no dead queue" in refused(run, "list", "orders")
    assert "there is no such lane" in refused(run, "drop", "nothing", "--all", "--yes")


def test_messages_grouped_by_routing_key_can_not_be_released(run: Run, dead: Dead, config_file: Path) -> None:
    dead.fill()
    text = config_file.read_text().replace("orders: {", "orders: {group_header: [routing_key], ")
    config_file.write_text(text)
    assert "lanes.orders.group_header: the routing key is the group" in refused(
        run, "release", "orders", "--all"
    )


def test_anybodys_message_can_be_listed(run: Run, dead: Dead) -> None:
    odd: Headers = {"x-dispatch-attempt": "many", "x-dispatch-group": b"\xff\x00", "x-dispatch-reason": 7}
    dead.channel.basic_publish("", dead.queue, b"", pika.BasicProperties(headers=odd))
    dead.channel.basic_publish("", dead.queue, b"", pika.BasicProperties())
    first, second = json.loads(run("dead", "list", "orders", "--json").stdout)["messages"]
    assert (first["group"], first["attempt"], first["reason"]) == ("%FF%00", None, "7")
    assert (second["group"], second["reason"], second["origin"]) == (None, "not said", None)
