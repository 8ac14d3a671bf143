"""Small git repositories made for a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


class Repository:
    """A repository below a test's directory; paths are bytes, as git has them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str | bytes) -> bytes:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        command = ["git", "-C", str(self.path), *arguments]
        result = subprocess.run(command, env=environment | _IDENTITY, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout

    def write(self, name: bytes, text: str) -> None:
        file = os.path.join(os.fsencode(self.path), name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as out:
            out.write(text)

    def commit(self, message: str = "change") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
