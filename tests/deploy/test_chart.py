"""deploy/helm/: the chart's values are valid and used; what helm renders fits the image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dispatcher import __version__
from dispatcher.settings import file as config
from tests.deploy.live_metrics import check_with
from tests.deploy.manifests import Manifests, documents

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "rabbitmq-group-dispatcher"
ABOUT: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
HELM = shutil.which("helm")
URLS = {"rabbitmq": "amqp://dispatcher:PASSWORD@mq:5672/", "redis": "redis://:PASSWORD@redis:6379/0"}

needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm")


def _paths(values: dict[str, Any], keys: dict[str, Any], before: str = "") -> Iterator[str]:
    """The values that templates name: of a mapping its keys, where the schema says which it has."""
    for key, value in values.items():
        inner = keys[key].get("properties")
        if inner is None:
            yield before + key
        else:
            yield from _paths(value, inner, f"{before}{key}.")


def test_the_chart_is_of_this_version_and_named_like_the_distribution() -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert ABOUT["apiVersion"] == "v2"
    assert ABOUT["appVersion"] == __version__
    assert f'name = "{ABOUT["name"]}"' in project
    assert CHART.name == ABOUT["name"]


def test_the_values_fit_their_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft7Validator(SCHEMA)
    assert list(validator.iter_errors(VALUES)) == []
    assert list(validator.iter_errors(VALUES | {"urls": URLS})) == []
    assert list(validator.iter_errors(VALUES | {"replica": 3}))
    assert list(validator.iter_errors(VALUES | {"urls": {"redis": "localhost"}}))


def test_templates_use_every_value_and_no_other() -> None:
    used = {
        path.rstrip(".") for text in TEMPLATES.values() for path in re.findall(r"\.Values\.([\w.]+)", text)
    }
    named = set(_paths(VALUES, SCHEMA["properties"]))
    # The whole of the URLs goes into a checksum.
    assert used - {"urls"} == named


@pytest.mark.parametrize("name", TEMPLATES)
def test_blocks_of_templates_are_closed(name: str) -> None:
    text = TEMPLATES[name]
    actions = re.findall(r"\{\{-?\s*(.*?)\s*-?\}\}", text)
    assert len(actions) == text.count("{{") == text.count("}}")
    opened = sum(bool(re.match(r"(if|with|range|define)\b", action)) for action in actions)
    assert opened == actions.count("end")


def test_templates_that_are_included_exist() -> None:
    text = "".join(TEMPLATES.values())
    assert set(re.findall(r'include "([\w.]+)"', text)) == set(re.findall(r'define "([\w.]+)"', text))


def test_the_configuration_is_valid_and_that_of_the_plain_manifests() -> None:
    environment = {"DISPATCHER_RABBITMQ_URL": URLS["rabbitmq"], "DISPATCHER_REDIS_URL": URLS["redis"]}
    assert list(config.parse(VALUES["config"], environment).lanes) == ["orders"]
    plain = yaml.safe_load((DEPLOY / "kubernetes" / "configmap.yaml").read_text())
    assert VALUES["config"] == plain["data"]["dispatcher.yaml"]


def test_the_template_of_the_pod_has_every_line_of_the_plain_one_that_names_nothing() -> None:
    """What helm would show, where there is none: the two can't drift apart."""
    plain = (DEPLOY / "kubernetes" / "deployment.yaml").read_text().splitlines()
    differs = re.compile(r"dispatcher|8642|replicas|cpu|memory|registry|For one lane|slowed down")
    same = [line.strip() for line in plain if line.strip() and not differs.search(line)]
    assert len(same) > 40
    template = [line.strip() for line in TEMPLATES["deployment.yaml"].splitlines()]
    assert [line for line in same if line not in template] == []


def _render(folder: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(HELM), "template", "one", str(CHART), "-f", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _rendered(folder: Path, **values: Any) -> list[dict[str, Any]]:
    result = _render(folder, **values)
    assert result.returncode == 0, result.stderr
    return documents(result.stdout)


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    check_with(str(HELM), "lint", CHART)


@needs_helm
def test_what_is_rendered_fits(tmp_path: Path) -> None:
    manifests = Manifests(_rendered(tmp_path, urls=URLS))
    manifests.check()
    assert manifests.environment() == {
        "DISPATCHER_RABBITMQ_URL": URLS["rabbitmq"], "DISPATCHER_REDIS_URL": URLS["redis"]
    }  # fmt: skip


@needs_helm
def test_the_pod_is_that_of_the_plain_manifests(tmp_path: Path) -> None:
    chart = Manifests(_rendered(tmp_path, urls=URLS)).container
    plain = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
    (container,) = plain["spec"]["template"]["spec"]["containers"]
    other = {"env", "imagePullPolicy"}  # names that depend on the release
    assert {key: chart[key] for key in chart if key not in other} == {
        key: container[key] for key in container if key not in other
    }


@needs_helm
def test_probes_speak_tls_where_the_port_does(tmp_path: Path) -> None:
    config = "http: {listen: '0.0.0.0:8642', cert_file: /etc/dispatcher/http.pem}\nlanes: {}"
    found = _rendered(tmp_path, urls=URLS, config=config)
    (deployment,) = [document for document in found if document["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    (container,) = template["spec"]["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}


@needs_helm
def test_a_secret_that_exists_is_used(tmp_path: Path) -> None:
    found = _rendered(tmp_path, existingSecret="mine", networkPolicy={"enabled": False})
    assert {document["kind"] for document in found} == {"ConfigMap", "Deployment", "PodDisruptionBudget"}
    (deployment,) = [document for document in found if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    names = {variable["valueFrom"]["secretKeyRef"]["name"] for variable in container["env"]}
    assert names == {"mine"}


@needs_helm
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "existingSecret"),
        ({"urls": URLS, "config": "http: {listen: 127.0.0.1:8642}"}, "http.listen"),
        ({"urls": URLS, "config": "lanes: {}"}, "http.listen"),
        ({"urls": URLS, "config": "{"}, "no YAML"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], text: str, tmp_path: Path) -> None:
    result = _render(tmp_path, **values)
    assert result.returncode != 0
    assert text in result.stderr
