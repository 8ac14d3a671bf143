"""Parts that records of the journal share: groups, fingerprints, and bytes behind their length."""

from __future__ import annotations

from struct import Struct
from typing import Final

from dispatcher.errors import ConfigurationError, InvalidTransition

FINGERPRINT_BYTES: Final = 16
#: In place of a group's length: the message is ungrouped.
NO_GROUP: Final = 0xFFFF_FFFF
LENGTH: Final = Struct("!I")


class Damaged(Exception):
    """The bytes are no blob of this version; the text says why."""


def of_another_version(origin: str, what: str, found: int, known: int) -> ConfigurationError:
    """The error for what another version of the dispatcher wrote; `known`: the latest that this one reads."""
    if found < known:
        return ConfigurationError(
            f"{origin}: {what} {found}, and this version begins with {known}: an earlier one "
            "wrote it; let that one empty the lane, stop it and delete the lane's keys in Redis"
        )
    return ConfigurationError(
        f"{origin}: {what} {found}, and this version knows up to {known}: a later one wrote "
        "it; upgrade this replica (to go back to its version, let the later one empty the lane, stop it and "
        "delete the lane's keys in Redis)"
    )


def checked(fingerprint: bytes) -> bytes:
    """The fingerprint; struct would cut or fill another length without a word, and after a crash the message
    would match nothing. Raises InvalidTransition."""
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise InvalidTransition(f"a fingerprint of {len(fingerprint)} bytes reached the journal")
    return fingerprint


def group_length(group: bytes | None) -> int:
    """The encoded length of the group; its bytes follow."""
    return NO_GROUP if group is None else len(group)


def read_bytes(blob: bytes, at: int, length: int) -> tuple[bytes, int]:
    """`length` bytes of the blob and where they end. Raises Damaged."""
    end = at + length
    if end > len(blob):
        raise Damaged(f"ends after {len(blob)} bytes and should have {end}")
    return blob[at:end], end


def read_group(blob: bytes, at: int, length: int) -> tuple[bytes | None, int]:
    """A group and where it ends. Raises Damaged."""
    return (None, at) if length == NO_GROUP else read_bytes(blob, at, length)
