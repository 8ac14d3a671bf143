"""What an alert says is one line of characters that can be seen, whatever others named things."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from dispatcher.pipeline.page.render import _environment
from dispatcher.pipeline.stream_alerts import GAP, VIOLATION, as_json, as_text

HOSTILE = "naïve \x9b2J\x85\u202e\u2028\x00"


@pytest.mark.parametrize("kind", [GAP, VIOLATION])
def test_an_alert_has_printable_characters_only(kind: str) -> None:
    alert = {
        "kind": kind, "lane": HOSTILE, "text": HOSTILE, "group": HOSTILE, "rule": None,
        "raised_at": datetime(2026, 1, 2, tzinfo=UTC),
    }  # fmt: skip
    for line in (as_json(alert), as_text(alert)):
        assert line.isprintable()
        assert "naïve" in line
    read = json.loads(as_json(alert))
    assert (read["group"], read["raised_at"]) == (HOSTILE, "2026-01-02T00:00:00+00:00")
    assert "rule" not in read


def test_a_page_has_printable_characters_only() -> None:
    made = _environment().from_string("<p>{{ name }}</p>{{ count }}").render(name=f"a\n<b>{HOSTILE}", count=3)
    assert made.replace("\n", "").isprintable()
    assert made.startswith("<p>a\n&lt;b&gt;naïve \\x9b2J")
    assert made.endswith("</p>3")
