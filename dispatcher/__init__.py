"""Message groups for RabbitMQ: a sidecar that hands related messages over in order."""

from importlib.util import find_spec

__version__ = "0.1.0"


def form() -> str:
    """Whether the hot modules are machine code, which they are where they were compiled."""
    spec = find_spec("dispatcher.core.delivery")
    return "interpreted" if spec is None or (spec.origin or "").endswith(".py") else "compiled"
