"""Which copies of one step travel together, to the consumers that take bundles.

A bundle holds only what one step hands to one queue, so no copy waits for another. Nothing else is put into
that queue between its copies, so they keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dispatcher.core.records import Dispatched
from dispatcher.wire.bundle import BYTES_MAX, BundleLimits


class Bundle:
    """Copies for one queue, in their order, each as it stands in the bundle. The token of their publish."""

    __slots__ = ("bytes", "copies", "entries", "limits", "queue")

    def __init__(self, queue: str, limits: BundleLimits) -> None:
        self.queue = queue
        self.limits = limits
        self.copies: list[Dispatched] = []
        self.entries: list[bytes] = []
        self.bytes = 0


class OpenBundles:
    """The bundles of the step that is carried out, one of each queue. `limits` says what the consumer of a
    queue takes, None: only single copies. `close` is called with each bundle when it is complete."""

    def __init__(self, limits: Callable[[str], BundleLimits | None], close: Callable[[Bundle], None]) -> None:
        self._limits = limits
        self._close = close
        self._open: dict[str, Bundle] = {}
        self._bytes_max = BYTES_MAX  # of a bundle that RabbitMQ takes, as far as is known
        self._suspected_bytes = 0  # of the largest bundle without an answer when the channel was closed

    def open(self, queue: str) -> Bundle | None:
        """The bundle of this queue; None: its consumer takes single copies."""
        bundle = self._open.get(queue)
        if bundle is None and (limits := self._limits(queue)) is not None:
            bundle = self._open[queue] = Bundle(queue, limits)
        return bundle

    def add(self, bundle: Bundle, copy: Dispatched, entry: bytes) -> None:
        """Put a copy into an open bundle. One that is too large for a bundle stands in one by itself."""
        limits = bundle.limits
        size = len(entry)
        if bundle.copies and (
            len(bundle.copies) >= limits.messages
            or bundle.bytes + size > limits.bytes
            or bundle.bytes + size > self._bytes_max
        ):
            self._close(bundle)
            bundle = self._open[bundle.queue] = Bundle(bundle.queue, limits)
        bundle.copies.append(copy)
        bundle.entries.append(entry)
        bundle.bytes += size

    def close(self, bundle: Bundle) -> None:
        """Nothing more comes into this one: another publish for its queue follows."""
        if self._open.get(bundle.queue) is bundle:
            del self._open[bundle.queue]
            self._close(bundle)

    def close_all(self) -> None:
        """Nothing more comes into them."""
        if self._open:
            bundles, self._open = self._open, {}
            for bundle in bundles.values():
                self._close(bundle)

    # -- when RabbitMQ refuses one --

    def suspect(self, tokens: Iterable[Any]) -> None:
        """RabbitMQ closed the channel while these had no answer: a bundle may be larger than it takes. If one
        message alone is as large, that one is to blame."""
        tokens = list(tokens)
        bundled = max((token.bytes for token in tokens if type(token) is Bundle), default=0)
        alone = max((token.message.size for token in tokens if type(token) is Dispatched), default=0)
        if bundled > alone:
            self._suspected_bytes = max(self._suspected_bytes, bundled)

    def acquit(self) -> None:
        """It was one publish that RabbitMQ refused alone, or nobody knows: not all of them were tried."""
        self._suspected_bytes = 0

    def convict(self) -> None:
        """All of them were taken one by one, so it was a bundle: later ones are at most half as large."""
        if self._suspected_bytes:
            self._bytes_max = min(self._bytes_max, self._suspected_bytes // 2)
            self._suspected_bytes = 0


def copy_by_copy(tokens: Iterable[Any]) -> Iterator[Any]:
    """The same tokens, with the copies of each bundle in its place."""
    for token in tokens:
        if type(token) is Bundle:
            yield from token.copies
        else:
            yield token
