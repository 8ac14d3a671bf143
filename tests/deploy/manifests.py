"""What manifests for Kubernetes must say so that the image runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from dispatcher import __version__
from dispatcher.service import process
from dispatcher.settings import Settings
from dispatcher.settings import file as config

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
Manifest = dict[str, Any]
#: What a process takes besides the messages that it holds.
BASE_BYTES = 128 * 1024**2
_UNITS = {"Mi": 1024**2, "Gi": 1024**3}


class Manifests:
    """One installation: a document of each kind."""

    def __init__(self, documents: list[Manifest]) -> None:
        self.by_kind: dict[str, Manifest] = {document["kind"]: document for document in documents}
        assert len(self.by_kind) == len(documents)
        self.deployment = self.by_kind["Deployment"]
        self.pod: Manifest = self.deployment["spec"]["template"]
        self.spec: Manifest = self.pod["spec"]
        (self.container,) = self.spec["containers"]

    def settings(self) -> Settings:
        """The configuration as the program in the pod reads it."""
        (volume,) = self.spec["volumes"]
        (mount,) = self.container["volumeMounts"]
        assert volume["name"] == mount["name"]
        config_map = self.by_kind["ConfigMap"]
        assert volume["configMap"]["name"] == config_map["metadata"]["name"]
        path = Path(_of_dockerfile(r"DISPATCHER_CONFIG=(\S+)"))
        assert mount["mountPath"] == str(path.parent)
        return config.parse(config_map["data"][path.name], self.environment())

    def environment(self) -> dict[str, str]:
        """The container's variables, with the values of the Secret."""
        secret = self.by_kind["Secret"]
        found = {}
        for variable in self.container["env"]:
            key = variable["valueFrom"]["secretKeyRef"]
            assert key["name"] == secret["metadata"]["name"]
            found[variable["name"]] = secret["stringData"][key["key"]]
        return found

    def check(self) -> None:
        """Everything that has to fit the program, its image, or each other."""
        self._check_ports()
        self._check_labels()
        self._check_rights()
        self._check_resources()
        self._check_network()
        spec = self.deployment["spec"]
        assert spec["replicas"] == 2
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        stop_s = process.STOP_S + process.LEDGER_STOP_S + 1
        assert self.spec["terminationGracePeriodSeconds"] > stop_s
        assert "preStop" not in self.container.get("lifecycle", {})
        assert self.container["image"].endswith(f":{__version__}")
        # The image's own: `dispatcher run`.
        assert not {"command", "args"} & set(self.container)

    def _check_ports(self) -> None:
        http = self.settings().http
        assert http.host == "0.0.0.0", "probes come from outside of the pod"
        assert self.container["ports"] == [{"name": "http", "containerPort": http.port}]
        paths = {
            name: self.container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
        }
        assert paths == {
            "startup": {"path": "/healthz", "port": "http"},
            "liveness": {"path": "/healthz", "port": "http"},
            "readiness": {"path": "/readyz", "port": "http"},
        }
        annotations = self.pod["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert annotations["prometheus.io/port"] == str(http.port)
        assert annotations["prometheus.io/path"] == "/metrics"

    def _check_labels(self) -> None:
        labels = self.pod["metadata"]["labels"]
        (near,) = self.spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert near["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        selectors = [
            self.deployment["spec"]["selector"],
            self.by_kind["PodDisruptionBudget"]["spec"]["selector"],
            self.by_kind["NetworkPolicy"]["spec"]["podSelector"],
            near["podAffinityTerm"]["labelSelector"],
        ]
        for selector in selectors:
            assert selector["matchLabels"]
            assert selector["matchLabels"].items() <= labels.items()
        assert self.by_kind["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1

    def _check_rights(self) -> None:
        user = int(_of_dockerfile(r"^USER (\d+):\d+$"))
        context = self.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == user
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert self.spec["automountServiceAccountToken"] is False
        own = self.container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}

    def _check_resources(self) -> None:
        held = sum(lane.look_ahead_bytes for lane in self.settings().lanes.values())
        number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", self.container["resources"]["limits"]["memory"]).groups()  # type: ignore[union-attr]
        assert int(number) * _UNITS[unit] >= held + BASE_BYTES

    def _check_network(self) -> None:
        policy = self.by_kind["NetworkPolicy"]["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        (let_in,) = policy["ingress"]
        assert [port["port"] for port in let_in["ports"]] == ["http"]
        assert let_in["from"]
        settings = self.settings()
        out = {(port["protocol"], port["port"]) for rule in policy["egress"] for port in rule["ports"]}
        servers = {("TCP", settings.rabbitmq.address.port), ("TCP", settings.redis.address.port)}
        assert out >= servers | {("UDP", 53), ("TCP", 53)}


def documents(text: str) -> list[Manifest]:
    """Of a file that may have several; empty ones are left out."""
    return [document for document in yaml.safe_load_all(text) if document]


def _of_dockerfile(pattern: str) -> str:
    found = re.findall(pattern, DOCKERFILE, re.MULTILINE)
    assert found, pattern
    return str(found[-1])
