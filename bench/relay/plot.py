"""A picture of how fast contenders were: `python -m bench.relay.plot`.

Each file of results is what `python -m bench.relay --json` wrote; the picture has a part for each.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

#: Ours and others', readable on light and on dark ground.
OURS: Final = "#2f6fde"
OTHERS: Final = "#8a8f98"
TEXT: Final = "#7d828a"
BAR_INCHES: Final = 0.34


def bars(document: dict[str, Any]) -> list[tuple[str, float, str, str]]:
    """Of each contender, the slowest first: its name, messages/s, colour, and what stands beside the bar."""
    found = []
    for row in document["results"]:
        name, rate, ratio = row["contender"], row["messages_per_s"], row["to_shovel"]
        if rate is None:
            continue
        colour = OURS if name.startswith("dispatcher") else OTHERS
        beside = f"  {ratio:.2f} × Shovel" if ratio else ""
        found.append((name, rate, colour, f"{rate:,.0f}{beside}"))
    return sorted(found, key=lambda bar: bar[1])


def draw(documents: list[dict[str, Any]], picture: Path) -> None:
    """Write the picture; the same results give the same bytes."""
    # Here: who only imports this module, as each worker of the tests does, need not wait for it.
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    parts = [bars(document) for document in documents]
    heights = [len(part) for part in parts]
    with mpl.rc_context({
        "svg.fonttype": "none", "svg.hashsalt": "relay", "font.size": 9, "font.family": "sans-serif",
        "text.color": TEXT,
    }):  # fmt: skip
        figure, axes = plt.subplots(
            len(parts), 1, figsize=(8, BAR_INCHES * (sum(heights) + 2 * len(parts))), sharex=True,
            squeeze=False, height_ratios=heights, layout="constrained",
        )  # fmt: skip
        fastest = max(rate for part in parts for _, rate, _, _ in part)
        for axis, document, part in zip(axes[:, 0], documents, parts, strict=True):
            names, rates, colours, texts = zip(*part, strict=True)
            drawn = axis.barh(names, rates, color=colours, height=0.7)
            axis.bar_label(drawn, texts, padding=4)
            axis.set_title(
                f"messages/s from a {document['options']['inbound']} queue", loc="left", fontsize=9
            )
            axis.set_xlim(0, 1.3 * fastest)
            axis.spines[:].set_visible(False)
            axis.tick_params(bottom=False, left=False, labelbottom=False, labelcolor=TEXT)
        figure.savefig(picture, transparent=True, metadata={"Date": None})
        plt.close(figure)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.relay.plot", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="what `python -m bench.relay --json` wrote")
    parser.add_argument("picture", type=Path, help="an .svg file")
    options = parser.parse_args(given)
    try:
        documents = [json.loads(path.read_text()) for path in options.results]
    except (OSError, ValueError) as error:
        print(f"bench.relay.plot: {error}", file=sys.stderr)
        return 1
    draw(documents, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
