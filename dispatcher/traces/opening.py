"""Opens the traces that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from dispatcher.errors import ConfigurationError
from dispatcher.settings import TraceSettings

if TYPE_CHECKING:
    from dispatcher.traces.exporting import Traces

_NEEDED: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def require_opentelemetry() -> None:
    """Raises ConfigurationError when the extra is missing."""
    for name in _NEEDED:
        try:
            found = find_spec(name)
        except ImportError:  # a package above it is not there
            found = None
        if found is None:
            raise ConfigurationError(
                "traces: needs OpenTelemetry, which is not installed: "
                "pip install 'rabbitmq-group-dispatcher[traces]'"
            )


def open_traces(settings: TraceSettings, now_us: Callable[[], int] | None = None) -> Traces:
    """Where lanes get their spans from. `now_us`: the clock of the ledger, if there is one. Raises
    ConfigurationError."""
    require_opentelemetry()
    from dispatcher.traces.exporting import Traces, otlp_exporter, wall_clock_us

    return Traces(settings, otlp_exporter(settings), now_us or wall_clock_us)
