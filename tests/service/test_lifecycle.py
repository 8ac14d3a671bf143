"""How long a group has an owner, end to end (docs/semantics.md, O-3 and O-8)."""

from __future__ import annotations

import pytest

from tests.service.harness import Bench, lane
from tests.waiting import eventually


@pytest.mark.seed("A31")
async def test_an_idle_group_goes_to_whoever_is_next(bench: Bench) -> None:
    await bench.run(orders=lane(group_idle_timeout="300ms"))
    client = await bench.client()
    owner = await bench.joined("c1")
    client.send("in", b"0", "g")
    client.send("in", b"0", "busy")
    await owner.has(2)
    owner.hold()
    client.send("in", b"1", "busy")
    await owner.has(3)
    other = await bench.joined("c2")
    await eventually(lambda: bench.counter("groups_idled") == 1)
    for group in ("g", "busy"):
        client.send("in", b"2", group)
    await other.has(1)
    await owner.has(4)
    assert [copy.group for copy in other.received] == [b"g"]
    assert [copy.group for copy in owner.received[-2:]] == [b"busy"] * 2, "it has something unsettled"
    assert other.received[0].epoch > owner.received[0].epoch
    owner.release()
