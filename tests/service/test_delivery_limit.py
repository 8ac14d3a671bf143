"""A lane over a quorum queue that soon drops what comes back: RabbitMQ 4 gives each a limit by default."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.service.queue_kinds import ArgumentProbe, default_delivery_limit
from tests.service.harness import Bench, lane
from tests.waiting import eventually

QUORUM = {"x_queue_type": "quorum"}
#: Queues of a lane, and the limits that it warns of from RabbitMQ 4 on; True: RabbitMQ's own.
QUEUES: dict[str, tuple[dict[str, Any], tuple[int, bool] | None]] = {
    "classic": ({}, None),
    "default": (QUORUM, (20, True)),
    "with arguments": (QUORUM | {"x_max_length": 9_000, "x_dead_letter_exchange": "rejects"}, (20, True)),
    "low": (QUORUM | {"x_delivery_limit": 20}, (20, False)),
    "lower": (QUORUM | {"x_max_length": 9_000, "x_delivery_limit": 3}, (3, False)),
    "enough": (QUORUM | {"x_delivery_limit": 21}, None),
}


async def test_a_low_limit_is_told_once_of_each_queue(bench: Bench) -> None:
    client = await bench.client()
    for queue, (arguments, _) in QUEUES.items():
        await client.declare(queue, **arguments)
    expected = {queue: limit for queue, (_, limit) in QUEUES.items() if limit is not None}
    if client.broker_version < (4,):
        expected = {}
    with capture_logs() as logs:
        await bench.run(orders={**lane(), "inbound": [{"queue": queue} for queue in QUEUES]})
        told = [line for line in logs if line["event"] == "delivery_limit_low"]
        assert {line["queue"]: (line["limit"], "policy" in line["problem"]) for line in told} == expected
        assert len(told) == len(expected)
        runner = bench.runners["orders"]
        assert runner._link is not None
        runner._link.abort()
        await eventually(lambda: runner.leaderships == 2, what="the lane to be led again")
        assert [line for line in logs if line["event"] == "delivery_limit_low"] == told
    for queue in QUEUES:
        await client.ready(queue)  # none was changed, or deleted


@pytest.mark.parametrize(("limit", "survive"), [(4, False), (5, True)])
async def test_what_a_crash_loop_costs_is_decided_by_the_limit(
    bench: Bench, limit: int, *, survive: bool
) -> None:
    """No consumer is there, and no leader lives long enough to park what came back so often."""
    before = [b"%d" % number for number in range(20)]
    client = await bench.client()
    await client.declare("in", **QUORUM, x_delivery_limit=limit)
    for body in before:
        client.send("in", body, "g")
    await client.confirmed()
    for _ in range(5):
        await bench.run(orders=lane())
        await eventually(lambda: bench.status()["held"] == len(before))
        await bench.crash()
    client.send("in", b"last", "g")
    await client.confirmed()
    await bench.run(orders=lane())
    consumer = await bench.joined("c")
    await eventually(lambda: b"last" in consumer.bodies("g"))
    assert consumer.bodies("g") == [*(before if survive else ()), b"last"]


RECEIVED = "PRECONDITION_FAILED - inequivalent arg '{}' for queue 'in' in vhost 'v': received"


@pytest.mark.parametrize(
    ("current", "is_said", "value"),
    [
        ("none", True, None),
        ("the value '7' of type 'signedint'", True, "7"),
        ("the value '-1' of type 'signedint'", True, "-1"),
        ("the va...", False, None),
    ],
)
def test_what_rabbitmq_4_says_of_the_limit(current: str, is_said: bool, value: str | None) -> None:
    """On the way there it names another argument that differs; its value is taken for the next declare."""
    probe = ArgumentProbe.of_delivery_limit("in")
    other = RECEIVED.format("x-max-length") + " none but current is the value '9' of type 'signedint'"
    assert probe.learn(406, other)
    assert probe.declare["arguments"]["x-max-length"] == 9
    text = RECEIVED.format("x-delivery-limit")
    assert not probe.learn(406, f"{text} the value 'impossible' of type 'longstr' but current is {current}")
    assert (probe.is_said, probe.value) == (is_said, value)


def test_without_the_right_to_configure_the_limit_is_not_known() -> None:
    probe = ArgumentProbe.of_delivery_limit("in")
    assert not probe.learn(403, "ACCESS_REFUSED - configure access to queue 'in' in vhost 'v' refused")
    assert (probe.is_said, probe.found) == (False, None)


@pytest.mark.parametrize(
    ("version", "limit"),
    [("3.10.8", None), ("3.13.7", None), ("4.0.5", 20), ("4.1.0-rc.1", 20), ("10.0.0", 20), ("", None)],
)
def test_which_versions_have_a_limit_by_default(version: str, limit: int | None) -> None:
    assert default_delivery_limit(version) == limit
