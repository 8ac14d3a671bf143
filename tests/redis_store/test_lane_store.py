"""A leader's ordinary life: lead, commit, read back, be fenced."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
import redis.asyncio

from dispatcher.core.effects import Effects, IdRange, WindowChange
from dispatcher.core.records import IncarnationEnded, SettledEntries, SettledRange
from dispatcher.core.tables import OwnerRow
from dispatcher.errors import ConfigurationError, Fenced, InvalidTransition, StoreUnavailable
from tests.redis_store.conftest import Lane, now_ms
from tests.redis_store.samples import checkpoint, dispatched, entry, incarnation, owned, step
from tests.waiting import eventually


async def test_a_new_lane_is_empty_and_not_known_to_be_complete(lane: Lane) -> None:
    store = await lane.open()
    at_ms = now_ms()
    snapshot = await store.lead(at_ms, ["in"])
    assert snapshot.lane_epoch == at_ms // 1000
    assert (snapshot.complete, snapshot.broker_restarted) == (False, False)
    assert (snapshot.records, snapshot.owners, snapshot.incarnations, snapshot.commands) == ([], {}, {}, {})
    assert store.available
    assert lane.availability == []


async def test_what_was_committed_is_read_back_in_order(lane: Lane) -> None:
    store = await lane.lead(inbounds=("high", "low"))
    first, second = dispatched(1), dispatched(2, inbound=1, group=None)
    store.commit(step(first, second, incarnations={1: incarnation("a"), 2: incarnation("b")}))
    store.commit(step(owners={b"g": OwnerRow(1, 2**52), b"\xff/%\0": OwnerRow(2, 9), b"": OwnerRow(3, 1)}))
    store.commit(step(SettledRange(1, 1, 1), IncarnationEnded(2), owners={b"": None}, incarnations={2: None}))
    store.commit(step(commands={"c-1": {"moved": 3}, "c-2": {}}))
    store.commit(
        step(operator_rows={b"lane": {"paused": True}, b"group:\xff%\0": {"pin": "c"}, b"consumer:c": {}})
    )
    store.commit(step(operator_rows={b"lane": None, b"consumer:c": {"drained": True}}))
    store.commit(step(sequences={b"\xff%\0": 2**63 - 1, b"g": 3, b"": 0}))
    await store.commit(step(sequences={b"g": None, b"": 1}))
    assert store.pending == 0

    snapshot = await lane.read("high", "low")
    assert snapshot.complete
    assert snapshot.records == [entry(first), entry(second), SettledRange(1, 1, 1), IncarnationEnded(2)]
    assert snapshot.commits == [(2, 2), (4, 2)]
    assert store.last_commit == 9
    assert snapshot.owners == {b"g": OwnerRow(1, 2**52), b"\xff/%\0": OwnerRow(2, 9)}
    assert snapshot.incarnations == {1: incarnation("a")}
    assert snapshot.commands == {"c-1": {"moved": 3}, "c-2": {}}
    assert snapshot.operator_rows == {b"group:\xff%\0": {"pin": "c"}, b"consumer:c": {"drained": True}}
    assert snapshot.sequences == {b"\xff%\0": 2**63 - 1, b"": 1}


async def test_an_epoch_is_above_every_one_before_whatever_the_clock_says(lane: Lane) -> None:
    store = await lane.open()
    first = (await store.lead(now_ms(), ["in"])).lane_epoch
    assert (await store.lead(0, ["in"])).lane_epoch == first + 1
    assert (await lane.read()).lane_epoch == first + 2


async def test_futures_of_a_pipeline_are_done_in_order(lane: Lane) -> None:
    store = await lane.lead()
    done: list[int] = []
    futures = [store.commit(step(dispatched(number))) for number in range(1, 101)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: done.append(number))
    assert store.pending == 100
    await asyncio.gather(*futures)
    assert done == list(range(100))
    assert len((await lane.read()).records) == 100


async def test_a_commit_is_one_round_trip_whatever_is_in_it(own_lane: Lane) -> None:
    """Seen by Redis itself: what it was asked by a client, and what by our script."""
    store = await own_lane.lead()
    async with own_lane.client() as watching, own_lane.client() as client:
        await client.ping()  # its greeting
        async with watching.monitor() as monitor:
            for tag in range(1, 4):
                await store.commit(
                    step(
                        dispatched(tag), SettledRange(1, tag, tag), owners=owned(50),
                        incarnations={1: incarnation("a")}, commands={f"c-{tag}": {}},
                        operator_rows={b"lane": {"paused": True}},
                    )
                )  # fmt: skip
            await client.echo("end")
            asked = []
            async for seen in monitor.listen():
                if seen["command"].startswith("ECHO"):
                    break
                if seen["client_type"] != "lua":
                    asked.append(seen["command"].partition(" ")[0])
    assert asked == ["EVALSHA"] * 3


async def test_a_commit_is_encoded_when_it_is_given(lane: Lane) -> None:
    store = await lane.lead()
    record = dispatched(1)
    expected = entry(record)
    future = store.commit(step(record))
    record.message.arrival = (1, 1)
    await future
    assert (await lane.read()).records == [expected]


async def test_effects_that_cannot_be_encoded_leave_no_hole(lane: Lane) -> None:
    store = await lane.lead()
    with pytest.raises(InvalidTransition):
        store.commit(step(entry(dispatched(1))._replace(fingerprint=b"")))
    await store.commit(step(dispatched(2)))
    assert (await lane.read()).records == [entry(dispatched(2))]


async def test_a_checkpoint_trims_what_is_before_it(lane: Lane) -> None:
    store = await lane.lead()
    for number in range(1, 300):
        store.commit(step(dispatched(number)))
    await store.commit(checkpoint(entry(dispatched(299))))
    await store.commit(step(SettledRange(1, 299, 299)))
    assert len(await lane.journal_ids()) == 2
    snapshot = await lane.read()
    assert snapshot.commits == [(301, len(snapshot.records) - 1), (302, 1)]
    assert snapshot.records == [
        *checkpoint(entry(dispatched(299))).records,
        SettledRange(1, 299, 299),
    ]


async def test_a_large_journal_and_large_tables_are_read_whole(lane: Lane) -> None:
    store = await lane.lead()
    owners = {b"group-%d" % number: OwnerRow(number, number) for number in range(30_000)}
    store.commit(step(owners=dict(owners)))
    proven = SettledEntries(0, True, tuple(((1, tag), bytes(16)) for tag in range(40_000)))
    store.commit(step(proven))
    for number in range(1, 1_202):
        last = store.commit(step(dispatched(number)))
    await last
    snapshot = await lane.read()
    assert snapshot.owners == owners
    assert snapshot.records == [proven, *(entry(dispatched(number)) for number in range(1, 1_202))]


async def test_a_new_leader_fences_the_old_one(lane: Lane) -> None:
    old = await lane.lead()
    await old.commit(step(dispatched(1)))
    new = await lane.lead()
    refused = [old.commit(step(dispatched(number))) for number in (2, 3)]
    for future in refused:
        with pytest.raises(Fenced, match="lane orders: another dispatcher leads it now"):
            await future
    assert old.problem == "another dispatcher leads lane orders"
    assert (old.pending, lane.availability) == (0, [False])
    with pytest.raises(Fenced):
        await old.commit(step(dispatched(4)))
    await new.commit(step(dispatched(5)))
    assert (await lane.read()).records == [entry(dispatched(1)), entry(dispatched(5))]


async def test_a_fenced_store_may_lead_again(lane: Lane) -> None:
    old, new = await lane.lead(), await lane.lead()
    with pytest.raises(Fenced):
        await old.commit(step(dispatched(1)))
    await old.lead(now_ms(), ["in"])
    await old.commit(step(dispatched(2)))
    with pytest.raises(Fenced):
        await new.commit(step(dispatched(3)))
    assert lane.availability == [False, True, False]


async def test_leaders_of_the_same_second_on_an_emptied_redis_differ(lane: Lane) -> None:
    at_ms = now_ms()
    old, new = await lane.open(), await lane.open()
    await old.lead(at_ms, ["in"])
    async with lane.client() as client:
        await client.delete(*lane.keys.all())
    assert (await new.lead(at_ms, ["in"])).lane_epoch == at_ms // 1000
    with pytest.raises(Fenced):
        await old.commit(step(dispatched(1)))


async def test_completeness_is_claimed_only_once_it_was_confirmed(lane: Lane) -> None:
    store = await lane.open()
    assert not (await store.lead(now_ms(), ["in"])).complete
    await store.commit(checkpoint())
    assert not (await store.lead(now_ms(), ["in"])).complete  # the leader died while it asked the consumers
    await store.confirm_complete()
    assert (await store.lead(now_ms(), ["in"])).complete
    await store.commit(step(dispatched(1)))
    assert (await store.lead(now_ms(), ["in"])).complete


async def test_an_emptied_lane_is_not_complete(lane: Lane) -> None:
    await lane.lead()
    async with lane.client() as client:
        await client.delete(lane.keys.meta)
    assert not (await lane.read()).complete


async def test_a_journal_without_its_meta_says_nothing_and_stands_in_nobodys_way(lane: Lane) -> None:
    store = await lane.lead()
    for number in range(1, 6):
        last = store.commit(step(dispatched(number), owners={b"g": OwnerRow(1, 1)}))
    await last
    async with lane.client() as client:
        await client.delete(lane.keys.meta)
    snapshot = await lane.read("another", "in")
    assert (snapshot.records, snapshot.owners) == ([], {b"g": OwnerRow(1, 1)})
    await (await lane.lead()).commit(step(dispatched(9)))


async def test_inbound_queues_may_be_added_and_reordered(lane: Lane) -> None:
    store = await lane.lead(inbounds=("high", "low"))
    await store.commit(step(dispatched(1, inbound=0), dispatched(2, inbound=1)))
    records = (await lane.read("new/ü", "low", "high")).records
    assert records == [entry(dispatched(1, inbound=2)), entry(dispatched(2, inbound=1))]
    async with lane.client() as client:
        assert json.loads(await client.hget(lane.keys.meta, "inbounds")) == ["high", "low", "new/ü"]


async def test_a_queue_with_open_entries_can_not_be_removed(lane: Lane) -> None:
    store = await lane.lead(inbounds=("high", "low"))
    await store.commit(step(dispatched(1, inbound=0), dispatched(2, inbound=1)))
    with pytest.raises(ConfigurationError, match=r"^Redis: the journal .* unfinished messages of 'low'"):
        await lane.read("high")
    store = await lane.lead(inbounds=("high", "low"))
    await store.commit(step(SettledRange(1, 2, 2)))
    snapshot = await lane.read("high")
    assert snapshot.records == [entry(dispatched(1))]
    assert snapshot.commits == [], "some of the commits are not whole"


async def test_only_the_newest_thousand_results_are_kept(lane: Lane) -> None:
    store = await lane.lead()
    store.commit(step(commands={f"c-{number}": {"n": number} for number in range(600)}))
    store.commit(step(commands={"c-599": {"n": "again"}}))
    await store.commit(step(commands={f"c-{number}": {"n": number} for number in range(600, 1_003)}))
    commands = (await lane.read()).commands
    assert len(commands) == 1_000
    assert "c-2" not in commands
    assert commands["c-3"] == {"n": 3}
    assert commands["c-599"] == {"n": "again"}
    assert list(commands) == [f"c-{number}" for number in range(3, 1_003)], "oldest first"


async def test_a_result_and_its_uuid_may_be_any_json_text(lane: Lane) -> None:
    store = await lane.lead()
    await store.commit(step(commands={"\ud800ü": {"group": "\udfff%"}}))
    assert (await lane.read()).commands == {"\ud800ü": {"group": "\udfff%"}}


async def test_keys_share_one_slot_and_hold_nothing_of_other_lanes(lane: Lane) -> None:
    store = await lane.lead()
    await store.commit(
        step(
            dispatched(1), owners={b"g": OwnerRow(1, 1)}, incarnations={1: incarnation("a")},
            commands={"c": {}}, operator_rows={b"lane": {"paused": True}}, sequences={b"g": 1},
            window=WindowChange(now_ms(), 300_000, 1_000, entered=[IdRange(now_ms(), b"i" * 16)]),
        )
    )  # fmt: skip
    async with lane.client() as client:
        found = sorted([key.decode() async for key in client.scan_iter(match=f"*{lane.prefix}*")])
    assert found == sorted(lane.keys.all())
    assert {key.partition("}")[0] for key in found} == {f"{{{lane.prefix}:orders"}


async def test_another_programs_bytes_are_named(lane: Lane) -> None:
    store = await lane.lead()
    await store.commit(step(owners={b"g": OwnerRow(1, 1)}))
    async with lane.client() as client:
        await client.hset(lane.keys.owners, b"g", b"nonsense")
    with pytest.raises(ConfigurationError, match=r"^Redis: row b'g' of .*:owners: "):
        await lane.read()


@pytest.mark.parametrize("row", [b"{}", b"[]", b"\xff", b'{"consumer": 1}'])
async def test_an_unreadable_incarnation_is_named(lane: Lane, row: bytes) -> None:
    await lane.lead()
    async with lane.client() as client:
        await client.hset(lane.keys.incarnations, b"7", row)
    with pytest.raises(ConfigurationError, match=r"row b'7' of .*:incarnations: "):
        await lane.read()


async def test_a_commit_before_the_lead_is_a_bug(lane: Lane) -> None:
    store = await lane.open()
    with pytest.raises(InvalidTransition, match="take the lead"):
        store.commit(step(dispatched(1)))
    await store.lead(now_ms(), ["in"])
    with pytest.raises(InvalidTransition, match="checkpoint"):
        store.restore(Effects())


async def test_closing_fails_what_is_unanswered(lane: Lane) -> None:
    store = await lane.lead()
    future = store.commit(step(dispatched(1)))
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await future
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.commit(step(dispatched(2)))
    assert not store.available


async def test_an_idle_connection_is_kept_alive(lane: Lane) -> None:
    store = await lane.open(timeout_ms=1_000)
    await store.lead(now_ms(), ["in"])

    async def pings() -> int:
        async with lane.client() as client:
            named = [c for c in await client.client_list() if c["name"] == f"{lane.prefix}.orders"]
            return [c["cmd"] for c in named].count("ping")

    assert await eventually(pings)
    assert store.available


async def test_ids_take_as_much_memory_as_is_said_and_go_with_their_window(lane: Lane) -> None:
    """docs/operations.md, `dedup.max_ids`: about 140 bytes each."""
    store = await lane.lead()
    ids = b"".join(os.urandom(16) for _ in range(20_000))
    change = WindowChange(now_ms(), 300_000, 1_000_000, entered=[IdRange(now_ms(), ids)])
    await store.commit(Effects(window=change))
    async with redis.asyncio.Redis.from_url(lane.url) as server:
        assert await server.memory_usage(lane.keys.ids, samples=0) / 20_000 < 150
        assert 295_000 < await server.pttl(lane.keys.ids) <= 300_000
        for over_ms in (0, 2_000):
            later = WindowChange(now_ms() + 300_001 + over_ms, 300_000, 1_000_000)
            later.entered = [IdRange(now_ms() + 300_000, os.urandom(16))]
            await store.commit(Effects(window=later))
        assert await server.zcard(lane.keys.ids) == 20_000 + 2 - 2 * (1_000 + 2), "a few at a time"
