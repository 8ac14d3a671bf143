"""Prometheus' own tool has nothing to say about the names, types and texts of the metrics."""

from __future__ import annotations

import subprocess

from tests.deploy.prometheus import program


def test_promtool_finds_nothing_wrong_with_the_metrics(metrics_text: str) -> None:
    result = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=metrics_text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
