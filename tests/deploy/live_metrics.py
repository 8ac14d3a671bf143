"""The metrics of a live dispatcher: what alert rules and dashboards may name."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.http.server import HttpServer
from dispatcher.settings import HttpSettings
from tests.conftest import Vhost
from tests.deploy.promql import named
from tests.service.harness import bench_of, lane
from tests.waiting import eventually

#: Labels that no dispatcher gives: Prometheus adds them to what it scrapes.
TARGET_LABELS = {"cluster", "namespace", "job", "instance", "pod"}
#: A metric of Prometheus' own.
UP = {"up": set[str]()}

Exported = dict[str, set[str]]


def metrics_of_a_live_dispatcher(vhost: Vhost) -> str:
    """/metrics of an active dispatcher that has handed over a message, and leads another lane's shards."""
    return asyncio.run(_scrape(vhost))


def exported_by(text: str) -> Exported:
    """Every sample of it, with the names of its labels."""
    found: Exported = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def _scrape(vhost: Vhost) -> str:
    async with bench_of(vhost) as bench:
        await bench.run(orders=lane("in"), sharded=lane("sharded", shards=2))
        consumer = await bench.joined("c1")
        client = await bench.client()
        client.send("in", b"one", "g")
        await consumer.has(1)
        await eventually(lambda: bench.status()["dead_letters"] is not None)
        server = HttpServer(HttpSettings(listen="127.0.0.1:0"), list(bench.runners.values()))
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await answer.text()
        finally:
            await server.stop()


def problems(expressions: Iterable[str], exported: Exported) -> list[str]:
    """What an expression names that no dispatcher exports: it would never have a result."""
    found = []
    for expression in expressions:
        names = named(expression)
        labels = set(TARGET_LABELS)
        for metric, selected in names.selected:
            if metric not in exported | UP:
                found.append(f"no metric {metric}: {expression}")
                continue
            labels |= (exported | UP)[metric]
            missing = selected - (exported | UP)[metric] - TARGET_LABELS
            found += [f"{metric} has no label {label}: {expression}" for label in missing]
        found += [f"nothing has the label {label}: {expression}" for label in names.grouped - labels]
        rated = re.findall(r"\b(?:rate|increase)\((\w+)", expression)
        found += [
            f"{metric} is no counter: {expression}"
            for metric in rated
            if not metric.endswith(("_total", "_bucket"))
        ]
        if not names.selected:
            found.append(f"names no metric: {expression}")
    return found


def check_with(*command: str | Path) -> None:
    """Run a checker; fails with what it says."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
