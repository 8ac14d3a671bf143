"""Operators' commands through the command queue, and what the views say."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter

import pytest

from dispatcher.errors import CommandRefused
from dispatcher.service.message_preview import HEADERS_SHOWN, TEXT_SHOWN
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command
from tests.amqp.samples import properties, text
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually


async def _owned_by_one(bench: Bench, groups: int) -> tuple[Client, ProtocolConsumer]:
    """A lane whose groups all belong to c1."""
    await bench.run(orders=lane())
    client = await bench.client()
    owner = await bench.joined("c1")
    for number in range(groups):
        client.send("in", b"0", f"g{number}")
    await owner.has(groups)
    await bench.acked()
    return client, owner


async def _owners(bench: Bench) -> dict[str, str | None]:
    listed = await bench.ask("groups.list", limit=1000)
    return {row["group"]: row["owner"] for row in listed["groups"]}


async def test_rebalance_evens_out_with_the_fewest_moves(bench: Bench) -> None:
    client, owner = await _owned_by_one(bench, 12)
    others = [await bench.joined(f"c{number}") for number in (2, 3)]
    result = await bench.ask("rebalance")
    assert result["applied"]
    assert len(result["moves"]) == 8
    assert Counter((await _owners(bench)).values()) == {"c1": 4, "c2": 4, "c3": 4}
    for number in range(12):
        client.send("in", b"1", f"g{number}")
    await eventually(lambda: sum(len(c.received) for c in (owner, *others)) == 24)
    assert [len(c.received) for c in others] == [4, 4]


async def test_a_dry_run_only_says_what_would_move(bench: Bench) -> None:
    await _owned_by_one(bench, 4)
    await bench.joined("c2")
    result = await bench.ask("rebalance", dry_run=True)
    assert not result["applied"]
    assert [(move["from"], move["to"]) for move in result["moves"]] == [("c1", "c2")] * 2
    assert set((await _owners(bench)).values()) == {"c1"}


@pytest.mark.seed("A16")
async def test_one_group_moves_to_a_named_consumer_once_it_is_settled(bench: Bench) -> None:
    client, owner = await _owned_by_one(bench, 3)
    target = await bench.joined("c2")
    owner.hold()
    client.send("in", b"1", "g1")
    client.send("in", b"1", "g2")
    await owner.has(5)
    result = await bench.ask("rebalance", group="g1", to="c2")
    assert result["moves"] == [{"group": "g1", "from": "c1", "to": "c2", "waits_for": 1}]
    client.send("in", b"2", "g1")
    client.send("in", b"2", "g2")
    await owner.has(6)  # g2 goes on
    assert not target.received
    why = await bench.ask("groups.why", group="g1")
    assert (why["reason"], why["facts"]["target"]) == ("changing_hands", "c2")
    owner.release()
    await target.has(1)
    assert target.received[0].body == b"2"
    assert (await _owners(bench))["g1"] == "c2"


@pytest.mark.seed("A13", "C17")
async def test_reset_frees_every_group(bench: Bench) -> None:
    client, owner = await _owned_by_one(bench, 10)
    other = await bench.joined("c2")
    result = await bench.ask("rebalance", reset=True, group="g3")
    assert result["moves"] == [{"group": "g3", "from": "c1", "to": None, "waits_for": 0}]
    assert await _owners(bench) == {f"g{number}": "c1" for number in range(10) if number != 3}
    client.send("in", b"0", "g3")
    await other.has(1)
    await bench.acked()
    await bench.ask("rebalance", group="g3", to="c1")
    other.received.clear()
    result = await bench.ask("rebalance", reset=True)
    assert len(result["moves"]) == 10
    assert bench.status()["groups"] == 0
    for number in range(10):
        client.send("in", b"1", f"g{number}")
    await eventually(lambda: len(owner.received) + len(other.received) == 20)
    assert len(other.received) == 5
    assert Counter((await _owners(bench)).values()) == {"c1": 5, "c2": 5}


async def test_an_operator_closes_a_group_once_it_is_settled(bench: Bench) -> None:
    client, owner = await _owned_by_one(bench, 3)
    other = await bench.joined("c2")
    owner.hold()
    client.send("in", b"1", "g1")
    await owner.has(4)
    assert await bench.ask("groups.close", group="g1") == {"group": "g1", "owner": "c1", "waits_for": 1}
    client.send("in", b"2", "g1")
    client.send("in", b"1", "g2")
    await owner.has(5)  # g2 goes on
    assert not other.received
    owner.release()
    await other.has(1)
    assert other.received[0].body == b"2"


async def test_a_moved_group_stays_moved_after_a_crash(bench: Bench) -> None:
    client, owner = await _owned_by_one(bench, 2)
    target = await bench.joined("c2")
    owner.hold()
    client.send("in", b"1", "g0")
    await owner.has(3)
    await bench.ask("rebalance", group="g0", to="c2")
    await bench.crash()
    await bench.run(orders=lane())
    owner.release()
    client.send("in", b"2", "g0")
    await target.has(1)
    assert [copy.body for copy in target.received] == [b"2"]
    assert [copy.attempt for copy in owner.received] == [1] * 3


async def _send(bench: Bench, command: Command) -> None:
    client = await bench.client()
    client.send_raw(
        protocol.KEY_COMMAND,
        protocol.encode(command),
        properties(delivery_mode=2),
        bench.names().command_exchange,
    )
    await client.confirmed()


async def test_a_repeated_command_is_done_once(bench: Bench) -> None:
    await _owned_by_one(bench, 2)
    await bench.joined("c2")
    command = Command(
        uuid=str(uuid.uuid4()), name="rebalance", sent_at_ms=int(time.time() * 1000),
        arguments={"group": "g0", "to": "c2"},
    )  # fmt: skip
    await _send(bench, command)
    await eventually(lambda: bench.counter("groups_moved") == 1)
    await bench.ask("rebalance", group="g0", to="c1")
    await _send(bench, command)
    await bench.ask("status")
    assert (await _owners(bench))["g0"] == "c1"
    await bench.crash()
    await bench.run(orders=lane())
    await _send(bench, command)
    await bench.ask("status")
    assert (await _owners(bench))["g0"] == "c1", "its result is remembered over a crash"


async def test_a_command_that_waited_too_long_is_refused(bench: Bench) -> None:
    await _owned_by_one(bench, 2)
    await bench.joined("c2")
    old = Command(
        uuid=str(uuid.uuid4()), name="rebalance", sent_at_ms=int(time.time() * 1000) - 61_000, arguments={}
    )
    await _send(bench, old)
    await bench.ask("status")
    assert bench.counter("groups_moved") == 0


async def test_a_rebalance_that_can_not_be_done_is_refused(bench: Bench) -> None:
    await _owned_by_one(bench, 1)
    for arguments, refusal in (
        ({"group": "nobody"}, "no group 'nobody' is known here"),
        ({"group": "g0", "to": "c9"}, "no live consumer 'c9'"),
        ({"to": "c1"}, "--group"),
    ):
        with pytest.raises(CommandRefused, match=refusal):
            await bench.ask("rebalance", **arguments)


async def test_rebalance_has_nothing_to_do_where_groups_have_no_lasting_owner(bench: Bench) -> None:
    await bench.run(orders=lane(policy="sequenced"))
    with pytest.raises(CommandRefused, match="sequenced"):
        await bench.ask("rebalance")


BAD_COMMANDS: list[tuple[str, dict[str, object]]] = [
    ("nonsense", {}),
    ("groups.list", {"limit": -1}),
    ("groups.list", {"limit": "many"}),
    ("groups.list", {"limit": [1]}),
    ("groups.list", {"limit": float("inf")}),
    ("groups.list", {"limit": 1_001}),
    ("groups.list", {"after": "g0"}),
    ("groups.list", {"sort": "colour"}),
    ("groups.list", {"sort": ["age"]}),
    ("groups.list", {"state": "asleep"}),
    ("groups.list", {"state": {}}),
    ("groups.show", {}),
    ("groups.why", {"group": 7}),
    ("groups.why", {"group": "%zz"}),
    ("groups.close", {}),
    ("groups.close", {"group": "nobody"}),
    ("rebalance", {"group": 7}),
    ("rebalance", {"group": "%zz"}),
    ("rebalance", {"group": "g0", "to": ["c1"]}),
    ("rebalance", {"group": "g0", "to": "c1", "reset": True}),
    ("rebalance", {"plan": "x"}),
    ("groups.purge", {"group": "g0", "older_than": "5m"}),
    ("groups.move", {"group": "g0", "to": "other", "first": 1, "last": 2}),
    ("consumers.evict", {"consumer": "c1", "gently": True}),
]


async def test_bad_commands_are_refused_in_words(bench: Bench) -> None:
    await _owned_by_one(bench, 1)
    for name, arguments in BAD_COMMANDS:
        with pytest.raises(CommandRefused) as refused:
            await bench.ask(name, **arguments)
        assert len(str(refused.value)) > 10, (name, arguments)
        assert await bench.ask("status")


async def test_bytes_that_are_no_command_do_no_harm(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    for body in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"uuid": 1}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"uuid":"u","name":"status"}',
    ):
        client.send_raw("command", body, properties(delivery_mode=2), bench.names().command_exchange)
    await client.confirmed()
    assert (await bench.ask("status"))["lane"] == "orders"


@pytest.mark.seed("Q20", "R13")
async def test_the_views_tell_what_is_going_on(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=2, hold=True)
    begun = time.monotonic()
    for number in range(5):
        client.send("in", b"%d" % number, b"g\xff/1")
    await consumer.has(2)
    await eventually(lambda: bench.status()["held"] == 3)
    status = await bench.ask("status")
    assert (status["held"], status["in_flight"], status["consumers"], status["groups"]) == (3, 2, 1, 1)
    assert status["inbound"][0]["queue"] == "in"
    (row,) = (await bench.ask("groups.list"))["groups"]
    assert (row["group"], row["owner"], row["held"], row["in_flight"]) == ("g%FF/1", "c1", 3, 2)
    assert 0 < row["oldest_ms"] <= (time.monotonic() - begun) * 1000
    shown = await bench.ask("groups.show", group=row["group"])
    assert [message["state"] for message in shown["messages"]] == ["in flight"] * 2 + ["held"] * 3
    why = await bench.ask("groups.why", group=row["group"])
    assert (why["reason"], why["facts"]["consumer"]) == ("consumer_full", "c1")
    assert row["reason"] == "consumer_full"
    assert why["blocking"]["message"]["seq"] == consumer.received[0].seq
    assert why["blocking"]["since_ms"] >= 0
    assert why["behind"] == 3
    (listed,) = (await bench.ask("consumers.list"))["consumers"]
    assert (listed["consumer"], listed["state"], listed["prefetch"], listed["in_flight"]) == (
        "c1",
        "live",
        2,
        2,
    )


@pytest.mark.seed("R25")
async def test_what_waits_says_what_it_is(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    many = [text(f"y{number}", "v") for number in range(HEADERS_SHOWN)]  # RabbitMQ 4 sorts them by name
    long = text("long", "é" * (TEXT_SHOWN + 1))
    client.send("in", b"a secret", "g", long, text("raw", b"\xff"), *many, message_id=b"m-1", app_id=b"shop")
    client.send("in", b"", "g", table=True, priority=7)
    await eventually(lambda: bench.status()["held"] == 2)
    first, second = (await bench.ask("groups.show", group="g"))["messages"]
    assert (first["exchange"], first["routing_key"]) == ("", "in")
    assert first["properties"] == {"message_id": "m-1", "app_id": "shop"}
    assert set(list(first["headers"])[:3]) == {"x-group-id", "long", "raw"}
    assert list(first["headers"])[3] == "y0"
    assert first["headers"]["long"] == "é" * TEXT_SHOWN + "…"
    assert first["headers"]["raw"] == "%FF"
    assert (len(first["headers"]), first["headers_left_out"]) == (HEADERS_SHOWN, 3)
    assert (second["properties"], second["headers"]) == ({"priority": 7}, {"x-group-id": "g"})
    assert "secret" not in str(first)
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(2)
    assert (await bench.ask("groups.show", group="g"))["messages"][0]["headers"] == first["headers"]


async def test_why_without_consumers(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    client.send("in", b"x", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    assert (await bench.ask("groups.why", group="g"))["reason"] == "no_consumer"


async def test_many_questions_at_once_are_all_answered(bench: Bench) -> None:
    await bench.run(orders=lane())
    answers = await asyncio.gather(*(bench.ask("status") for _ in range(8)))
    assert all(answer["lane"] == "orders" for answer in answers)
