"""A real Prometheus scrapes what a dispatcher exports, and answers every query of the dashboards."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.deploy.prometheus import Prometheus, scraping
from tests.deploy.test_alerts import ALERTS, RULES
from tests.deploy.test_dashboards import BOARDS, queries
from tests.service.harness import LANE
from tests.waiting import wait_until

#: What Grafana would put for the variables of the dashboards; and subqueries look each second, not each 30.
REPLACED = {"$job": "dispatcher", "$lane": LANE, ":30s]": ":1s]"}


@pytest.fixture(scope="module")
def prometheus(metrics_text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    class Exporter(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(metrics_text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = tmp_path_factory.mktemp("prometheus")
        target = f"127.0.0.1:{server.server_address[1]}"
        try:
            with scraping(folder, target, ALERTS) as scraper:
                wait_until(scraper.answers)
                wait_until(lambda: scraper.ask("up")[0]["value"][1] == "1")
                yield scraper
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_of_the_dashboards_has_a_result(name: str, prometheus: Prometheus) -> None:
    for expression, _ in queries(name):
        for text, value in REPLACED.items():
            expression = expression.replace(text, value)
        wait_until(lambda query=expression: bool(prometheus.ask(query)), what=expression)


def test_prometheus_evaluates_every_alert_rule_without_an_error(prometheus: Prometheus) -> None:
    wait_until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()))
    assert {rule["name"] for rule in prometheus.rules()} == set(RULES)
