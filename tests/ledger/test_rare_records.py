"""What happens to messages and groups beside hand-overs, in the ledger of a lane that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher.ledger.writer import Ledger
from tests.ledger import reading
from tests.service.harness import Bench, lane
from tests.waiting import TIMEOUT_S, eventually


def told(found: list[dict[str, Any]], event: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(record[name] for name in names) for record in found if record["event"] == event]


async def test_what_operators_and_producers_end_is_told(bench: Bench, ledger: Ledger, tmp_path: Path) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane(dedup={"window": "5m"}, retry={"attempts": 1, "on_exhausted": "stop"}))
    client = await bench.client()
    await client.declare("elsewhere")
    await bench.ask("groups.pause", all=True)
    for group in ("purged", "moved", "failing", "closed"):
        client.send("in", group.encode(), group, message_id=group.encode())
    client.send("in", b"again", "purged", message_id=b"purged")
    await eventually(lambda: bench.status()["held"] == 4)
    await bench.ask("groups.purge", group="purged")
    await bench.ask("groups.move", group="moved", to="elsewhere")
    await eventually(lambda: bench.counter("deduplicated") == 1)
    await eventually(lambda: bench.status()["held"] == 2)
    await bench.ask("groups.resume", all=True)
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(2)
    (failing,) = [copy for copy in consumer.received if copy.group == b"failing"]
    consumer.fail(failing.seq, "broken")
    await eventually(lambda: bench.status()["groups_stopped"] == 1)
    await bench.ask("dead.drop", group="failing")
    consumer.release()
    await bench.acked()
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    assert told(found, "purged", "group", "inbound") == [("purged", "in")], "and not the operation's marker"
    assert told(found, "moved", "group", "inbound") == [("moved", "in")]
    assert told(found, "deduplicated", "group", "inbound") == [("purged", "in")]
    assert told(found, "failed", "group", "reason") == [("failing", "broken")]
    assert told(found, "dropped", "group") == [("failing",)]
    assert told(found, "settled", "group") == [("closed",)]
    owners = told(found, "owner_changed", "group", "consumer")
    assert {("failing", "c1"), ("closed", "c1")} <= set(owners)
    said = {record["event"] for record in found}
    assert {"lane_paused", "lane_resumed", "operation_done", "group_stopped", "group_dropped"} <= said
