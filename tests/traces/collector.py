"""A collector that takes OTLP over HTTP and keeps what came."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """`status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.answers = threading.Event()  # until it is set, nothing is answered
        self.answers.set()
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self.resources: list[ResourceSpans] = []
        self.url = ""

    def spans(self) -> list[Span]:
        return [span for each in self.resources for scope in each.scope_spans for span in scope.spans]

    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for each in self.resources
            for attribute in each.resource.attributes
            if attribute.key == "service.name"
        }

    def take(self, path: str, token: str | None, body: bytes) -> int:
        self.paths.append(path)
        self.tokens.append(token)
        if self.status == 200:
            self.resources += ExportTraceServiceRequest.FromString(body).resource_spans
        return self.status


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            status = collector.take(self.path, self.headers["x-token"], body)
            collector.answers.wait()
            with contextlib.suppress(OSError):  # who asked may be gone
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: stderr is the test's."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.answers.set()
            server.shutdown()
            thread.join()
