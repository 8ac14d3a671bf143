"""Two operators with opposite commands at once: each hears what came of it, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands

from dispatcher.errors import CommandRefused
from dispatcher.settings import RabbitSettings
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.harness import Bench, bench_of, lane
from tests.service.operating import bodies, full_of, ordered, sent
from tests.service.program import program_beside_others
from tests.waiting import eventually

WAITING = 400
#: Rounds of commands that end at once: which of two comes first differs.
ROUNDS = 5
Command = tuple[str, dict[str, Any]]
PURGE: Command = ("groups.purge", {})
MOVE: Command = ("groups.move", {"to": "elsewhere"})
REROUTE: Command = ("groups.reroute", {"exchange": "shop", "key": "k"})


async def both(one: Awaitable[Any], other: Awaitable[Any]) -> tuple[Any, Any]:
    """What comes of two commands: a result, or the line of a refusal."""

    async def outcome(command: Awaitable[Any]) -> Any:
        try:
            return await command
        except CommandRefused as refused:
            return str(refused)

    return await asyncio.gather(outcome(one), outcome(other))


async def a_target(client: Client) -> None:
    """The queue `elsewhere`, which the exchange `shop` leads to as well."""
    await client.declare("elsewhere")
    await client.link.call(client.channel, commands.Exchange.Declare(exchange="shop", durable=True))
    bind = commands.Queue.Bind(queue="elsewhere", exchange="shop", routing_key="k")
    await client.link.call(client.channel, bind)


async def told(bench: Bench, command: str) -> tuple[int, str]:
    return await told_of(bench.vhost, command)


async def told_of(vhost: Vhost, command: str) -> tuple[int, str]:
    """The exit code of the program, and its one line beside those that say what it waits for."""
    result = await program_beside_others(vhost, *command.split())
    said = (result.stdout + result.stderr).splitlines()
    (line,) = (line for line in said if not line.startswith("waiting until"))
    assert (result.returncode, bool(result.stdout)) in ((0, True), (1, False))
    return result.returncode, line


async def test_of_two_that_can_not_end_yet_one_is_refused(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=3))
    client = await bench.client()
    await a_target(client)
    consumer = await full_of(bench, client)
    running = {
        asyncio.create_task(told(bench, f"groups {command} --uuid {uuid}")): uuid
        for command, uuid in (("purge orders g", "one"), ("move orders g --to elsewhere", "other"))
    }
    (loser,), (winner,) = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    by = running[winner]
    refusal = f"dispatcher: the group is in transition by {by}; try again when that is done"
    assert loser.result() == (1, refusal)
    consumer.release()
    code, line = await winner
    await bench.acked()
    there = [fetched.body for fetched in await client.take("elsewhere")]
    got, everything = bodies(consumer, b"g"), [b"%d" % number for number in range(1, 9)]
    taken = everything[len(got) :]
    assert got == everything[: len(got)]
    assert there == (taken if by == "other" else [])
    assert (code, int(re.findall(r"^g: (\d+) messages? (?:purged|moved)", line)[0])) == (0, len(taken))
    assert {copy.attempt for copy in consumer.received} == {1}


@pytest.mark.parametrize(
    ("one", "other", "first"), [(PURGE, MOVE, None), (REROUTE, PURGE, 100), (MOVE, REROUTE, 150)]
)
async def test_what_waits_is_taken_once(bench: Bench, one: Command, other: Command, first: int) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await a_target(client)
    consumer = await bench.joined("c1", hold=True, prefetch=1)
    await sent(client, "g", *(b"%d" % number for number in range(WAITING + 1)))
    await consumer.has(1)
    outcomes = await both(
        ordered(bench, one[0], group="g", first=first, **one[1]),
        ordered(bench, other[0], group="g", **other[1]),
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
    for refusal in refusals:
        assert re.fullmatch(
            r"the group is in transition by [0-9a-f-]{36}; try again when that is done", refusal
        )
    done = {outcome["operation"]: outcome["messages"] for outcome in outcomes if outcome not in refusals}
    assert done, "one of them wins"
    there = [int(fetched.body) for fetched in await client.take("elsewhere")]
    await sent(client, "g", b"%d" % (WAITING + 1))
    consumer.release()
    await bench.acked()
    got = [int(body) for body in consumer.bodies()]
    assert (there, got) == (sorted({*there}), sorted({*got})), "in order, and none twice"
    assert {*there}.isdisjoint(got)
    assert len(there) == sum(done.values()) - done.get("purge", 0)
    assert len(got) == WAITING + 2 - sum(done.values())
    assert {copy.attempt for copy in consumer.received} == {1}


@pytest.mark.parametrize("scope", [{"group": "g"}, {"all": True}])
async def test_the_later_of_pause_and_resume_counts(bench: Bench, scope: dict[str, Any]) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1")
    for number in range(ROUNDS):
        await sent(client, "g", b"%d" % number)
        await consumer.has(number + 1)
        pause, resume = await both(bench.ask("groups.pause", **scope), bench.ask("groups.resume", **scope))
        assert pause["changed"]
        is_paused = not resume["changed"]  # nothing was paused when it came
        status = bench.status()
        assert (status["paused"], status["groups_paused"]) == (
            is_paused and "all" in scope, int(is_paused and "group" in scope),
        )  # fmt: skip
        assert (await bench.ask("groups.resume", **scope))["changed"] == is_paused
    await sent(client, "g", b"last")
    await consumer.has(ROUNDS + 1)
    assert consumer.bodies() == [*(b"%d" % number for number in range(ROUNDS)), b"last"]


PIN, REBALANCE = ("groups.pin", "consumer"), ("rebalance", "to")


@pytest.mark.parametrize(("one", "other"), [(PIN, PIN), (PIN, REBALANCE), (REBALANCE, REBALANCE)])
async def test_a_group_that_two_send_elsewhere_goes_one_way(
    bench: Bench, one: tuple[str, str], other: tuple[str, str]
) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    owner = await bench.joined("c1", hold=True)
    await sent(client, "g", b"1")
    await owner.has(1)
    others = [await bench.joined(name) for name in ("a", "b")]
    outcomes = await both(
        bench.ask(one[0], group="g", **{one[1]: "a"}), bench.ask(other[0], group="g", **{other[1]: "b"})
    )
    (refused,) = (place for place, outcome in enumerate(outcomes) if isinstance(outcome, str))
    assert outcomes[refused] == "the group is in transition (draining); try again when it is settled"
    await sent(client, "g", b"2", b"3")
    await eventually(lambda: bench.status()["held"] == 2)
    owner.release()
    loser, winner = others[refused], others[1 - refused]
    await winner.has(2)
    await bench.acked()
    assert (owner.bodies(), winner.bodies(), loser.bodies()) == ([b"1"], [b"2", b"3"], [])
    assert {copy.attempt for consumer in (owner, winner) for copy in consumer.received} == {1}


# -- over a leader's death --


async def test_a_lost_answer_is_said_to_be_lost_and_nothing_is_done_twice(vhost: Vhost) -> None:
    """The leader has committed what both ask for, and dies before its answers get out."""
    async with TcpProxy(vhost.amqp_url) as proxy, bench_of(replace(vhost, amqp_url=proxy.url)) as bench:
        bench.rabbitmq = RabbitSettings(url=vhost.amqp_url)  # of everybody else
        await bench.run(orders=lane())
        client = await bench.client()
        consumer = await bench.joined("c1", hold=True, prefetch=1)
        await sent(client, "g", b"1", b"2", b"3")
        await consumer.has(1)
        proxy.stall(to_client=False)
        purge, pause = "groups purge orders g --uuid one", "groups pause orders g"
        lost = asyncio.gather(
            told_of(vhost, f"{purge} --timeout 1s"), told_of(vhost, f"{pause} --timeout 1s")
        )
        # The operation's marker and two answers, which are sent when Redis has what they are about.
        await eventually(lambda: bench.status()["unanswered_publishes"] >= 3)
        nobody = "no dispatcher answered for lane orders within 1s"
        doubt = "groups.pause may be done, or may yet be done within 1m after it was sent"
        assert await lost == [
            (1, "dispatcher: groups.purge is not done within 1s; it may be still: ask again with --uuid one"),
            (1, f"dispatcher: {nobody}: {doubt}; is one running, and is it ready (/readyz)?"),
        ]
        await bench.crash()
        proxy.resume()
        await bench.run(orders=lane())
        for _ in range(2):
            done = await both(told_of(vhost, purge), told_of(vhost, pause))
            assert [code for code, _ in done] == [0, 0]
            assert [line.partition(";")[0] for _, line in done] == [
                "g: 2 messages purged",
                "g: paused already",
            ]
        await sent(client, "g", b"4")
        consumer.release()
        assert await told_of(vhost, "groups resume orders g") == (0, "g: goes on")
        await bench.acked()
        assert consumer.bodies() == [b"1", b"4"]
        assert {copy.attempt for copy in consumer.received} == {1}
