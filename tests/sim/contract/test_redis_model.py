"""What the simulator believes of the lane's scripts is what they do in Redis: the real store runs on both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from dispatcher.core.effects import Effects, IdRange, Snapshot, WindowChange
from dispatcher.core.orders import LookUp
from dispatcher.core.records import JournalReset, OpenEntry, SettledRange
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.errors import Fenced
from dispatcher.redis_store import LaneStore
from dispatcher.redis_store.chain import commit_head
from dispatcher.redis_store.scripts import VERIFY, evaluate
from dispatcher.redis_store.tables import TABLES, window_change
from dispatcher.settings import RedisSettings
from dispatcher.sim.dispatchers import SimStore
from dispatcher.sim.loop import ProcessLoop, Scheduler
from dispatcher.sim.redis import Keys, Redis
from tests.conftest import Vhost
from tests.sim.contract.sides import on_virtual_time
from tests.waiting import eventually

NOW_MS = 1_750_000_000_000
ENTRY = OpenEntry(0, (1, 1), b"f" * 16, 1, 10, b"g", 1, 5, 1)
ROW = IncarnationRow("c", "uuid", "queue", 1, 10, "live")


class Side:
    """One Redis, modelled or real: opens stores of one lane, and can forget everything."""

    def __init__(self, open_store: Callable[[Callable[[], None]], Awaitable[LaneStore]], forget: Any) -> None:
        self._open = open_store
        self.forget = forget
        self.gaps: list[int] = []

    async def open(self) -> LaneStore:
        return await self._open(lambda: self.gaps.append(1))

    async def lead(self) -> tuple[LaneStore, Snapshot]:
        store = await self.open()
        return store, await store.lead(NOW_MS, ["in"])


def seen(snapshot: Snapshot) -> Any:
    return (
        snapshot.lane_epoch, snapshot.complete, snapshot.records, snapshot.owners, snapshot.incarnations,
        snapshot.commands, snapshot.operator_rows, snapshot.sequences,
    )  # fmt: skip


def a_commit() -> Effects:
    return Effects(
        records=[ENTRY], owners={b"g": OwnerRow(1, 5)}, incarnations={1: ROW}, commands={"u": {"moves": []}},
        operator_rows={b"lane": {"paused": True}, b"group:\xff": {"pin": "c"}},
        sequences={b"g": 7, b"\xff": 2**63 - 1},
    )  # fmt: skip


# --- scripts ---


async def results_are_kept_in_their_order_the_last_thousand(side: Side) -> Any:
    store, _ = await side.lead()
    await store.confirm_complete()
    for first in range(0, 1_200, 400):
        await store.commit(Effects(commands={f"u{n}": {"n": n} for n in range(first, first + 400)}))
    await store.commit(Effects(commands={"u500": {"n": "again"}}))
    _, snapshot = await side.lead()
    return list(snapshot.commands.items())


async def what_is_committed_is_read(side: Side) -> Any:
    store, empty = await side.lead()
    await store.confirm_complete()
    await store.commit(a_commit())
    await store.commit(
        Effects(records=[SettledRange(1, 10, 10)], owners={b"g": None}, operator_rows={b"lane": None})
    )
    await store.commit(Effects(sequences={b"g": None}))
    _, snapshot = await side.lead()
    return seen(empty), seen(snapshot)


async def a_checkpoint_trims(side: Side) -> Any:
    store, _ = await side.lead()
    await store.commit(a_commit())
    await store.commit(Effects(records=[JournalReset(), ENTRY], checkpoint=True))
    _, snapshot = await side.lead()
    return seen(snapshot)


async def a_former_leader_is_fenced(side: Side) -> Any:
    former, _ = await side.lead()
    await former.commit(a_commit())
    _, snapshot = await side.lead()
    try:
        await former.commit(Effects(records=[SettledRange(1, 10, 10)]))
    except Fenced:
        return seen(snapshot), "fenced"
    return seen(snapshot), "taken"


async def lost_writes_are_a_gap_and_come_back(side: Side) -> Any:
    store, _ = await side.lead()
    await store.confirm_complete()
    await store.commit(a_commit())
    await side.forget()
    late = store.commit(Effects(records=[SettledRange(1, 10, 10)]))
    await eventually(lambda: bool(side.gaps))
    before = late.done()
    everything = Effects(
        records=[JournalReset(), ENTRY], owners={b"g": OwnerRow(1, 5)}, incarnations={1: ROW},
        checkpoint=True,
        operator_rows={b"group:g": {"paused": True}}, sequences={b"g": 7},
    )  # fmt: skip
    await store.restore(everything)
    await late
    await store.commit(Effects(incarnations={1: None}))
    _, snapshot = await side.lead()
    return before, side.gaps, seen(snapshot)


async def an_unconfirmed_lane_is_never_complete(side: Side) -> Any:
    store, _ = await side.lead()
    await store.commit(a_commit())
    second, snapshot = await side.lead()
    await second.confirm_complete()
    _, third = await side.lead()
    return snapshot.complete, third.complete, third.lane_epoch - snapshot.lane_epoch


async def commits_are_taken_once_and_in_their_order(side: Side) -> Any:
    """One whose reply was lost is sent again unchanged. Nothing is taken that leaves a hole, and nothing of
    another leader: who leads is told whether he is fenced, or Redis has lost his words."""
    store, _ = await side.lead()
    await store.commit(a_commit())
    chain, connection = store._chain, store._connection
    assert chain is not None
    assert connection is not None
    leader, last = chain.leader, chain.last
    epoch, _, token = leader.partition(" ")
    former, later = f"{int(epoch) - 1} {token}", f"{int(epoch) + 1} {token}"
    answers = []
    for who, before, ordinal in (
        (leader, last - 1, last), (leader, last, last + 1), (leader, last, last + 1),
        (leader, last + 2, last + 3), (former, last + 1, last + 2), (later, last + 1, last + 2),
        (leader, last + 1, last + 2),
    ):  # fmt: skip
        answers.append(await connection.call(*commit_head(chain._keys, who), before, ordinal, "", b"", ""))
    for who, applied in ((leader, last + 2), (leader, last + 3), (former, last + 2), (later, last + 2)):
        answers.append(await connection.call(*evaluate(VERIFY, chain._keys, who, applied, "run", "run")))
    return [bytes(answer) for answer in answers]


async def the_epoch_rises_whatever_the_clock_says(side: Side) -> Any:
    epochs = []
    for seconds in (0, -3_600, 3_600, 0):
        store = await side.open()
        snapshot = await store.lead(NOW_MS + seconds * 1_000, ["in"])
        epochs.append(snapshot.lane_epoch - NOW_MS // 1_000)
    return epochs


def window(now_ms: int, *entered: str, ids_max: int = 1_000, doubted: str = "", asks: str = "") -> Effects:
    """A commit that has these one-letter ids enter the window, and asks for others."""
    change = WindowChange(now_ms, 10_000, ids_max)
    change.entered = [IdRange(now_ms, b"".join(map(id_of, ids))) for ids in entered]
    change.doubted = [IdRange(now_ms, id_of(doubted.upper()))] if doubted else []
    change.lookup = LookUp([(id_of(one), id_of(one.upper())) for one in asks]) if asks else None
    return Effects(window=change)


def id_of(letter: str) -> bytes:
    return letter.encode() * 16


async def known(store: LaneStore, effects: Effects) -> bytes | None:
    """The answer to what it asks."""
    await store.commit(effects)
    assert effects.window is not None
    assert effects.window.lookup is not None
    return effects.window.lookup.known


async def ids_are_in_the_window_for_its_length(side: Side) -> Any:
    store, _ = await side.lead()
    answers = [await known(store, window(1_000, "ab", asks="abc"))]
    answers += [await known(store, window(5_000, "c", "a", asks="abcd"))]  # a begins anew
    answers += [await known(store, window(11_001, asks="abc"))]
    answers += [await known(store, window(11_001, "b", asks="abc"))]  # over, and entered once more
    answers += [await known(store, window(15_001, asks="abc"))]
    return answers


async def what_is_doubted_counts_as_new(side: Side) -> Any:
    store, _ = await side.lead()
    answers = [await known(store, window(1_000, "ab", doubted="a", asks="ab"))]
    store, _ = await side.lead()
    return [*answers, await known(store, window(2_000, asks="ab"))]


async def the_oldest_ids_leave_when_there_are_too_many(side: Side) -> Any:
    store, _ = await side.lead()
    await store.commit(window(1_000, "a"))
    await store.commit(window(1_001, "bc"))
    return await known(store, window(1_002, "de", ids_max=3, asks="abcde"))


async def ids_are_the_next_leaders_and_go_with_the_journal(side: Side) -> Any:
    store, _ = await side.lead()
    await store.confirm_complete()
    await store.commit(window(1_000, "ab"))
    store, _ = await side.lead()
    answers = [await known(store, window(1_001, asks="abc"))]
    await side.forget()
    lost = window(1_002, asks="abc")
    late = store.commit(lost)
    await eventually(lambda: bool(side.gaps))
    everything = window(1_002, "b")
    everything.records, everything.checkpoint = [JournalReset()], True
    await store.restore(everything)
    await late
    answers += [lost.window and lost.window.lookup and lost.window.lookup.known]
    answers += [await known(store, window(1_003, asks="abc"))]
    await side.forget()
    store, _ = await side.lead()
    return [*answers, await known(store, window(1_004, asks="abc"))]


async def an_answer_comes_again_with_its_commit(side: Side) -> Any:
    store, _ = await side.lead()
    chain, connection = store._chain, store._connection
    assert chain is not None
    assert connection is not None
    before, change = chain.last, window(1_000, "a", asks="ab").window
    assert change is not None
    call = (*commit_head(chain._keys, chain.leader), before, before + 1, "", b"", "", *[b""] * TABLES)
    return [await connection.call(*call, *window_change(change)) for _ in range(2)]


SCRIPTS = [
    ids_are_in_the_window_for_its_length,
    what_is_doubted_counts_as_new,
    the_oldest_ids_leave_when_there_are_too_many,
    ids_are_the_next_leaders_and_go_with_the_journal,
    an_answer_comes_again_with_its_commit,
    commits_are_taken_once_and_in_their_order,
    the_epoch_rises_whatever_the_clock_says,
    what_is_committed_is_read,
    results_are_kept_in_their_order_the_last_thousand,
    a_checkpoint_trims,
    a_former_leader_is_fenced,
    lost_writes_are_a_gap_and_come_back,
    an_unconfirmed_lane_is_never_complete,
]

# --- both sides ---


async def on_redis(script: Callable[[Side], Awaitable[Any]], url: str, prefix: str) -> Any:
    stores: list[LaneStore] = []

    async def open_store(on_gap: Callable[[], None]) -> LaneStore:
        stores.append(await LaneStore.open(RedisSettings(url=url), "lane", prefix, on_gap=on_gap))
        return stores[-1]

    async with redis.asyncio.Redis.from_url(url) as client:

        async def forget() -> None:
            keys = [key async for key in client.scan_iter(match=f"*{prefix}*")]
            await client.delete(*keys)

        try:
            return await script(Side(open_store, forget))
        finally:
            for store in stores:
                await store.close()


def on_model(script: Callable[[Side], Awaitable[Any]], seed: int) -> Any:
    async def begin(scheduler: Scheduler, process: ProcessLoop) -> Any:
        model = Redis(scheduler)
        world: Any = SimpleNamespace(
            redis=model, machines={process: SimpleNamespace(redis_connections=[], way_ms=0)},
            history=SimpleNamespace(led=lambda *_: None, will_commit=lambda *_: None),
        )  # fmt: skip

        async def open_store(on_gap: Callable[[], None]) -> LaneStore:
            store = SimStore(RedisSettings(), "lane", "prefix", on_gap, lambda _: None)
            store.world, store.process = world, process
            store._adopt(await store._connect())
            return store

        async def forget() -> None:
            model.keys = Keys()

        return await script(Side(open_store, forget))

    return on_virtual_time(seed, begin)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_the_model_does_what_redis_does(script: Any, vhost: Vhost) -> None:
    real = await on_redis(script, vhost.redis_url, vhost.redis_prefix)
    for seed in range(5):
        assert on_model(script, seed) == real


async def test_the_window_of_ids_is_what_it_should_be(vhost: Vhost) -> None:
    async def answers(script: Any) -> Any:
        return await on_redis(script, vhost.redis_url, f"{vhost.redis_prefix}.{script.__name__}")

    length = await answers(ids_are_in_the_window_for_its_length)
    assert length == [b"110", b"1110", b"101", b"111", b"010"]
    assert await answers(what_is_doubted_counts_as_new) == [b"01", b"01"]
    assert await answers(the_oldest_ids_leave_when_there_are_too_many) == b"00111"
    leaders = await answers(ids_are_the_next_leaders_and_go_with_the_journal)
    assert leaders == [b"110", None, b"010", b"000"]
    assert await answers(an_answer_comes_again_with_its_commit) == [[b"applied", b"10"]] * 2
