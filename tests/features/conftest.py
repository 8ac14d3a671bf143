"""Fixtures of the row-by-row tests: those of the running dispatcher."""

from __future__ import annotations

from tests.service.conftest import _plain_log, bench, dispatcher_process

__all__ = ["_plain_log", "bench", "dispatcher_process"]
