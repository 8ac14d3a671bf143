"""From skewed traffic to owners as planned: ledger, pipeline, plan, and the command that carries it out."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from bench.pipeline.live import balances
from dispatcher.ledger.writer import Ledger
from dispatcher.pipeline.plan import Wishes
from dispatcher.pipeline.plan_file import read_plan
from dispatcher.pipeline.planning import make_plan
from dispatcher.settings import LedgerSettings
from tests.conftest import Vhost
from tests.pipeline.conftest import run_pipeline
from tests.service.conftest import _plain_log, bench
from tests.service.harness import Bench, document, lane
from tests.waiting import TIMEOUT_S, eventually

__all__ = ["_plain_log", "bench"]


def _stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


async def owners(bench: Bench) -> dict[str, str]:
    rows = (await bench.ask("groups.list"))["groups"]
    return {row["group"]: row["owner"] for row in rows}


async def test_owners_are_as_planned_and_who_left_is_named(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path / "ledger")))
    ledger.start()
    bench.ledger = ledger
    settings = lane("in")
    await bench.run(orders=settings)
    client = await bench.client()
    await bench.joined("c1", prefetch=1)
    for number in range(80):
        client.send("in", b"%d" % number, f"g{number % 8}")
    await client.confirmed()

    async def all_are_owned() -> bool:
        owned = await owners(bench)
        return len(owned) == 8 and set(owned.values()) == {"c1"}

    await eventually(all_are_owned)
    await bench.acked("in")
    await bench.joined("c2")
    third = await bench.joined("c3")
    assert ledger.stop(TIMEOUT_S)

    plan_file, config_file = tmp_path / "plan.json", tmp_path / "dispatcher.yaml"
    await asyncio.to_thread(run_pipeline, spark, tmp_path)
    wishes = Wishes(tolerance=0.0)
    made = await asyncio.to_thread(make_plan, spark, tmp_path / "report", "orders", wishes, plan_file, _stage)
    span = made.facts["makespan_us"]
    assert span["lower_bound"] <= span["planned"] < span["now"]
    planned = {move.group: move.target for move in read_plan(plan_file).moves}
    assert set(planned.values()) == {"c2", "c3"}
    lost = [group for group, target in planned.items() if target == "c3"]

    await third.leave()
    await eventually(lambda: bench.status()["consumers"] == 2, what="c3 to be gone")
    written = document(
        bench.vhost.amqp_url, bench.vhost.redis_url, bench.vhost.redis_prefix, {"orders": settings}
    )
    config_file.write_text(yaml.safe_dump(written))

    async def rebalance(*more: str) -> str:
        command = [sys.executable, "-m", "dispatcher", "rebalance", "orders", "--plan", str(plan_file)]
        process = await asyncio.create_subprocess_exec(
            *command, "-c", str(config_file), *more, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    result = json.loads(await rebalance("--json"))
    assert result["skipped"] == {"consumer c3 is not there": len(lost)}
    assert {each["group"] for each in result["skipped_groups"]} == set(lost)
    assert result["groups"] == len(planned) - len(lost)
    expected = {f"g{number}": "c1" for number in range(8)} | {
        group: target for group, target in planned.items() if target != "c3"
    }
    assert await owners(bench) == expected
    again = (await rebalance()).splitlines()
    assert again[-1] == f"0 groups move, {len(planned)} skipped"
    assert any(line.startswith("skipped, consumer c3 is not there: ") for line in again)
    assert any(line.startswith("skipped, is with its consumer already: ") for line in again)
    client.send("in", b"last", next(group for group, owner in expected.items() if owner == "c2"))
    await bench.acked("in")


@pytest.mark.slow
async def test_the_next_report_shows_the_balance_that_was_planned(
    vhost: Vhost, spark: SparkSession, tmp_path: Path
) -> None:
    shares = await balances(spark, vhost, tmp_path, 400)
    assert [share.consumer for share in shares] == ["c1", "c2", "c3"]
    assert [share.before for share in shares] == [1.0, 0.0, 0.0]
    assert max(share.promised for share in shares) < 0.4
    # The plan is made from how long handlers took, so it is off, too, where they wake up late. That it is off
    # by a tenth at most, and the next report as well, is judged by the benchmark, alone on its machine.
    for share in shares:
        assert abs(share.asked - share.promised) <= share.promised / 4, share
        assert share.measured > share.promised / 2, share
