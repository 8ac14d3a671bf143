"""The layers of the dispatcher that a message passes, by the files that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Files and folders of `dispatcher`; the first layer that names a file has it.
LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "sockets": ("amqp/link.py",),
    "decode": ("amqp/connection.py", "amqp/decoder.py", "amqp/events.py"),
    "intake": (
        "amqp/grouping.py", "amqp/history_message.py", "amqp/identity.py", "amqp/parked.py",
        "amqp/pricing.py", "amqp/properties.py", "amqp/reclaimed.py", "service/inbound_feed.py",
        "service/message_reader.py", "wire/group_text.py",
    ),
    "core step": ("core",),
    "outbox and copies": (
        "amqp/relay.py", "amqp/transfer.py", "amqp/wire.py", "service/bundling.py", "service/outbox.py",
        "service/publications.py", "service/publish_bisect.py", "service/resends.py", "wire/bundle.py",
    ),
    "confirms": ("service/confirms.py",),
    "journal": (
        "redis_store/chain.py", "redis_store/codec.py", "redis_store/fields.py",
        "redis_store/parking_codec.py", "redis_store/tables.py",
    ),
    "Redis client": ("redis_store",),
    "settles": ("service/control_inbox.py", "wire"),
    "acks of originals": ("service/ack_window.py", "service/original_acks.py"),
    "ticks": ("service/durations.py", "service/session.py", "service/ticks.py", "alarm.py"),
}  # fmt: skip
#: The rest of the program, and what no file of it has called: starting and stopping, above all.
REST: Final = "all else"


def layer_of(file: str) -> str:
    """Of a file of `dispatcher`, as seen from there."""
    for layer, parts in LAYERS.items():
        if any(file == part or file.startswith(f"{part}/") for part in parts):
            return layer
    return REST


def by_layer(samples: Mapping[str, int]) -> dict[str, float]:
    """The share of each layer in these samples of files, in the layers' order; together they are 1."""
    counts = dict.fromkeys([*LAYERS, REST], 0)
    for file, count in samples.items():
        counts[layer_of(file)] += count
    total = sum(counts.values())
    return {layer: count / total for layer, count in counts.items()}
