"""The site is built without a warning, has every page, and needs nothing from elsewhere."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts import site_hooks
from tests.once import common_folder, once

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: What a browser fetches to show a page; a link that people follow is another matter.
FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]+)\"|<link[^>]* href=\"([^\"]+)\"")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    common = common_folder(tmp_path_factory)
    folder = common / "site"

    def make() -> None:
        built = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True, text=True,
        )  # fmt: skip
        assert built.returncode == 0, built.stdout + built.stderr

    once(common, "site", make)
    return folder


def test_every_page_is_there_and_reached_from_the_menu(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages <= built
    menu = html.unescape((site / "index.html").read_text()).partition("md-content")[0]
    assert not [page for page in built if page.name != "404" and f'href="{page}.html"' not in menu]


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = ["".join(found) for found in FETCHED.findall(page.read_text())]
        assert fetched
        assert not [each for each in fetched if ":" in each or each.startswith("//")], page


def test_diagrams_are_pictures_that_need_no_script(site: Path) -> None:
    sources = sum(path.read_text().count("\n```mermaid\n") for path in DOCS.rglob("*.md"))
    shown = [
        (page, picture)
        for page in site.rglob("*.html")
        for picture in re.findall(
            r'<img class="diagram" src="([^"]+)" alt="Diagram: [^"]+"', page.read_text()
        )
    ]
    assert len(shown) == sources > 0
    assert not [page for page in site.rglob("*.html") if "mermaid" in page.read_text().lower()]
    for page, picture in shown:
        assert_plain((page.parent / picture).read_text())


def assert_plain(svg: str) -> None:
    assert svg.startswith("<svg")
    assert "background-color: white" in svg
    assert not re.search(r"<script|<foreignObject|(?:href|src)=.http", svg)
    assert "Syntax error" not in svg


def test_the_pictures_kept_are_those_of_the_diagrams() -> None:
    """Their names are made from the diagrams. `scripts/site` adds the missing ones; delete unused ones."""
    kept = {path.relative_to(DOCS).as_posix() for path in (DOCS / "assets/diagrams").iterdir()}
    assert kept == {site_hooks.diagram_path(diagram) for diagram in site_hooks.diagrams()}


def test_a_diagram_is_drawn() -> None:
    svg = site_hooks.drawn("flowchart LR\n  one --> another\n")
    assert_plain(svg)
    assert "another" in svg


def test_the_search_works_from_files(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert "reconnect_grace" in index
    assert "iframe-worker.js" in (site / "index.html").read_text()


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("configuration", "lanes.*.reconnect_grace"),
        ("commands", "dispatcher consumers evict"),
        ("metrics", "dispatcher_messages_in_flight"),
        ("http-api", "GET /api/lanes/{lane}/groups"),
        ("python", "GroupConsumer.flush"),
    ],
)
def test_references_are_made_from_the_code(site: Path, page: str, says: str) -> None:
    assert says in html.unescape((site / "reference" / f"{page}.html").read_text())


def test_no_page_uses_what_the_site_does_not_bring() -> None:
    configured = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert configured["theme"]["font"] is False
    assert configured["use_directory_urls"] is False
