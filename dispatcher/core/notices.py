"""`dispatch.*` messages to consumers (docs/protocol.md)."""

from __future__ import annotations

from typing import Any

from dispatcher.core.model import Consumer
from dispatcher.core.orders import SendNotice
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import TYPE_WELCOME


def send_notice(state: LaneState, consumer: Consumer, kind: str) -> None:
    """Send one to a consumer's present queue."""
    answer(state, consumer.queue, kind, consumer=consumer.id, incarnation=consumer.uuid, n=consumer.n)


def answer(state: LaneState, queue: str, kind: str, **whom: Any) -> None:
    """Send one to this queue. A welcome says what the lane expects of its consumers. Consumers of a hand-over
    lane get none."""
    options = state.options
    if options.handover_prefix and queue.startswith(options.handover_prefix):
        return
    body = {**whom, "heartbeat": options.heartbeat_ms}
    if kind == TYPE_WELCOME:
        body["retry"] = {"attempts": options.attempts, "backoff": options.backoff_ms}
        if options.shards > 1:
            body["shards"] = options.shards
    state.effects.actions.append(SendNotice(queue, kind, body))
