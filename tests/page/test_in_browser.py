"""The page in a real browser: it needs nothing else, is readable in light and dark and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.wire.plain_text import printable
from tests.page.browser import Browser, ensure_chromium, open_browser
from tests.page.reports import HARMLESS, HOSTILE, LANE, add_advice, add_plan, write_report

#: WCAG 2.2, 1.4.3: of text that isn't large.
CONTRAST_MIN = 4.5
PHONE = {"width": 360, "height": 740}

#: All text that is seen, with its colour and what is behind it.
COLOURS = """
const found = [];
for (const element of document.body.querySelectorAll("*")) {
  const text = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
  if (!text || element.getClientRects().length === 0) continue;
  const style = getComputedStyle(element);
  const inPicture = element.ownerSVGElement;
  if (element.tagName === "title" || element.tagName === "desc") continue;
  let behind = element, back;
  do { back = getComputedStyle(behind).backgroundColor; behind = behind.parentElement; }
  while (behind && back === "rgba(0, 0, 0, 0)");
  if (back === "rgba(0, 0, 0, 0)") back = getComputedStyle(document.documentElement).backgroundColor;
  found.push([text.slice(0, 40), inPicture ? style.fill : style.color, back]);
}
return found;
"""
OVERFLOWING = """
const wide = document.documentElement.clientWidth;
return [...document.body.querySelectorAll("*")]
  .filter(e => !e.closest(".scroll") && !e.closest("svg") && e.getBoundingClientRect().right > wide + 0.5)
  .map(e => e.outerHTML.slice(0, 80));
"""
SHAPES = ("line", "bar", "area", "missing", "point")
PICTURES = """
return [...document.querySelectorAll("svg.chart:not(.history)")].map(chart => ({
  title: chart.querySelector("title").textContent, words: chart.querySelector("desc").textContent,
  named: chart.getAttribute("aria-labelledby").split(" ").every(id => chart.querySelector("#" + id)),
  counts: Object.fromEntries(["line", "bar", "area", "missing", "point"].map(
    kind => [kind, chart.querySelectorAll("." + kind).length])),
  sizes: [...chart.querySelectorAll(".line, .bar, .area, .missing, .point")].map(shape => {
    const box = shape.getBoundingClientRect();
    const around = chart.getBoundingClientRect();
    return [box.width, box.height, box.left >= around.left - 2 && box.right <= around.right + 2];
  }),
  letters: parseFloat(getComputedStyle(chart.querySelector("text")).fontSize)
    * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width,
}));
"""
HISTORIES = """
return [...document.querySelectorAll("svg.history")].map(chart => ({
  words: chart.querySelector("desc").textContent,
  named: chart.getAttribute("aria-labelledby").split(" ").every(id => chart.querySelector("#" + id)),
  labels: [...chart.querySelectorAll(".held")].map(held => held.previousElementSibling.textContent),
  held: chart.querySelectorAll(".held").length, broken: chart.querySelectorAll(".broken").length,
  inside: [...chart.querySelectorAll(".held, .waits, .broken, .missing")].map(shape => {
    const box = shape.getBoundingClientRect(), around = chart.getBoundingClientRect();
    return box.left >= around.left - 2 && box.right <= around.right + 2 && box.bottom <= around.bottom + 2;
  }),
  letters: parseFloat(getComputedStyle(chart.querySelector("text")).fontSize)
    * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width,
}));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    ensure_chromium()
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = write_report(
        tmp_path_factory.mktemp("page") / "report", verdict="violated", violations=3, unknown=3, gaps=1
    )
    add_advice(report)
    add_plan(report)
    result = CliRunner().invoke(app, ["pipeline", "report", "--report", str(report)])
    assert result.exit_code == 0, result.output
    return report / "report.html"


def test_a_page_needs_nothing_else_and_complains_of_nothing(browser: Browser, page: Path) -> None:
    browser.console(), browser.requests()
    browser.open(page)
    assert browser.requests() == [page.as_uri()]
    assert browser.console() == []
    assert browser.driver.title == "Order was violated – ledger report"


def test_the_verdict_is_seen_without_scrolling(browser: Browser, page: Path) -> None:
    for size in ({}, PHONE):
        browser.open(page, **size)
        box = browser.ask("return document.getElementById('verdict').getBoundingClientRect().toJSON()")
        assert box["top"] >= 0
        assert box["bottom"] < 400
        assert browser.ask("return document.getElementById('verdict').innerText").startswith(
            "✗ Order was violated"
        )


