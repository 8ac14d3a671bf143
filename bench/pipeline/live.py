"""Does what `pipeline plan` and `pipeline advise` promise come true: `python -m bench.pipeline.live`.

Both begin with lanes that run on real servers, with consumers of the SDK whose handlers take their time.

The plan: one consumer has all groups of a lane, two others have none. The plan of its report is carried out
by `dispatcher rebalance`, the same messages come again, and the next report says how busy each consumer was.

The advice: the same messages go through a lane once with each setting. The advice is made from the report of
the first one; predicted and measured percentiles stand side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import yaml
from pyspark.sql import SparkSession

from bench.failover.__main__ import own_vhost
from dispatcher.client import GroupConsumer, Message
from dispatcher.errors import DispatcherError
from dispatcher.ledger.writer import Ledger
from dispatcher.nodes import Servers, open_servers
from dispatcher.pipeline.advise.advice_text import measured
from dispatcher.pipeline.advise.measures import percentile
from dispatcher.pipeline.advise.run import Advised, advise
from dispatcher.pipeline.advise.sweeps import Wanted
from dispatcher.pipeline.advise.traffic import Scenario
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.plan import Wishes
from dispatcher.pipeline.planning import make_plan
from dispatcher.pipeline.report_folder import ReportFolder
from dispatcher.pipeline.run import fitting_records, look, run
from dispatcher.pipeline.session import spark_session
from dispatcher.settings import LedgerSettings
from tests.conftest import Vhost
from tests.service.harness import Bench, bench_of, document, lane
from tests.waiting import TIMEOUT_S, eventually

SKEWED: Final = "skewed"
#: How far the share of a consumer may be from what the plan promised.
BALANCE_MAX: Final = 0.10
#: How many messages a consumer of the advice's lanes works on at a time.
AT_A_TIME: Final = 4
SETTINGS: Final = {
    "as_it_was": Scenario(2, 10, "exclusive", (1,)),
    "consumers": Scenario(4, 10, "exclusive", (1,)),
    "prefetch": Scenario(2, 5, "exclusive", (1,)),
    "policy": Scenario(2, 10, "sequenced", (1,)),
}


class Load(NamedTuple):
    """A message: how long after the one before it is sent, its group, and how long its handler takes."""

    after_s: float
    group: str
    work_s: float


class Balance(NamedTuple):
    """Of the consumer's work among all of its lane, as a share.

    `measured` is what the next report says: how long the handlers took. `asked` is how long they were asked
    to take. The two differ where handlers wake up late, on a machine that is busy with something else.
    """

    consumer: str
    before: float
    promised: float
    measured: float
    asked: float

    @property
    def is_kept(self) -> bool:
        return abs(self.measured - self.promised) <= BALANCE_MAX * self.promised


class Compared(NamedTuple):
    """Of one setting, in ms: from received to handed over, and to settled."""

    name: str
    scenario: Scenario
    predicted: tuple[float | None, float | None]
    measured: tuple[float | None, float | None]


def skewed(messages: int, groups: int = 24, seed: int = 7) -> list[Load]:
    """At once; the n-th group has a part like 1/n of them."""
    draw = random.Random(seed)
    names = [f"g{number}" for number in range(groups)]
    chosen = draw.choices(names, [1 / (number + 3) for number in range(groups)], k=messages)
    return [Load(0.0, group, draw.uniform(0.005, 0.015)) for group in chosen]


def steady(messages: int, groups: int = 40, every_s: float = 0.006, seed: int = 3) -> list[Load]:
    """One after the other, of groups that are alike."""
    draw = random.Random(seed)
    return [
        Load(draw.expovariate(1 / every_s), f"g{draw.randrange(groups)}", draw.expovariate(1 / 0.03))
        for _ in range(messages)
    ]


@contextlib.asynccontextmanager
async def consuming(
    bench: Bench, name: str, ids: Sequence[str], prefetch: int, at_a_time: int,
    asked_us: Counter[str] | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """Consumers that take as long for a message as it says; `asked_us` adds that up for each."""

    def working(consumer: str) -> Callable[[Message], Awaitable[None]]:
        async def work(message: Message) -> None:
            if asked_us is not None:
                asked_us[consumer] += round(float(message.body) * 1_000_000)
            await asyncio.sleep(float(message.body))

        return work

    urls = bench.vhost.amqp_url, name
    consumers = [GroupConsumer(*urls, each, prefetch, prefix=bench.vhost.redis_prefix) for each in ids]
    tasks = [
        asyncio.create_task(each.run(working(consumer), concurrency=at_a_time, stop_on_signals=False))
        for consumer, each in zip(ids, consumers, strict=True)
    ]
    try:
        yield
    finally:
        for each in consumers:
            each.stop()
        await asyncio.gather(*tasks)


async def sent(bench: Bench, name: str, load: Sequence[Load]) -> None:
    """Send all of it, and wait until all is settled."""
    client = await bench.client()
    for each in load:
        if each.after_s:
            await asyncio.sleep(each.after_s)
        client.send("in", b"%.6f" % each.work_s, each.group)
    await client.confirmed()
    await bench.acked("in", name)


async def there(bench: Bench, name: str, count: int) -> None:
    await eventually(lambda: bench.status(name)["consumers"] == count, what=f"{count} consumers")


@contextlib.contextmanager
def ledger_at(folder: Path, bench: Bench) -> Iterator[None]:
    ledger = Ledger(LedgerSettings(path=str(folder / "ledger")))
    ledger.start()
    bench.ledger = ledger
    try:
        yield
    finally:
        ledger.stop(TIMEOUT_S)


def report_of(spark: SparkSession, folder: Path) -> Path:
    ledger, report = str(folder / "ledger"), folder / "report"
    run(spark, ledger, look(ledger, Window(), report), report, Window(), _stage)
    return report


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


async def balances(spark: SparkSession, vhost: Vhost, folder: Path, messages: int) -> list[Balance]:
    """By consumer: before, as planned, and after the plan was carried out."""
    load, settings = skewed(messages), lane("in", reconnect_grace="60s")
    asked_us: Counter[str] = Counter()
    async with contextlib.AsyncExitStack() as others:
        bench = await others.enter_async_context(bench_of(vhost))
        with ledger_at(folder / "before", bench):
            await bench.run(skewed=settings)
            await others.enter_async_context(consuming(bench, SKEWED, ["c1"], 10, 1, asked_us))
            await there(bench, SKEWED, 1)
            await sent(bench, SKEWED, load)
            await others.enter_async_context(consuming(bench, SKEWED, ["c2", "c3"], 10, 1, asked_us))
            await there(bench, SKEWED, 3)
            await bench.stop(SKEWED)
        report = await asyncio.to_thread(report_of, spark, folder / "before")
        plan = folder / "plan.json"
        made = await asyncio.to_thread(
            make_plan, spark, report, SKEWED, Wishes(equal_speeds=True), plan, _stage
        )
        with ledger_at(folder / "after", bench):
            await bench.run(skewed=settings)
            await there(bench, SKEWED, 3)
            await _rebalance(vhost, folder / "dispatcher.yaml", settings, plan)
            asked_us.clear()
            await sent(bench, SKEWED, load)
            await bench.stop(SKEWED)
    report = await asyncio.to_thread(report_of, spark, folder / "after")
    busy: dict[str, int] = {}
    for row in ReportFolder(report).rows("consumer_stats"):
        busy[row["consumer"]] = busy.get(row["consumer"], 0) + row["busy_us"]
    told = made.facts["consumers"]
    now, planned = (sum(each[name] for each in told) for name in ("now_us", "planned_us"))
    return [
        Balance(each["consumer"], each["now_us"] / now, each["planned_us"] / planned,
                busy.get(each["consumer"], 0) / sum(busy.values()),
                asked_us[each["consumer"]] / asked_us.total())
        for each in told
    ]  # fmt: skip


async def _rebalance(vhost: Vhost, config: Path, settings: dict[str, Any], plan: Path) -> None:
    written = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, {SKEWED: settings})
    await asyncio.to_thread(config.write_text, yaml.safe_dump(written))
    command = [sys.executable, "-m", "dispatcher", "rebalance", SKEWED, "--plan", str(plan)]
    process = await asyncio.create_subprocess_exec(
        *command, "-c", str(config), stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0


async def run_settings(servers: Servers, folder: Path, messages: int) -> None:
    """Each in a lane and a vhost of its own, one after the other; their ledger is in the folder."""
    for name, scenario in SETTINGS.items():
        with own_vhost(servers) as vhost:
            async with bench_of(vhost) as bench:
                with ledger_at(folder, bench):
                    settings: dict[str, Any] = {name: lane("in", policy=scenario.policy)}
                    await bench.run(**settings)
                    ids = [f"c{number}" for number in range(scenario.consumers)]
                    async with consuming(bench, name, ids, scenario.prefetch, AT_A_TIME):
                        await there(bench, name, scenario.consumers)
                        await sent(bench, name, steady(messages))
                    await bench.stop(name)


def compared(spark: SparkSession, report: Path) -> list[Compared]:
    """The advice from the lane `as_it_was`, beside what the others measured."""
    wanted = Wanted((2, 4), (5, 10), (None,), ("exclusive", "sequenced"))
    result = advise(spark, report, list(SETTINGS), wanted, None, _stage)
    advised = {each.sample.lane: each for each in result.lanes}
    found = advised["as_it_was"].advice.found
    rows = []
    for name, scenario in SETTINGS.items():
        told = found[scenario]
        predicted = told.dispatch_p99_us, told.total_p99_us
        rows.append(Compared(name, scenario, _ms(predicted), _ms(_measured(advised[name]))))
    return rows


def _measured(advised: Advised) -> tuple[float | None, float | None]:
    rows = advised.sample.messages[advised.sample.warm_up :]
    totals = sorted(row["settled_us"] - row["at_us"] for row in rows if row["settled_us"] is not None)
    return measured(advised.sample)[1], percentile(totals, 99)


def _ms(pair: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    first, second = (each and each / 1_000 for each in pair)
    return first, second


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.live", description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000, help="through each lane (3000)")
    messages = parser.parse_args().messages
    if messages < 100:
        parser.error("--messages must be at least 100")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        with ExitStack() as running:
            servers = running.enter_context(open_servers())
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-live-")))
            vhost = running.enter_context(own_vhost(servers))
            asyncio.run(run_settings(servers, folder / "advice", messages))
            spark = running.enter_context(spark_session(None, fitting_records(10 * messages)))
            rows = compared(spark, report_of(spark, folder / "advice"))
            shares = asyncio.run(balances(spark, vhost, folder, messages))
    except DispatcherError as error:
        print(f"bench.pipeline.live: {error}", file=sys.stderr)
        return 1
    print("| setting | consumers | prefetch | policy | p99 to hand-over: predicted | measured | "
          "p99 to settle: predicted | measured |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for each in rows:
        cells = [f"{ms:.0f} ms" if ms is not None else "no bound" for pair in
                 zip(each.predicted, each.measured, strict=True) for ms in pair]  # fmt: skip
        what = each.scenario
        print(f"| {each.name} | {what.consumers} | {what.prefetch} | {what.policy} | {' | '.join(cells)} |")
    print("\n| consumer | before | promised | measured |\n|---|---|---|---|")
    for share in shares:
        print(f"| {share.consumer} | {share.before:.1%} | {share.promised:.1%} | {share.measured:.1%} |")
    broken = [share.consumer for share in shares if not share.is_kept]
    for name in broken:
        print(f"bench.pipeline.live: {name} is off by more than {BALANCE_MAX:.0%}", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
