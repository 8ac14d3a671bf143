"""A leader that has lost its lock, and was not told, gives its messages back before the next one consumes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from structlog.testing import capture_logs

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume
from dispatcher.errors import ConfigurationError, Fenced, InvalidTransition
from dispatcher.redis_store.store import LaneStore
from dispatcher.service.fencing import Fence, unless_fenced, until_fenced
from dispatcher.service.inbound_feed import awaited, open_inbound
from tests.service.harness import LANE, Bench
from tests.waiting import eventually

NOW_MS = 1_790_000_000_000


async def store(bench: Bench) -> LaneStore:
    settings = bench.settings(**{LANE: {"policy": "exclusive", "inbound": [{"queue": "in"}]}})
    return await LaneStore.open(
        settings.redis, LANE, settings.prefix, on_gap=lambda: None, on_available=lambda _: None
    )  # fmt: skip


async def test_a_leader_without_work_hears_of_the_next_one(bench: Bench) -> None:
    former, following = await store(bench), await store(bench)
    await former.lead(NOW_MS, ["in"])
    assert not await former.is_fenced()
    looks = asyncio.create_task(until_fenced(former))
    await following.fence(NOW_MS, ["in"])
    assert await former.is_fenced()
    with pytest.raises(Fenced):
        await looks
    snapshot = await following.lead(NOW_MS, ["in"])
    assert snapshot.lane_epoch == NOW_MS // 1_000 + 2
    assert not await following.is_fenced()
    await former.close()
    await following.close()


async def test_a_store_that_was_closed_fences_nobody(bench: Bench) -> None:
    leader, late = await store(bench), await store(bench)
    await leader.lead(NOW_MS, ["in"])
    await late.close()
    with pytest.raises(InvalidTransition):
        await late.fence(NOW_MS, ["in"])
    assert not await leader.is_fenced()
    await leader.close()


async def test_several_queues_raise_the_epoch_once_and_only_with_the_lock() -> None:
    done: list[str] = []

    async def prove() -> None:
        done.append("proven")

    async def raise_epoch() -> None:
        done.append("raised")

    fence = Fence(prove, raise_epoch)
    await asyncio.gather(*(fence.raise_epoch() for _ in range(3)))
    assert done == ["proven", "raised"]

    async def lost() -> None:
        raise ConfigurationError("it is not ours")

    with pytest.raises(ConfigurationError):
        await Fence(lost, raise_epoch).raise_epoch()
    assert done == ["proven", "raised"]


async def test_a_take_over_ends_when_another_one_leads() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fenced() -> None:
        raise Fenced("by a test")

    with pytest.raises(Fenced):
        await unless_fenced(never, asyncio.create_task(fenced()))
    assert never.cancelled()


async def test_the_former_leader_has_time_to_end_however_long_redis_takes(bench: Bench) -> None:
    """Its consumer goes when it hears of the new epoch; only then the next one consumes."""
    client = await bench.client()
    await client.declare("in", **{"x-queue-type": "quorum"})
    former = await Link.open(bench.rabbitmq, name="former", on_events=lambda _: None)
    channel = await former.open_channel()
    await former.call(channel, BasicConsume(queue="in", consumer_tag="former"))
    following = await Link.open(bench.rabbitmq, name="following", on_events=lambda _: None)

    async def nothing() -> None:
        """The lock is ours."""

    async def raise_epoch() -> None:
        await asyncio.sleep(1.2)  # sleeps: as long as a slow Redis takes; more than the queue's patience
        asyncio.get_running_loop().call_later(0.3, former.abort)

    fence = Fence(nothing, raise_epoch)
    source = await open_inbound(following, "in", "following", 64, election_s=0, ghosts=1, fence=fence)
    assert source.ghosts == 0, "nobody else was there any more"
    await following.close()


class Proofs:
    """Of the lock: each waits until the test gives it."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[str]()
        self._given = asyncio.Semaphore(0)
        self.fence = Fence(self._prove, self._raise_epoch)

    async def _prove(self) -> None:
        self.asked.put_nowait("proof")
        await self._given.acquire()

    async def _raise_epoch(self) -> None:
        self.asked.put_nowait("epoch")

    def give(self) -> None:
        self._given.release()


async def test_an_empty_queue_counts_only_after_a_proof_of_the_lock(bench: Bench) -> None:
    """If it may have no leader: the node that says so may be cut off from the others. One queue's proof does
    not count for another one."""
    client = await bench.client()
    link = await Link.open(bench.rabbitmq, name="following", on_events=lambda _: None)
    proofs = Proofs()
    for queue in ("in", "low"):
        await client.declare(queue, **{"x-queue-type": "quorum"})
        taking = asyncio.create_task(
            open_inbound(link, queue, queue, 64, election_s=0, silent_s=0.05, fence=proofs.fence)
        )
        assert await proofs.asked.get() == "proof"
        assert await client.consumers(queue) == 0
        proofs.give()
        await taking
        assert await client.consumers(queue) == 1
    assert proofs.asked.empty()
    await link.close()


async def test_after_a_former_leader_an_empty_queue_is_proven_anew(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in", **{"x-queue-type": "quorum"})
    former = await Link.open(bench.rabbitmq, name="former", on_events=lambda _: None)
    await former.call(await former.open_channel(), BasicConsume(queue="in", consumer_tag="former"))
    link = await Link.open(bench.rabbitmq, name="following", on_events=lambda _: None)
    proofs = Proofs()
    taking = asyncio.create_task(
        open_inbound(link, "in", "following", 64, election_s=0, silent_s=0.05, fence=proofs.fence)
    )
    proofs.give()
    assert [await proofs.asked.get(), await proofs.asked.get()] == ["proof", "epoch"]
    await former.close()
    assert await proofs.asked.get() == "proof"
    proofs.give()
    await taking
    await link.close()


async def test_a_message_ends_the_wait_for_the_leader_of_an_empty_queue(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in", **{"x-queue-type": "quorum"})
    link = await Link.open(bench.rabbitmq, name="following", on_events=lambda _: None)
    taking = asyncio.create_task(open_inbound(link, "in", "following", 64, election_s=0, silent_s=3_600))
    await asyncio.wait((taking,), timeout=0.5)  # sleeps: it asks a few times, and must go on waiting
    assert await client.consumers("in") == 0
    client.send("in", b"1", "g")
    await taking
    await link.close()


async def test_the_log_names_a_queue_that_a_lane_waits_for(bench: Bench) -> None:
    """Once, and once more when that has ended; not a queue that answers in time."""
    client = await bench.client()
    link = await Link.open(bench.rabbitmq, name="following", on_events=lambda _: None)
    with capture_logs() as logged:
        for queue, silent_s, told_after_s in (("quick", 0.0, 60.0), ("slow", 3_600.0, 0.1)):
            await client.declare(queue, **{"x-queue-type": "quorum"})
            opening = partial(open_inbound, link, queue, queue, 64, election_s=0, silent_s=silent_s)
            taking = asyncio.create_task(awaited(LANE, queue, opening, told_after_s))
            if silent_s:
                await eventually(lambda: bool(logged), what="a warning")
                assert not taking.done()
                client.send(queue, b"1", "g")
            await taking
    assert [(line["event"], line["log_level"], line["lane"], line["queue"]) for line in logged] == [
        ("inbound_queue_awaited", "warning", LANE, "slow"),
        ("inbound_queue_answers", "info", LANE, "slow"),
    ]
    await link.close()
