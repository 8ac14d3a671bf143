"""Policies: how a lane's groups may be spread over its consumers (contract section 4).

A policy holds no state. It answers how many messages of a free group go out at once, whether the owner may
get more while it holds some, and whether it keeps the group when it holds none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one lane, ready for the delivery pass."""

    name: str
    grouped: bool  # False: group ids are carried along, but nothing is ordered by them
    tops_up: bool  # the owner may receive more while it holds something
    keeps_owner: bool  # the owner keeps the group while nothing of it is out
    by_load: bool = False  # messages without a group go to the least loaded consumer, else in turn

    def first_batch(self, credit: int, waiting: int) -> int:
        """How many messages of a free group go to the consumer that takes it (1 or more).

        A policy that tops up sends one, the rest follows through the ordinary shares; one that does not
        must send the whole batch now (Q14: N is the consumer's free share of its prefetch).
        """
        return 1 if self.tops_up else min(credit, waiting)


def policy(name: str, *, top_up: bool = False, grouped: bool = True) -> Policy:
    """The policy of that name; `top_up` matters for `sequenced` only (what brokers shipped, decision 7).

    Not `grouped`: a lane that ignores groups (`group_map: none`), whatever its policy would do with them.
    Raises ValueError for a name that is none.
    """
    if not grouped and name in ("exclusive", "sequenced"):
        return Policy(name, grouped=False, tops_up=True, keeps_owner=False)
    match name:
        case "exclusive":
            return Policy(name, grouped=True, tops_up=True, keeps_owner=True)
        case "sequenced":
            return Policy(name, grouped=True, tops_up=top_up, keeps_owner=False)
        case "concurrent":
            return Policy(name, grouped=False, tops_up=True, keeps_owner=False, by_load=True)
        case _:
            raise ValueError(f"no policy {name!r}")
