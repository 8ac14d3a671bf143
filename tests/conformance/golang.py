"""Go and amqp091-go as the tests of the Go client need them: Debian's packages, without a module proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

GO_CLIENT = Path(__file__).parents[2] / "clients" / "go"
PACKAGES = ["golang-go", "golang-github-rabbitmq-amqp091-go-dev"]
LIBRARY = Path("/usr/share/gocode/src/github.com/rabbitmq/amqp091-go")


def is_there() -> bool:
    return shutil.which("go") is not None and LIBRARY.is_dir()


class Workspace:
    """A folder where `go` takes the library from Debian's package instead of the module that go.mod names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = folder / "amqp091-go"
        shutil.copytree(LIBRARY, library, ignore=shutil.ignore_patterns("*_test.go", "_examples", "spec"))
        # The library's own tests need modules that are not here.
        (library / "go.mod").write_text("module github.com/rabbitmq/amqp091-go\n\ngo 1.16\n")
        self.use(GO_CLIENT)

    def use(self, *modules: Path) -> None:
        """Work on these modules."""
        used = "".join(f"\t{module}\n" for module in (self.folder / "amqp091-go", *modules))
        (self.folder / "go.work").write_text(f"go 1.19\n\nuse (\n{used})\n")

    def go(
        self, *arguments: str, cwd: Path = GO_CLIENT, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `go` with these arguments. Nothing comes over the network, and go.mod stays as it is."""
        offline = {"GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        return subprocess.run(
            ["go", *arguments], cwd=cwd, capture_output=True, text=True,
            env={**os.environ, **offline, "GOWORK": str(self.folder / "go.work"), **environment},
        )  # fmt: skip
