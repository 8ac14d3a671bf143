"""The file that `cost: {measured: FILE}` begins with: what messages took, by inbound queue and type.

The pipeline writes it (`cost_model.json`, docs/pipeline.md): means with their errors, by size bands as well.
A consumer's work does not depend on the band here: the bands of a type are put together, of which enough is
known.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.wire.group_text import parse_group

#: Of the file's form; 1 had no types, and other means.
VERSION: Final = 2
#: A band counts if it has this many messages, and its mean is known within this part of it (with 95 %).
MESSAGES_MIN: Final = 30
ERROR_PART_MAX: Final = 0.5
#: Of each lane the kinds with most messages are taken: the core tells apart twice as many, and others come.
KINDS_MAX: Final = 500
_FILE_BYTES_MAX: Final = 64 << 20


class KnownKind(NamedTuple):
    """What messages of one inbound queue and type took on average, and how many they were."""

    inbound: str
    kind: bytes | None
    mean_us: float
    messages: int


class WorkFile(str):
    """The file's path, with what it said of each lane when it was read. Equal to others of that path."""

    lanes: dict[str, tuple[KnownKind, ...]]


def read_known_work(path: str) -> WorkFile:
    """Raises ValueError, with a text that names the file and its problem."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ValueError(f"{path} can't be read: {problem.strerror or problem}") from None
    if len(raw) > _FILE_BYTES_MAX:
        raise ValueError(f"{path} is larger than {_FILE_BYTES_MAX >> 20} MiB")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("lanes"), dict):
        raise ValueError(f"{path} is not a cost model (`dispatcher pipeline run` writes cost_model.json)")
    if document.get("version") != VERSION:
        raise ValueError(
            f"{path} is a cost model of version {document.get('version')!r}, not {VERSION}: make it with the "
            "`dispatcher pipeline run` of this version"
        )
    found = WorkFile(path)
    try:
        found.lanes = {lane: _kinds(inbounds) for lane, inbounds in document["lanes"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"{path} is a damaged cost model: make it again") from None
    return found


def _kinds(inbounds: dict[str, list[dict[str, Any]]]) -> tuple[KnownKind, ...]:
    sums: dict[tuple[str, bytes | None], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for inbound, bands in inbounds.items():
        for band in bands:
            kind = parse_group(band["type"]) if band["type"] is not None else None
            messages, mean_us, error_us = band["messages"], float(band["mean_us"]), band["error_us"]
            if type(messages) is not int or not 0 <= mean_us < float("inf"):
                raise ValueError
            if messages >= MESSAGES_MIN and error_us is not None and error_us <= ERROR_PART_MAX * mean_us:
                work_us, count = sums[inbound, kind]
                sums[inbound, kind] = work_us + messages * mean_us, count + messages
    found = [KnownKind(*name, work_us / count, count) for name, (work_us, count) in sums.items()]
    return tuple(sorted(found, key=lambda each: -each.messages)[:KINDS_MAX])
