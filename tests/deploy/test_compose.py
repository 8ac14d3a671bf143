"""deploy/: the compose file is valid, and everything that it names exists in the product."""

from __future__ import annotations

import ast
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dispatcher.nodes import containers
from dispatcher.settings import file as config
from tests.deploy.live_metrics import check_with
from tests.deploy.prometheus import program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE_TEXT = (DEPLOY / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
#: As Compose writes it: ${NAME}, ${NAME:-default}, ${NAME:?error}; $$ is a dollar.
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:[-?][^}]*)?\}")
EXAMPLES = ("producer", "consumer-1", "consumer-2")
MONITORING = ("prometheus", "grafana")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def _dotenv_names() -> set[str]:
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    return {line.split("=")[0] for line in lines if line and not line.startswith("#")}


def _environment(service: str) -> dict[str, str]:
    """A service's variables as Compose would set them, passwords being `secret`."""
    variables = SERVICES[service].get("environment", {})
    return {name: VARIABLE.sub("secret", str(value)) for name, value in variables.items()}


def _mounts(service: str) -> dict[str, str]:
    """Bind mounts of a service: path in the container to path in deploy/."""
    pairs = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    return {pair[1]: pair[0] for pair in pairs if pair[0].startswith(".")}


def _read_variables(program: Path) -> set[str]:
    """The environment variables that a Python program names."""
    found = set()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            found.add(ast.literal_eval(node.slice))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"os.environ.get", "os.getenv"}:
            found.add(ast.literal_eval(node.args[0]))
    return found


def test_compose_file_fits_the_specification() -> None:
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    problems = [
        f"{'.'.join(map(str, error.path))}: {error.message}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(COMPOSE)
    ]
    assert not problems


def test_services_are_the_promised_ones() -> None:
    by_default = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert by_default == {"rabbitmq", "redis", "dispatcher", *EXAMPLES}
    assert SERVICES["dispatcher"]["deploy"]["replicas"] == 2
    assert all("healthcheck" in service for service in SERVICES.values())
    assert all(service["networks"] == list(COMPOSE["networks"]) for service in SERVICES.values())
    assert "management" in SERVICES["rabbitmq"]["image"]
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_images_are_those_that_the_tests_run_on_where_an_engine_answers() -> None:
    assert SERVICES["rabbitmq"]["image"] == containers.RABBITMQ_IMAGE
    assert SERVICES["redis"]["image"] == containers.REDIS_IMAGE


def test_passwords_come_from_the_environment_and_must_be_set() -> None:
    used = {name: default for name, default in VARIABLE.findall(COMPOSE_TEXT)}
    assert set(used) == _dotenv_names()
    assert all(default.startswith(":?") for default in used.values())
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASS|AUTH$|SECRET|TOKEN", name):
                assert VARIABLE.fullmatch(str(value)), name
            assert not re.search(r"://[^/@]*:[^/@$]+@", str(value)), f"{name}: a password in the file"
    assert not re.search(r"^\w+=.", (DEPLOY / ".env.example").read_text(), re.MULTILINE)


def test_every_named_file_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
    build = SERVICES["dispatcher"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    # The examples run in the dispatcher's image.
    assert {SERVICES[name]["image"] for name in (*EXAMPLES, "dispatcher")} == {"dispatcher"}


def test_conditions_name_services_with_health_checks() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[name]


@pytest.mark.parametrize("service", ["dispatcher", *EXAMPLES, *MONITORING])
def test_own_containers_run_unprivileged_on_a_read_only_root(service: str) -> None:
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in settings["tmpfs"]


def test_configuration_is_valid_with_the_environment_of_its_service() -> None:
    environment = _environment("dispatcher")
    target = re.search(r"DISPATCHER_CONFIG=(\S+)", DOCKERFILE)
    assert target is not None
    path = DEPLOY / _mounts("dispatcher")[target[1]]
    settings = config.load(path, environment)
    assert set(VARIABLE.findall(path.read_text())) == {(name, "") for name in environment}
    assert settings.rabbitmq.address.host in SERVICES
    assert settings.redis.address.host in SERVICES
    assert {queue.queue for queue in settings.lanes["orders"].inbound} == {"orders.high", "orders.low"}


def test_port_is_the_one_that_is_configured() -> None:
    settings = config.load(DEPLOY / "dispatcher.yaml", _environment("dispatcher"))
    assert SERVICES["dispatcher"]["expose"] == [str(settings.http.port)]
    assert f"EXPOSE {settings.http.port}\n" in DOCKERFILE
    check = SERVICES["dispatcher"]["healthcheck"]["test"]
    assert f"http://127.0.0.1:{settings.http.port}/readyz" in check[-1]
    ast.parse(check[-1])


@pytest.mark.parametrize("service", EXAMPLES)
def test_example_exists_and_gets_the_variables_that_it_reads(service: str) -> None:
    (command,) = SERVICES[service]["command"]
    folder = _mounts(service)[str(Path(command).parent)]
    program = DEPLOY / folder / Path(command).name
    assert set(_environment(service)) == _read_variables(program)
    ast.parse(SERVICES[service]["healthcheck"]["test"][-1])


def test_consumers_have_ids_of_their_own() -> None:
    ids = [_environment(service)["CONSUMER_ID"] for service in EXAMPLES[1:]]
    assert len(set(ids)) == len(ids)


def test_dockerfile_copies_what_exists_and_ends_as_an_ordinary_user() -> None:
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sources
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.removeprefix('./')}" in allowed, f"{source} is kept out of the build"
    users = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1] != "0"
    assert len(re.findall(r"^FROM ", DOCKERFILE, re.MULTILINE)) == 2


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint")
def test_hadolint_finds_nothing_wrong_with_the_dockerfile() -> None:
    check_with(str(HADOLINT), "--failure-threshold", "style", DEPLOY / "Dockerfile")


