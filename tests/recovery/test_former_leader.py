"""A leader that was frozen wakes up and does at once what it was about to do (R-7, D-7).

Its connection to RabbitMQ was closed by the broker, so its publishes and acks reach nothing; its connection
to Redis lives, so its commit gets there and is refused by the lane's epoch.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from dispatcher.amqp.events import ConnectionClosed
from dispatcher.core.effects import Effects
from dispatcher.core.records import SettledRange
from dispatcher.errors import Fenced
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.settings import RedisSettings
from tests.conftest import Vhost
from tests.recovery.freezable import FreezableDispatcher, freezable
from tests.service.harness import LANE, Bench, bench_of, lane
from tests.service.protocol_consumer import PERSISTENT, ProtocolConsumer
from tests.spec.lane_bench import clause
from tests.waiting import TIMEOUT_S, eventually

CLASSIC, QUORUM = "classic", "quorum"
LATE = b"from a former leader"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def bench(vhost: Vhost) -> AsyncIterator[Bench]:
    async with bench_of(vhost) as made:
        yield made


class Attempts:
    """What a former leader does the moment that it wakes up, and what became of it."""

    def __init__(self, consumer: ProtocolConsumer) -> None:
        self._queue, self._seqs = consumer.queue, sorted(consumer.in_hand)
        self.commit: Future[BaseException | None] = Future()
        self.connection: Future[ConnectionClosed] = Future()

    def __call__(self, runner: LaneRunner) -> None:
        """Runs in the former leader's thread."""
        try:
            self._make(runner)
        except BaseException as failure:
            self.commit.set_exception(failure)
            raise

    def _make(self, runner: LaneRunner) -> None:
        """The event loop must find Redis' answer at its first look: at the next one the lost connection has
        ended everything. So the thread waits for it here, and the connection's own timer is not asked."""
        link, channels, session = runner._link, runner._channels, runner._session
        assert link is not None
        assert channels is not None
        assert session is not None
        assert not link.closed.done()
        assert session.readiness() == (True, "leading")
        assert link._timer is not None
        link._timer.cancel()
        settled = SettledRange(1, self._seqs[0], self._seqs[-1])
        commit = session._store.commit(Effects(records=[settled]))
        commit.add_done_callback(lambda done: self.commit.set_result(done.exception()))
        _wait_for_an_answer(session._store)
        link.publish(
            channels.publish, exchange=runner._names.exchange, routing_key=self._queue, properties=PERSISTENT,
            body=LATE,
        )  # fmt: skip
        for channel in channels.inbound_index:
            link.ack(channel, 1, multiple=True)
        link.flush()
        link.closed.add_done_callback(lambda done: self.connection.set_result(done.result()))


def _wait_for_an_answer(store: LaneStore) -> None:
    """Until the kernel has it; nobody reads it here."""
    assert store._connection is not None
    assert store._connection._transport is not None
    answers = store._connection._transport.get_extra_info("socket")
    readable, _, _ = select.select([answers], [], [], TIMEOUT_S)
    assert readable


def _in_redis(vhost: Vhost) -> dict[str, Any]:
    """Everything that the lane has in Redis."""
    with redis.Redis.from_url(vhost.redis_url) as client:
        keys = LaneKeys.of(vhost.redis_prefix, LANE).all()
        return {key: client.dump(key) for key in keys}


async def _recovered(bench: Bench) -> None:
    """Wait until the leader of the bench has nothing more to commit by itself."""
    await bench.leads()
    session = bench.runners[LANE]._session
    assert session is not None
    inbounds = session.lane.state.inbounds
    await eventually(
        lambda: all(inbound.recovery is None for inbound in inbounds) and session._store.pending == 0,
        what="the end of the recovery",
    )


async def _frozen_with_a_successor(bench: Bench, former: FreezableDispatcher) -> ProtocolConsumer:
    """`former` led, handed one message of each queue over, and froze; the bench's own dispatcher leads."""
    await eventually(lambda: former.state is RunnerState.LEADING, what="the first leader")
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send(CLASSIC, b"1", "a")
    client.send(QUORUM, b"1", "b")
    await consumer.has(2)
    await bench.run(wait=False, **{LANE: _lane()})
    await eventually(lambda: bench.runners[LANE].state is RunnerState.STANDBY, what="a standby")
    former.freeze()
    await _recovered(bench)
    await eventually(lambda: len(consumer.repeated) == 2, what="both copies once more, with their seqs")
    return consumer


def _lane() -> dict[str, Any]:
    return lane(CLASSIC, QUORUM)


async def test_nothing_that_it_does_has_an_effect(bench: Bench, vhost: Vhost) -> None:
    clause("R-7", "all its publishes and acks need is closed, and Redis refuses its commits")
    client = await bench.client()
    await client.declare(QUORUM, x_queue_type="quorum")
    settings = bench.settings(**{LANE: _lane()})
    settings = settings.model_copy(
        update={"rabbitmq": settings.rabbitmq.model_copy(update={"heartbeat_ms": 1_000})}
    )
    with freezable(settings) as former:
        consumer = await _frozen_with_a_successor(bench, former)
        before = _in_redis(vhost)
        attempts = Attempts(consumer)
        former.wake(attempts)
        refused = await asyncio.wrap_future(attempts.commit)
        assert isinstance(refused, Fenced), refused
        closed = await asyncio.wrap_future(attempts.connection)
        print(f"Redis: {refused}\nRabbitMQ: {closed}")
        await eventually(lambda: former.state is RunnerState.STANDBY, what="it to stand by")
        assert _in_redis(vhost) == before
        assert bench.runners[LANE].leaderships == 1
        # The successor goes on, and the consumer got nothing but what that sent.
        client.send(CLASSIC, b"2", "a")
        await consumer.has(3)
        assert LATE not in consumer.bodies()
        assert consumer.bodies("a") == [b"1", b"2"]
        # Both originals are still there: they come back when the successor stops without their settle.
        await bench.crash()
        await eventually(lambda: former.state is RunnerState.LEADING, what="it to lead again")
        await eventually(lambda: len(consumer.repeated) == 5, what="three copies once more")
        consumer.release()
        for queue in (CLASSIC, QUORUM):
            await client.has_ready(queue, 0)
        await eventually(lambda: former.call(lambda: _in_flight(former)) == 0, what="nothing in flight")


def _in_flight(former: FreezableDispatcher) -> int:
    assert former.runner is not None
    return int(former.runner.overview()["in_flight"])


async def test_a_leader_whose_commit_redis_refuses_gives_up_and_recovers(bench: Bench) -> None:
    """D-7: what it decided meanwhile was never sent, and is decided again from what is committed."""
    clause("D-7", "Nothing is published before the commit that says so is known to have happened")
    await bench.run(**{LANE: lane()})
    consumer = await bench.joined("c1")
    rival = await LaneStore.open(
        RedisSettings(url=bench.vhost.redis_url), LANE, bench.vhost.redis_prefix, on_gap=lambda: None
    )
    snapshot = await rival.lead(int(time.time() * 1_000), ["in"])
    await rival.close()
    client = await bench.client()
    client.send("in", b"1", "a")
    (copy,) = await consumer.has(1)
    assert copy.epoch > snapshot.lane_epoch << 20
    assert copy.attempt == 1
    await bench.acked()
    assert bench.runners[LANE].leaderships == 2
    assert not consumer.repeated
