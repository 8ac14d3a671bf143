"""Tables: small keyed state that Redis keeps beside the journal."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.wire.bundle import BundleLimits


class OwnerRow(NamedTuple):
    """Who a group belongs to under `exclusive`."""

    incarnation: int
    epoch: int


class IncarnationRow(NamedTuple):
    """One life of a consumer, as Redis keeps it under its number."""

    consumer: str
    uuid: str
    queue: str
    n: int
    prefetch: int
    state: str  # "live", "leaving", "evicted", "taken", or "taking": its queue is being read back
    user: str | None = None  # of its join, with `strict_identity`
    bundle: BundleLimits | None = None  # None: each copy goes alone
