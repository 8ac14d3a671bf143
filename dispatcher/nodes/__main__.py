"""`python -m dispatcher.nodes`: RabbitMQ and Redis in the foreground, for trying things out."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from dispatcher.errors import DispatcherError
from dispatcher.nodes.servers import open_servers


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> int:
    """Print the servers' URLs as shell variables on stdout, then wait for Ctrl-C or SIGTERM."""
    if sys.argv[1:]:
        print("usage: python -m dispatcher.nodes", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        with open_servers() as servers:
            for name, value in servers.as_environment().items():
                print(f"export {name}={value}", flush=True)
            print("RabbitMQ and Redis are running; Ctrl-C ends them.", file=sys.stderr, flush=True)
            while True:
                signal.pause()
    except DispatcherError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
