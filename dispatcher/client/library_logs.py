"""Keeps what aio-pika and pika log about our own connections out of the application's log.

Both report a broker that is away with several errors and tracebacks, and we try again every second. What
matters of it is said once by the logger `dispatcher.client`; the rest comes there too, at level DEBUG.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

LOG: Final = logging.getLogger("dispatcher.client")
_LIBRARIES: Final = ("aio_pika", "aiormq", "pika")
#: Set in the tasks and threads that serve our connections, and in nothing that the application runs.
_OURS: ContextVar[bool] = ContextVar("dispatcher client connection", default=False)


class _OnlyTheirs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if not _OURS.get():
            return True
        LOG.debug("%s: %s", record.name, record.getMessage())
        return False


_FILTER: Final = _OnlyTheirs()


def mark_as_ours() -> None:
    """From here on, what the libraries log in this task or thread, and in tasks that it starts, is ours."""
    _OURS.set(True)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_FILTER)  # adding it twice does nothing
