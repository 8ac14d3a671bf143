"""The recovery tests' fixtures serve here as well."""

from __future__ import annotations

from tests.recovery.conftest import open_scene

__all__ = ["open_scene"]
