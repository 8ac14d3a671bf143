"""A lane that has something to show everywhere, and a server for it."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.http.server import HttpServer
from dispatcher.settings import HttpSettings
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually

#: Ids of groups that would do harm in HTML, in a script, in a path or in a query.
HOSTILE: Final = (
    b"<script>document.title='owned'</script>",
    b'"><img src=x onerror="document.title=\'owned\'">',
    b"javascript:document.title='owned'",
    b"__proto__",
    b"../..%2F?a=b&c#d+e f",
    b"\xff\x00\xfe\r\n",
    "日本 🎉 \u202eevil".encode(),
    b"constructor",
)
SETTINGS: Final[dict[str, Any]] = {
    "look_ahead": 20,
    "retry": {"attempts": 1, "backoff": "10ms", "on_exhausted": "stop"},
}


async def busy_lane(bench: Bench) -> ProtocolConsumer:
    """Of `orders`: one message of each hostile group is out, and one of `busy`, whose others fill the
    look-ahead; a purge of it is under way. `stopping` has stopped, `paused` is paused."""
    weighted = [{"queue": "in", "weight": 4, "declare": True}, {"queue": "low", "declare": True}]
    await bench.run(orders={**lane(**SETTINGS), "inbound": weighted})
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=len(HOSTILE) + 2)
    client.send("low", b"x", "stopping")
    await client.confirmed()
    await consumer.has(1)
    consumer.fail(consumer.received[0].seq, "no <b>stock</b>")
    await eventually(lambda: bench.status()["groups_stopped"] == 1)
    for group in HOSTILE:
        client.send("in", b"x", group)
    client.send("in", b"x", "paused")
    await client.confirmed()
    await consumer.has(len(HOSTILE) + 2)
    await bench.ask("groups.pause", group="paused")
    client.send("in", b"y", "paused")
    consumer.settle([copy.seq for copy in consumer.received if copy.group == b"paused"])
    client.send("in", b"x", "last")  # with that its consumer is full: nothing is parked, the purge stays open
    for number in range(30):
        client.send("in", b"%d" % number, "busy")
    await client.confirmed()
    await consumer.has(len(HOSTILE) + 4)
    await eventually(lambda: bench.status()["inbound"][0]["full"])
    assert (await bench.ask("groups.purge", group="busy"))["open"]
    return consumer


#: Why the messages of `dead_letters` were given up.
DEAD_REASON: Final = "no <b>customer</b>"


async def dead_letters(bench: Bench) -> None:
    """Of `orders`, which goes on behind them: a message of a hostile group, and then one without a group."""
    await bench.run(orders=lane(retry={"attempts": 1, "on_exhausted": "skip"}))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for number, group in enumerate((HOSTILE[0], None), 1):
        client.send("in", b"x", group)
        await consumer.has(number)
        consumer.fail(consumer.received[-1].seq, DEAD_REASON)
        await eventually(lambda number=number: bench.status()["counters"].get("dead_lettered") == number)


async def served(bench: Bench) -> HttpServer:
    """A server of the bench's lanes, started."""
    server = HttpServer(HttpSettings(listen="127.0.0.1:0"), list(bench.runners.values()))
    await server.start()
    return server
