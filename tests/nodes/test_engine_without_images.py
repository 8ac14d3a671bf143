"""A Docker engine that answers but can't run the containers: said in one line, then local nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The least of an engine: it answers, and refuses everything that it is asked for.
_PROGRAM = """
import json, os, socketserver, sys, threading
from http.server import BaseHTTPRequestHandler

class Refusing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.rpartition("/")[2]
        content = {"_ping": b"OK", "version": b'{"ApiVersion": "1.44"}'}.get(path)
        status = 500 if content is None else 200
        content = content or json.dumps({"message": "no images here"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer

    def address_string(self):
        return "client"

    def log_message(self, *arguments):
        pass

class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

threading.Thread(target=Engine(sys.argv[1], Refusing).serve_forever, daemon=True).start()
os.environ["DOCKER_HOST"] = "unix://" + sys.argv[1]

from dispatcher.nodes import containers, open_servers

assert containers.engine_answers()
with open_servers(say=print) as servers:
    print(servers.redis_url)
"""


@pytest.mark.slow
def test_engine_that_cannot_run_containers_is_passed_over(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "docker.sock")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    starting, passed_over, url = result.stdout.splitlines()
    assert starting == "Starting RabbitMQ and Redis in containers."
    assert passed_over.startswith("Containers can't be used (")
    assert "no images here" in passed_over
    assert url.startswith("redis://127.0.0.1:")
