"""What a commit costs, CPU of this process and what Redis needs for it: `python -m bench.store_micro`.

Its argument is the URL of a Redis. Without one it starts a Redis of its own. Encoding is measured apart: the
commit figures are without it.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
import uuid
from collections import deque
from contextlib import ExitStack

import redis
import uvloop

from dispatcher.core.effects import Effects
from dispatcher.core.model import Original
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.records import Dispatched
from dispatcher.core.tables import OwnerRow
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore
from dispatcher.redis_store.codec import decode, encode
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings

COMMITS = 20_000
RECORDS = 40
ENCODINGS = 5_000


def records_of_a_tick() -> list[Dispatched]:
    messages = [
        Original(
            inbound_id(0), tag, (1_700_000_000, tag), tag.to_bytes(16, "big"), b"group-%d" % tag, None, 0, 0
        )
        for tag in range(RECORDS)
    ]
    return [Dispatched(message, 7, "amq.gen-queue", 2**50, 1, 2**51, 1) for message in messages]


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure_codec() -> float:
    """Prints the cost per record; returns that of encoding a whole tick, in µs."""
    records, stored = records_of_a_tick(), list(range(256))
    blob = encode(records, stored)
    began = time.perf_counter()
    for _ in range(ENCODINGS):
        encode(records, stored)
    encoded = time.perf_counter()
    for _ in range(ENCODINGS):
        decode(blob, "blob")
    decoded = time.perf_counter()
    count = ENCODINGS * RECORDS
    encode_us, decode_us = (encoded - began) / count * 1e6, (decoded - encoded) / count * 1e6
    print(
        f"codec: encode {encode_us:.2f} µs, decode {decode_us:.2f} µs, {len(blob) // RECORDS} bytes a record"
    )
    return (encoded - began) / ENCODINGS * 1e6


def script_cost(client: redis.Redis) -> tuple[int, int]:
    """Calls and µs that the server has spent on scripts so far."""
    cost = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec": 0})
    return cost["calls"], cost["usec"]


async def measure_commits(url: str, name: str, effects: Effects, depth: int, encoding_us: float) -> None:
    """`depth` commits are unanswered at any time."""
    prefix = uuid.uuid4().hex[:8]
    store = await LaneStore.open(
        RedisSettings(url=url), "bench", prefix, on_gap=lambda: sys.exit("Redis was emptied")
    )
    await store.lead(int(time.time() * 1000), ["in"])
    with redis.Redis.from_url(url) as client:
        calls, usec = script_cost(client)
        unanswered: deque[asyncio.Future[None]] = deque()
        began, cpu = time.perf_counter(), cpu_s()
        for number in range(COMMITS):
            effects.checkpoint = number % 1_000 == 0  # keeps the journal as short as a lane would
            unanswered.append(store.commit(effects))
            if len(unanswered) == depth:
                await unanswered.popleft()
        await asyncio.gather(*unanswered)
        cpu_us = (cpu_s() - cpu) / COMMITS * 1e6
        elapsed_us = (time.perf_counter() - began) / COMMITS * 1e6
        calls_after, usec_after = script_cost(client)
        await store.close()
        client.delete(*LaneKeys.of(prefix, "bench").all())
    script_us = (usec_after - usec) / (calls_after - calls)
    print(
        f"{name:20} depth {depth}: {elapsed_us:5.1f} µs a commit; own CPU {cpu_us - encoding_us:4.1f} µs "
        f"({cpu_us:4.1f} with encoding), script {script_us:4.1f} µs in Redis"
    )


async def main(url: str) -> None:
    encoding_us = measure_codec()
    for depth in (1, 2, 8):
        tick = Effects(records=list(records_of_a_tick()))
        await measure_commits(url, f"{RECORDS} dispatched", tick, depth, encoding_us)
    owners = {b"group-%d" % number: OwnerRow(7, 2**51) for number in range(RECORDS)}
    tick = Effects(records=list(records_of_a_tick()), owners=dict(owners))
    await measure_commits(url, f"… and {RECORDS} owners", tick, 8, encoding_us)


if __name__ == "__main__":
    with ExitStack() as running:
        given = sys.argv[1:]
        uvloop.run(main(given[0] if given else running.enter_context(LocalRedis()).url))