def test_names_of_others_are_seen_as_they_are(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = browser.ask(
        "return [...document.querySelectorAll('table.heat th[scope=row]')].map(e => e.textContent)"
    )
    long = next(name for name in HOSTILE if len(name) > 1_000)
    seen = [HARMLESS if "\x1b" in name else printable(name) for name in HOSTILE if name != long]
    assert [name for name in seen if name not in shown] == []
    assert any(name.startswith("xxx") and name.endswith("… (10,000 characters)") for name in shown)
    assert LANE in browser.ask("return document.querySelector('section h2').textContent")
    assert browser.ask("return document.querySelectorAll('script, img, body style').length") == 0


def test_the_pictures_are_drawn_and_told_in_words(browser: Browser, page: Path) -> None:
    for size in ({}, PHONE):
        browser.open(page, **size)
        pictures = browser.ask(PICTURES)
        titles = [each["title"] for each in pictures]
        over_time = [2, 0, 1, 1, 0]
        expected = {
            "Hand-overs a second": [0, 98, 0, 1, 0], "Wait over consumers": [2, 0, 0, 0, 2],
            **dict.fromkeys(("Wait", "Commit", "Confirm", "Process"), over_time),
        }  # fmt: skip
        assert titles == [
            "Hand-overs a second",
            "Wait",
            "Commit",
            "Confirm",
            "Process",
            "Wait over consumers",
        ]
        for picture in pictures:
            assert picture["named"]
            assert picture["words"]
            assert picture["letters"] >= 9
            assert [picture["counts"][kind] for kind in SHAPES] == expected[picture["title"]]
            assert all(
                width > 0 and height > 0 and is_inside for width, height, is_inside in picture["sizes"]
            )
    bars = browser.ask(
        "return [...document.querySelectorAll('.share .got')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(bars) == len(HOSTILE) + 2 + 2
    assert all(width > 0 for width in bars)


def test_histories_of_groups_are_drawn_and_told_in_words(browser: Browser, page: Path) -> None:
    for size in ({}, PHONE):
        browser.open(page, **size)
        browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
        pictures = browser.ask(HISTORIES)
        assert len(pictures) == 1 + len(HOSTILE), "of the group with violations, and of the hottest"
        for picture in pictures:
            assert picture["named"]
            assert "consumers had it" in picture["words"]
            assert len(picture["labels"]) == 7
            assert picture["labels"][-1] == "others"
            assert picture["held"] == 7
            assert all(picture["inside"])
            assert picture["letters"] >= 9
        assert [each["broken"] for each in pictures].count(1) == 2, "one moment, in both of the group's"


def test_light_and_dark_differ_and_can_be_read(browser: Browser, page: Path) -> None:
    backs = {}
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
        texts = browser.ask(COLOURS)
        assert len(texts) > 300
        backs[scheme] = luminance(browser.ask("return getComputedStyle(document.body).backgroundColor"))
        weak = {(text, front, back) for text, front, back in texts if contrast(front, back) < CONTRAST_MIN}
        assert weak == set(), scheme
        lines = browser.ask(
            "return [...document.querySelectorAll('.chart .line, .chart .held, .chart .broken')]"
            ".map(e => getComputedStyle(e).stroke)"
        )
        panel = browser.ask("return getComputedStyle(document.querySelector('figure')).backgroundColor")
        assert all(contrast(line, panel) > 3 for line in lines)  # 1.4.11, of shapes
    assert backs["light"] > 0.9
    assert backs["dark"] < 0.1


def test_a_phone_scrolls_in_one_direction(browser: Browser, page: Path) -> None:
    browser.open(page, **PHONE)
    browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.ask("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    assert browser.ask(OVERFLOWING) == []
    within = browser.ask(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => [e.tabIndex, e.getAttribute('aria-label')])"
    )
    assert within != []
    assert all(index == 0 and label for index, label in within), "they can be scrolled with the keyboard"


def test_tables_say_what_their_cells_belong_to(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.ask("return [...document.querySelectorAll('th:not([scope])')].length") == 0
    assert (
        browser.ask(
            "return [...document.querySelectorAll('tbody tr')].filter(r => !r.querySelector('th')).length"
        )
        == 0
    )
    levels = browser.ask("return [...document.querySelectorAll('h1, h2, h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(…)`."""
    parts = [float(each) / 255 for each in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(front: str, back: str) -> float:
    high, low = sorted((luminance(front), luminance(back)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    values: list[Any] = [
        contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)"),
        contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)"),
    ]
    assert values == pytest.approx([21.0, 4.48], abs=0.01)
