"""Secrets that stand outside of the file, which says where: `file:PATH` or `env:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def secret_source(text: str) -> str:
    """The text, if it says where a secret is. Raises ValueError, which does not quote it."""
    kind, colon, name = text.partition(":")
    if kind not in ("file", "env") or not colon or not name:
        raise ValueError("must be file:PATH or env:NAME, where the secret is")
    return text


def read_secret(source: str, environ: Mapping[str, str]) -> str:
    """The secret, without space around that of a file. Raises ValueError: there is none."""
    kind, _, name = source.partition(":")
    if kind == "env":
        if not environ.get(name):
            raise ValueError(f"the environment has no {name}")
        return environ[name]
    try:
        found = Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "not UTF-8"
        raise ValueError(f"{name} can't be read ({why})") from None
    if not found:
        raise ValueError(f"there is nothing in {name}")
    return found
