"""The service tests' running dispatcher serves here as well."""

from __future__ import annotations

from tests.service.conftest import bench

__all__ = ["bench"]