def test_the_image_looks_after_its_process() -> None:
    """Its check asks the port that is exposed, and fails where nobody answers."""
    port = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)[-1]
    (url,) = re.findall(r"^ENV DISPATCHER_HEALTH_URL=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert url == f"http://127.0.0.1:{port}/healthz"
    (check,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.*)$", DOCKERFILE, re.MULTILINE)
    python, option, program = json.loads(check)
    assert (python, option) == ("python", "-c")
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        environment = {"DISPATCHER_HEALTH_URL": f"http://127.0.0.1:{server.server_port}/healthz"}
        answers = [
            subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        ]
    answers.append(
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    )
    assert [bool(answer.returncode) for answer in answers] == [False, True]


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers as a dispatcher that lives."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


def test_the_image_can_be_built_for_a_ledger() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "ledger" in project["optional-dependencies"]
    assert 'ARG EXTRAS=""\nRUN /opt/dispatcher/bin/pip install --no-cache-dir ".$EXTRAS"\n' in DOCKERFILE


def test_command_of_the_image_exists() -> None:
    assert 'ENTRYPOINT ["dispatcher"]' in DOCKERFILE
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert command is not None
    result = subprocess.run(
        [sys.executable, "-m", "dispatcher", *json.loads(command[1]), "--help"],
        env=os.environ | {"COLUMNS": "200", "TERM": "dumb"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "DISPATCHER_CONFIG" in result.stdout, "the image names its configuration by this variable"


# -- the profile `monitoring` --


def _mounted(service: str, path: str) -> Path:
    """The file in deploy/ that a container sees at this path."""
    for target, source in _mounts(service).items():
        if path == target or path.startswith(f"{target}/"):
            return DEPLOY / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"{service} has no {path}")


def test_nothing_that_runs_by_default_needs_the_monitoring() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles")} == set(MONITORING)
    assert all(SERVICES[name]["profiles"] == ["monitoring"] for name in MONITORING)
    needed = {
        on
        for name, service in SERVICES.items()
        if name not in MONITORING
        for on in service.get("depends_on", {})
    }
    assert not needed & set(MONITORING)
    # Compose fills in every service's variables, also of a profile that is not asked for.
    assert not VARIABLE.search(json.dumps([SERVICES[name] for name in MONITORING]))


def test_monitoring_is_published_on_loopback_only() -> None:
    for name in MONITORING:
        assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])


def test_prometheus_reads_the_replicas_of_the_dispatcher_and_the_alerts() -> None:
    (path,) = [
        a.partition("=")[2] for a in SERVICES["prometheus"]["command"] if a.startswith("--config.file")
    ]
    file = _mounted("prometheus", path)
    settings = yaml.safe_load(file.read_text())
    assert [(file.parent / name).name for name in settings["rule_files"]] == ["alerts.yaml"]
    assert (file.parent / "alerts.yaml").is_file()
    jobs = {job["job_name"]: job for job in settings["scrape_configs"]}
    (discovered,) = jobs["dispatcher"]["dns_sd_configs"]
    port = config.load(DEPLOY / "dispatcher.yaml", _environment("dispatcher")).http.port
    assert (discovered["names"], discovered["type"], discovered["port"]) == (["dispatcher"], "A", port)
    ((target,),) = [scraped["targets"] for scraped in jobs["rabbitmq"]["static_configs"]]
    assert target.split(":")[0] in SERVICES
    assert "rabbitmq_prometheus" in (DEPLOY / "rabbitmq" / "enabled_plugins").read_text()


def test_grafana_reads_prometheus_and_the_dashboards() -> None:
    provisioning = "/etc/grafana/provisioning"
    file = _mounted("grafana", f"{provisioning}/datasources/dispatcher.yaml")
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    port = SERVICES["prometheus"]["ports"][0].rpartition(":")[2]
    assert (source["type"], source["url"]) == ("prometheus", f"http://prometheus:{port}")
    file = _mounted("grafana", f"{provisioning}/dashboards/dispatcher.yaml")
    (provider,) = yaml.safe_load(file.read_text())["providers"]
    folder = _mounted("grafana", provider["options"]["path"])
    assert {path.name for path in folder.glob("*.json")} == {"lane.json", "fleet.json"}
    home = _environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert _mounted("grafana", home).is_file()


def test_prometheus_takes_its_configuration() -> None:
    check_with(program("promtool"), "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
