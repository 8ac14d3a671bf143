"""The lane's keys and Lua scripts, and how calls of them are made. keys.lua has the key catalogue."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

import hiredis

from dispatcher.core.operators.commands import RESULTS_KEPT_MAX


@dataclass(frozen=True, slots=True)
class LaneKeys:
    """The names of one lane's keys; one hash tag, so that a Redis Cluster keeps them together."""

    meta: str
    journal: str
    owners: str
    incarnations: str
    commands: str
    command_order: str
    flags: str
    ids: str
    sequences: str

    @classmethod
    def of(cls, prefix: str, lane: str) -> LaneKeys:
        # The fields' names are the keys' last words.
        return cls(**{word: f"{{{prefix}:{lane}}}:{word}" for word in cls.__slots__})

    def of_the_lane(self, word: str) -> str:
        """Another name under which Redis knows the lane; `*` makes the pattern of all of them."""
        return self.meta.removesuffix("meta") + word

    @property
    def replicas(self) -> str:
        """Who leads and who stands by (dispatcher/service/replicas.py). No script has it."""
        return self.of_the_lane("replicas")

    def all(self) -> tuple[str, ...]:
        """In the order that the scripts know."""
        return (
            self.meta, self.journal, self.owners, self.incarnations, self.commands, self.command_order,
            self.flags, self.ids, self.sequences,
        )  # fmt: skip


def _script(name: str) -> bytes:
    folder = resources.files(__package__)
    limits = b"local RESULTS_KEPT_MAX = %d\n" % RESULTS_KEPT_MAX
    return (folder / "keys.lua").read_bytes() + limits + (folder / f"{name}.lua").read_bytes()


LEAD: Final = _script("lead")
COMMIT: Final = _script("commit")
VERIFY: Final = _script("verify")
BEGIN_RESTORE: Final = _script("begin_restore")
#: Only commits are frequent enough to be called by their digest; the others travel with each call.
COMMIT_SHA: Final = hashlib.sha1(COMMIT, usedforsecurity=False).hexdigest()

APPLIED: Final = b"applied"
BEGUN: Final = b"begun"
#: Redis lost commits: what follows does not fit what it has.
CHAIN_BROKEN: Final = b"gap"
FENCED: Final = b"fenced"

Argument = str | bytes | int


def pack(*arguments: Argument) -> bytes:
    """One command as Redis reads it."""
    packed: bytes = hiredis.pack_command(arguments)  # type: ignore[arg-type]  # its stub means one argument
    return packed


def evaluate(script: bytes, keys: LaneKeys, *arguments: Argument) -> tuple[Argument, ...]:
    """The command that runs a script on a lane, sent with its text."""
    return ("EVAL", script, len(LaneKeys.__slots__), *keys.all(), *arguments)
