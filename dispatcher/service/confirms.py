"""Which publishes the broker has answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from dispatcher.amqp.events import Confirmed


class PublishWindow:
    """The publishes of one channel that wait for their confirm, in tag order, each with a token."""

    def __init__(self) -> None:
        self._tags: deque[int] = deque()
        self._tokens: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, tag: int, token: Any) -> None:
        """A publish went out as `tag`; tags rise."""
        self._tags.append(tag)
        self._tokens[tag] = token

    def awaits(self, tag: int) -> bool:
        """Whether this publish is not answered yet."""
        return tag in self._tokens

    def tokens(self) -> list[Any]:
        """The tokens of all publishes that are not answered, in order."""
        return list(self._tokens.values())

    def take_all(self) -> list[Any]:
        """The tokens of all publishes that are not answered, in order; the next tag begins a new channel."""
        tokens = list(self._tokens.values())
        self._tags.clear()
        self._tokens.clear()
        return tokens

    def answered(self, confirmed: Confirmed) -> Iterator[Any]:
        """The tokens of all publishes that this confirm (or nack) answers, in their order."""
        tags, tokens = self._tags, self._tokens
        if confirmed.multiple:
            while tags and tags[0] <= confirmed.tag:
                tag = tags.popleft()
                if tag in tokens:
                    yield tokens.pop(tag)
            return
        if confirmed.tag in tokens:
            yield tokens.pop(confirmed.tag)
        while tags and tags[0] not in tokens:
            tags.popleft()
