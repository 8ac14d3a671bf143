"""A Java runtime for Spark: found, or installed with apt. `python -m dispatcher.nodes.java` does that."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import as_root, install

#: Spark 4 runs on 17 and newer. Where Debian has left 17 behind its default is newer.
_PACKAGES: Final = ("openjdk-17-jre-headless", "default-jre-headless")


def has_java() -> bool:
    """Whether Spark finds a Java."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin/java").is_file() if home else shutil.which("java") is not None


def ensure_java(say: Callable[[str], None]) -> None:
    """Install a Java runtime where there is none and that is permitted, after saying so in one line.

    Raises ConfigurationError, which says what to install, where it can't be done.
    """
    if has_java():
        return
    *preferred, last = _PACKAGES
    for package in preferred:
        try:
            return install([package], as_root(), say)
        except ConfigurationError:
            if as_root() is None or shutil.which("apt-get") is None:
                raise
    install([last], as_root(), say)


if __name__ == "__main__":
    try:
        ensure_java(lambda line: print(line, file=sys.stderr))
    except ConfigurationError as error:
        sys.exit(f"{error} (only the pipeline needs it)")
