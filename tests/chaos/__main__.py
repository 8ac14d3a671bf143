"""`scripts/chaos`: real servers and processes, everything hurt at random, and a verdict on every message.

Exit codes: 0 everything held, 1 something was violated (the evidence is printed), 2 usage, 3 the run came to
no verdict (RabbitMQ or Redis did not start again, or RabbitMQ kept what was in a queue; the reason is
printed), 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from dispatcher.errors import DispatcherError
from dispatcher.nodes.installed import ensure_installed
from dispatcher.wire.shards import shard_name
from tests.chaos.fail_overs import WAYS
from tests.chaos.faults import Faults
from tests.chaos.going_on import STALL_AFTER_FAIL_OVER_S, STALL_AFTER_STOP_S, STALL_S, Limits
from tests.chaos.lanes import LaneOnStage
from tests.chaos.ledger_check import Runner, as_program, check_ledger
from tests.chaos.plan import CONCURRENT, HANDOVER, Plan
from tests.chaos.report import Report, stamp
from tests.chaos.stage import staged
from tests.chaos.verdict import NO_VERDICT, end_and_judge

SHARDS = "shards"
LANES = {
    "exclusive": [LaneOnStage("orders", "exclusive")],
    "sequenced": [LaneOnStage("events", "sequenced")],
    HANDOVER: [LaneOnStage("handed", HANDOVER)],
    CONCURRENT: [LaneOnStage("tasks", CONCURRENT)],
    SHARDS: [LaneOnStage(shard_name("spread", number), "exclusive", 2) for number in (1, 2)],
}
#: The first keeps no order, and refuses what operators say of groups, which is what the others are hurt by.
BY_ITSELF = (CONCURRENT, SHARDS)
RATE, RATE_ON_CLUSTER = 200.0, 60.0
PROGRESS_S = 10.0
#: Commands that wait for a dispatcher hold one each, and a server has to start meanwhile.
THREADS = 100
INTERRUPTED = 130


def main(arguments: list[str], run_pipeline: Runner = as_program) -> int:
    options = _parsed(arguments)
    options.run_pipeline = run_pipeline
    seed = random.randrange(2**31) if options.seed is None else options.seed
    console = Console(soft_wrap=True)
    console.print(f"seed: {seed}", highlight=False)
    try:
        ensure_installed(console.print)
        return asyncio.run(_until_signalled(options, seed, console))
    except (DispatcherError, AssertionError) as error:  # a server does not start, or what is waited for
        console.print(str(error), style="red", markup=False)
    except Exception:
        console.print(traceback.format_exc(), style="red", markup=False)
    console.print("No verdict: the run could not be brought to its end.", style="red")
    return NO_VERDICT


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/chaos", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--seconds", type=float, default=600, help="how long it lasts (600)")
    parser.add_argument("--seed", type=int, help="the faults, and what differs from run to run")
    parser.add_argument(
        "--policy", choices=[*LANES, "all"], default="all",
        help="one lane of each that has groups (all); shards: a lane with two",
    )  # fmt: skip
    rate = "messages per second, all producers (200, on a cluster 60)"
    parser.add_argument("--rate", type=float, help=rate)
    parser.add_argument(
        "--cluster", action="store_true", help="three RabbitMQ nodes, which are hurt one by one"
    )
    stall = f"how long a lane may stand still after that ({STALL_S:.0f}; needs --cluster)"
    parser.add_argument("--stall", type=float, metavar="SECONDS", help=stall)
    after_stop = f"the same after a clean stop ({STALL_AFTER_STOP_S:.0f}; needs --cluster)"
    parser.add_argument("--stall-after-stop", type=float, metavar="SECONDS", help=after_stop)
    fail_over = f"the same once another Redis is the primary ({STALL_AFTER_FAIL_OVER_S:.0f}; needs --cluster)"
    parser.add_argument("--stall-after-fail-over", type=float, metavar="SECONDS", help=fail_over)
    redis = "who finds another Redis: proxies, Sentinel, or a Redis Cluster (proxies; needs --cluster)"
    parser.add_argument("--redis", choices=WAYS, help=redis)
    parser.add_argument(
        "--ledger", action="store_true", help="keep a ledger, run the pipeline over it, and check its report"
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="where to put the report and the record")
    options = parser.parse_args(arguments)
    for_cluster = (options.stall, options.stall_after_stop, options.stall_after_fail_over, options.redis)
    if not options.cluster and any(given is not None for given in for_cluster):
        parser.error("--stall, --stall-after-… and --redis are for --cluster")
    if options.rate is None:
        options.rate = RATE_ON_CLUSTER if options.cluster else RATE
    return options


def _limits(options: argparse.Namespace) -> Limits:
    given = {
        "stall_s": options.stall,
        "after_stop_s": options.stall_after_stop,
        "after_fail_over_s": options.stall_after_fail_over,
    }
    return Limits(**{name: value for name, value in given.items() if value is not None})


async def _until_signalled(options: argparse.Namespace, seed: int, console: Console) -> int:
    """Ctrl-C and SIGTERM end everything that was started, and then us."""
    running = asyncio.ensure_future(_run(options, seed, console))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        console.print("Interrupted; everything is ended.")
        return INTERRUPTED


async def _run(options: argparse.Namespace, seed: int, console: Console) -> int:
    folder: Path = options.report or Path(tempfile.gettempdir()) / f"chaos-{stamp()}-{seed}"
    record = folder / "record"
    record.mkdir(parents=True, exist_ok=True)
    if any(record.iterdir()):
        console.print(f"--report: {record} is not empty", style="red")
        return 2
    plan = Plan(seed, options.seconds, on_cluster=options.cluster)
    chosen = [policy for policy in LANES if policy not in BY_ITSELF]
    policies = chosen if options.policy == "all" else [options.policy]
    lanes = [lane for policy in policies for lane in LANES[policy]]
    console.print(f"{len(plan.faults)} faults in {options.seconds:.0f} s, {plan.settings}", highlight=False)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    console.print(f"record: {record}", highlight=False)
    ledger = folder / "ledger" if options.ledger else None
    redis = WAYS[options.redis]() if options.redis else None
    async with staged(record, plan, lanes, options.rate, ledger, redis) as stage:
        begun = time.monotonic()
        faults = Faults(stage, say)
        progress = asyncio.create_task(_progress(stage.handled, say))
        try:
            await faults.carry_out(plan.faults, options.seconds)
        finally:
            progress.cancel()
            await faults.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await progress
        await stage.heal()
        say("the last fault is over")
        verdict = await end_and_judge(stage, _limits(options))
    if ledger is not None:
        checked = await asyncio.to_thread(
            check_ledger, ledger, folder, verdict.handlings, options.run_pipeline
        )
        say(f"the pipeline's verdict on the ledger: {checked.verdict}")
        verdict.problems += checked.problems
    report = Report(seed, plan, begun, faults.happened, verdict)
    report.write(folder)
    report.show(console)
    console.print(f"report: {folder}", highlight=False)
    return verdict.exit_code


async def _progress(handled: object, say: object) -> None:
    assert callable(handled)
    assert callable(say)
    begun = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)  # sleeps: between two lines
        say(f"{time.monotonic() - begun:8.0f} s: {await asyncio.to_thread(handled):,} messages handled")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
