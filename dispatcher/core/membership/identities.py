"""Who speaks for an incarnation: with `strict_identity` the user of its join alone.

RabbitMQ has validated the user. An incarnation without a known one, from before the option was set, gets the
user of its next word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatcher.core.feature import Feature
from dispatcher.core.membership.rows import commit_incarnation
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import Heartbeat, Join, Leave, Settle

_Word = Join | Settle | Leave | Heartbeat


class Identities(Feature):
    """Lets the words through that count."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def counts(self) -> Mapping[type, Callable[[Any], bool]]:
        return dict.fromkeys((Join, Settle, Leave, Heartbeat), self._counts)

    def _counts(self, word: _Word) -> bool:
        state = self._state
        consumer = state.by_uuid.get(word.incarnation)
        if consumer is None:
            present = state.by_id.get(word.consumer)
            waiting = present.waiting if present is not None else None
            if waiting is None or waiting.incarnation != word.incarnation or waiting.user == word.user:
                return True
        elif consumer.user is None:
            consumer.user = word.user
            commit_incarnation(state, consumer)
            return True
        elif consumer.user == word.user:
            return True
        state.counters["control_refused"] += 1
        state.warn(
            "identity_refused", consumer=word.consumer, incarnation=word.incarnation,
            word=type(word).__name__.lower(), user=word.user,
        )  # fmt: skip
        return False
