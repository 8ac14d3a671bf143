"""What a private RabbitMQ and a private Redis have in common: start, stop, kill, start again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from dispatcher.errors import DispatcherError
from dispatcher.nodes.process import POLL_S, GuardedProcess

#: A node is up in 4 s; on a machine that is busy with tests it was seen to take 20 s.
START_TIMEOUT_S: Final = 90.0
#: Another process may take a port between our look and the server's start.
PORT_ATTEMPTS_MAX: Final = 5
_PORT_TAKEN: Final = ("eaddrinuse", "address already in use", "address in use", "could not bind")


class LocalNode(ABC):
    """One private server on loopback, with its data in a temporary directory.

    `start` after `stop` or `kill9` finds the data and the ports of before. `close`, the end of the
    `with` block, or the end of this process by whatever means ends it and removes its data.
    """

    name: ClassVar[str]
    stop_timeout_s: ClassVar[float]

    def __init__(self) -> None:
        self._process: GuardedProcess | None = None

    @property
    def pid(self) -> int | None:
        """The server's process, None while it isn't started."""
        return self._process.pid if self._process else None

    def logs(self) -> list[Path]:
        """Its log files; `close` removes them."""
        return self._process.logs() if self._process is not None else []

    def log_tail(self) -> str:
        """The end of what it logged, for whoever reports a failure."""
        return self._process.log_tail() if self._process is not None else ""

    def has_ended_by_itself(self) -> bool:
        """Whether the server is gone though neither `stop` nor `kill9` ended it."""
        return self.pid is not None and self._process is not None and not self._process.is_alive()

    def start(self) -> None:
        """Start the server and wait until it answers; does nothing when it runs.

        Raises DispatcherError with the end of its log when it doesn't, ConfigurationError when it isn't
        installed.
        """
        if self._process is not None:
            if not self._process.is_alive():
                self._launch(self._process)
            return
        for attempt in range(1, PORT_ATTEMPTS_MAX + 1):
            self._process = process = GuardedProcess(self.name)
            try:
                self._lay_out(process)
                self._launch(process)
                return
            except BaseException as error:
                log = process.log_tail().lower()
                self.close()
                process.close()
                taken = isinstance(error, DispatcherError) and any(text in log for text in _PORT_TAKEN)
                if attempt == PORT_ATTEMPTS_MAX or not taken:
                    raise

    def stop(self) -> None:
        """End the server cleanly; its data stays."""
        if self._process is not None:
            self._process.terminate(self.stop_timeout_s)

    def kill9(self) -> None:
        """End the server as a power cut of its process would; what it had written stays."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the server and remove its data."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _lay_out(self, process: GuardedProcess) -> None:
        """Choose ports and write what doesn't change between starts."""

    @abstractmethod
    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        """Write the configuration; the command line and environment of the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server does its work."""

    def _launch(self, process: GuardedProcess) -> None:
        process.start(*self._command(process))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if not process.is_alive():
                raise DispatcherError(f"{self.name} ended while it was starting:\n{process.log_tail()}")
            if time.monotonic() >= deadline:
                tail = process.log_tail()
                process.kill()
                raise DispatcherError(f"{self.name} did not answer within {START_TIMEOUT_S:.0f} s:\n{tail}")
            time.sleep(POLL_S)
