"""The page for people: one HTML document without scripts or anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from dispatcher import __version__
from dispatcher.http.views import LaneView

#: The page loads itself again this often.
REFRESH_S: Final = 5
GROUPS_SHOWN: Final = 10

_STYLE: Final = """
:root { color-scheme: light dark; --line: #d4d7dd; --dim: #5c6370; --bad: #b3261e; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3f4a; --dim: #9aa2b1; --bad: #ff8a80; --good: #7ddc9f; }
}
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0 1rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .2rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } .n { text-align: right; }
""".strip()

_INBOUND: Final = ("queue", "weight", "share", "dispatched", "held", "in_flight", "look_ahead", "full_of")
_CONSUMERS: Final = ("consumer", "state", "drained", "prefetch", "in_flight", "groups", "last_heartbeat_ms")
_GROUPS: Final = (
    "group",
    "state",
    "owner",
    "paused",
    "stopped",
    "pin",
    "held",
    "in_flight",
    "window",
    "oldest_ms",
    "reason",
)
_TITLES: Final = {"last_heartbeat_ms": "last heard, ms ago", "oldest_ms": "oldest, ms", "full_of": "full of"}


async def render(lanes: Sequence[LaneView]) -> str:
    """The whole page as of now."""
    found = [await lane.groups({"limit": GROUPS_SHOWN}) for lane in lanes]
    deepest = [groups["groups"] if groups is not None else [] for groups in found]
    count = "1 lane" if len(lanes) == 1 else f"{len(lanes)} lanes"
    body = "".join(_lane(lane, groups) for lane, groups in zip(lanes, deepest, strict=True))
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>Dispatcher</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><style>{_STYLE}</style></head>'
        f"<body><h1>Dispatcher {escape(__version__)}</h1>"
        f"<p>{count} · loads itself again every {REFRESH_S} s</p>{body}</body></html>\n"
    )


def _lane(lane: LaneView, deepest: list[dict[str, Any]]) -> str:
    overview = lane.overview()
    ready, why = lane.readiness()
    facts = [f"{overview.get('policy', '')}", *(["paused"] if overview.get("paused") else [])]
    if overview.get("dispatcher"):
        facts.append(f"{overview['dispatcher']}, lane epoch {overview.get('lane_epoch')}")
    for key in ("consumers", "groups", "held", "in_flight", "unconfirmed"):
        if overview.get(key) is not None:
            facts.append(f"{_cell(overview[key])} {key.replace('_', ' ')}")
    if busiest := overview.get("busiest_group"):
        facts.append(f"busiest group {busiest['group']}: {busiest['share']:.0%} of the last minute")
    return (
        f"<section><h2>{escape(lane.name)}</h2>"
        f'<p class="{"good" if ready else "bad"}">{escape(why)}</p><p>{escape(" · ".join(facts))}</p>'
        + _table("Inbound queues", _INBOUND, overview.get("inbound", []))
        + _table("Consumers", _CONSUMERS, (lane.consumers() or {}).get("consumers", []))
        + _table("Deepest groups", _GROUPS, deepest)
        + _counters(lane.counters())
        + "</section>"
    )


def _counters(counters: dict[str, float]) -> str:
    rows = [
        {"counter": name.replace("_", " "), "total": int(value)} for name, value in sorted(counters.items())
    ]
    return _table("Counters", ("counter", "total"), rows)


def _table(title: str, keys: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    lines = "".join("<tr>" + "".join(_td(row.get(key)) for key in keys) + "</tr>" for row in rows)
    if not lines:
        return ""
    heads = "".join(f'<th scope="col">{escape(_TITLES.get(key, key.replace("_", " ")))}</th>' for key in keys)
    return (
        f'<div class="scroll"><table><caption>{escape(title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _td(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td class="n">{_cell(value)}</td>' if number else f"<td>{escape(_cell(value))}</td>"


def _cell(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "–"
        case float():
            return f"{value:.3f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
