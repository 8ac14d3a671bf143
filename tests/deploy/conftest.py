"""What the tests of monitoring share."""

from __future__ import annotations

import pytest

from dispatcher.nodes.servers import Servers
from tests.conftest import fresh_vhost
from tests.deploy.live_metrics import Exported, exported_by, metrics_of_a_live_dispatcher


@pytest.fixture(scope="session")
def metrics_text(servers: Servers) -> str:
    """What Prometheus gets of a dispatcher that leads a lane."""
    with fresh_vhost(servers) as vhost:
        return metrics_of_a_live_dispatcher(vhost)


@pytest.fixture(scope="session")
def exported(metrics_text: str) -> Exported:
    return exported_by(metrics_text)
