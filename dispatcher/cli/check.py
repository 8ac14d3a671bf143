"""`dispatcher check`: everything that would keep the lanes from running, at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import typer

from dispatcher.certificates import server_context
from dispatcher.cli import options
from dispatcher.cli.check_broker import check_broker
from dispatcher.cli.check_findings import Findings, Level
from dispatcher.cli.check_management import check_management
from dispatcher.cli.output import ACT, LOOK, console, counted, in_colour, print_error, print_json
from dispatcher.errors import ConfigurationError
from dispatcher.http.access import Access
from dispatcher.ledger.opening import open_ledger
from dispatcher.redis_store import probe
from dispatcher.redis_store.probe import WARNING
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import HttpSettings, LedgerSettings, Settings, TraceSettings
from dispatcher.settings.file import former_words
from dispatcher.settings.urls import redact
from dispatcher.traces.opening import require_opentelemetry

_COLOURS: Final = {Level.WARNING: LOOK, Level.PROBLEM: ACT}


def check(
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    management: options.ManagementUrl = None,
) -> None:
    """Check configuration, connections, rights, inbound queues and limits; changes nothing anywhere.

    Every problem is reported at once, and fails (1); warnings and notes don't.
    """
    settings = options.load_settings(file)
    findings = Findings()
    findings.ok(f"{file}: {counted(len(settings.lanes), 'lane')}: {', '.join(settings.lanes)}")
    renamed = former_words(file, os.environ)
    if renamed:
        findings.note("; ".join(renamed))
    broker = check_broker(settings, findings)
    check_management(settings, management, broker, findings)
    _check_store(settings, findings)
    _check_http(settings.http, findings)
    if settings.ledger is not None:
        _check_ledger(settings.ledger, findings)
    if settings.traces is not None:
        _check_traces(settings.traces, findings)
    found = [(finding.level, redact(finding.text)) for finding in findings.all()]
    if as_json:
        print_json({"findings": [{"level": level.value, "text": text} for level, text in found]})
    else:
        out = console()
        for level, text in found:
            line = in_colour(f"{level.value + ':':<9} {text}", _COLOURS.get(level, ""))
            out.print(line, soft_wrap=True)
    if problems := findings.count(Level.PROBLEM):
        print_error(f"dispatcher: {counted(problems, 'problem')} found, the lanes can't run like this")
        raise typer.Exit(1)


def _check_http(settings: HttpSettings, findings: Findings) -> None:
    reads: list[Callable[[], object]] = [lambda: Access.of(settings.tokens)]
    if settings.cert_file is not None:
        reads.append(lambda: server_context("http", settings))
    for read in reads:
        try:
            read()
        except ConfigurationError as refused:
            for problem in refused.problems:
                findings.problem(problem)


def _check_ledger(settings: LedgerSettings, findings: Findings) -> None:
    try:
        open_ledger(settings).discard()
    except ConfigurationError as refused:
        for problem in refused.problems:
            findings.problem(problem)
    else:
        findings.ok(f"ledger: can be written to {settings.path}")


def _check_traces(settings: TraceSettings, findings: Findings) -> None:
    try:
        require_opentelemetry()
    except ConfigurationError as refused:
        findings.problem(str(refused))
    else:
        findings.ok(f"traces: go to {settings.traces_url}")


def _check_store(settings: Settings, findings: Findings) -> None:
    address = settings.redis.address
    keys = [LaneKeys.of(settings.prefix, lane) for lane in settings.lanes]
    lines = asyncio.run(probe(settings.redis, keys))
    for line in lines:
        if line.startswith(WARNING):
            findings.warning(line.removeprefix(WARNING))
        else:
            findings.problem(line)
    if all(line.startswith(WARNING) for line in lines):
        where = f"{address.host}:{address.port}"
        if address.sentinels:
            where = f"the master of {address.service!r}"
        elif address.nodes:
            where = f"the cluster of {address.host}:{address.port}"
        elif address.servers:
            where = f"the master of {len(address.servers)} servers"
        findings.ok(f"redis: connected to {where}, database {address.database}")
