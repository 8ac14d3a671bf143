"""deploy/kubernetes/: the manifests fit the image, the program and each other."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.deploy.live_metrics import Exported, problems
from tests.deploy.manifests import Manifests, documents

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
#: `kubectl apply -f` takes what ends in .yaml; the example of a Secret must not replace a real one.
APPLIED = sorted(FOLDER.glob("*.yaml"))
SECRET = FOLDER / "secret.yaml.example"
FILES = [*(path for path in APPLIED if path.name != "secret.yaml"), SECRET]
#: The oldest that the chart takes, and the newest whose schemas are there.
VERSIONS = ("1.27", kubernetes_validate.latest_version())


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return Manifests([document for path in FILES for document in documents(path.read_text())])


def test_every_kind_that_is_needed_is_there(manifests: Manifests) -> None:
    assert set(manifests.by_kind) == {
        "ConfigMap", "Secret", "Deployment", "PodDisruptionBudget", "NetworkPolicy"
    }  # fmt: skip


def test_everything_fits(manifests: Manifests) -> None:
    manifests.check()


def test_the_configuration_is_valid_and_needs_the_secrets_variables_only(manifests: Manifests) -> None:
    assert list(manifests.settings().lanes) == ["orders"]
    text = manifests.by_kind["ConfigMap"]["data"]["dispatcher.yaml"]
    assert all(f"${{{name}}}" in text for name in manifests.environment())
    assert text.count("${") == len(manifests.environment())


def test_the_configuration_is_that_of_the_other_examples(manifests: Manifests) -> None:
    example = yaml.safe_load((FOLDER.parent / "dispatcher.yaml").read_text())
    ours = yaml.safe_load(manifests.by_kind["ConfigMap"]["data"]["dispatcher.yaml"])
    assert ours["http"] == example["http"]
    assert ours["lanes"]["orders"]["inbound"] == example["lanes"]["orders"]["inbound"]


def test_the_passwords_of_the_example_are_no_passwords() -> None:
    assert SECRET.read_text().count(":PASSWORD@") == 2


def test_the_scaling_of_consumers_asks_for_metrics_that_exist(exported: Exported) -> None:
    scaled = yaml.safe_load((FOLDER / "keda" / "scaledobject.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    assert problems([trigger["metadata"]["query"]], exported) == []
    assert float(trigger["metadata"]["threshold"]) > 0
    assert scaled["spec"]["minReplicaCount"] >= 1, "nothing would settle the last messages"


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    for path in FILES:
        for document in documents(path.read_text()):
            kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_key_does_not_fit_the_schemas() -> None:
    (budget,) = documents((FOLDER / "poddisruptionbudget.yaml").read_text())
    budget["spec"]["minAvailible"] = budget["spec"].pop("minAvailable", 1)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(budget, VERSIONS[-1], strict=True)
