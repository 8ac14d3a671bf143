"""Where RabbitMQ's and Redis' programs are, and installing Debian's packages when they are missing.

They are those of this machine, or those of a folder into which packages of another release were unpacked
(`scripts/trixie`), when the environment names one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigurationError

ROOT_VARIABLE: Final = "DISPATCHER_SERVERS_ROOT"
_PACKAGES: Final = {"RabbitMQ": "rabbitmq-server", "Redis": "redis-server"}
#: Run as root. policy-rc.d keeps the packages' own servers from starting now, `disable` at the next boot.
#: Erlang's port mapper comes along with RabbitMQ; a machine that had it before keeps it as it was.
_INSTALL: Final = """
set -e
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
fi
services=$*
command -v epmd > /dev/null || services="$* epmd.service epmd.socket"
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o DPkg::Lock::Timeout=300 update || true
apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
for package in "$@"; do
    if command -v update-rc.d > /dev/null; then update-rc.d "$package" disable || true; fi
done
for service in $services; do
    if command -v systemctl > /dev/null; then systemctl disable -q "$service" || true; fi
done
"""


def servers_root() -> Path:
    """The folder whose `usr` has the servers: "/" unless the environment names another one."""
    return Path(os.environ.get(ROOT_VARIABLE) or "/")


def rabbitmq_server() -> Path:
    """RabbitMQ's own server script. Raises ConfigurationError when there is none."""
    return _found("RabbitMQ", _find_rabbitmq)


def erlang_programs() -> Path:
    """The folder that has `erl`. Raises ConfigurationError when there is none."""
    return _found("RabbitMQ", _find_erl).parent


def erl_call() -> Path:
    """Erlang's program that asks a node something; it comes with what RabbitMQ needs. Raises
    ConfigurationError when there is none."""
    return _found("RabbitMQ", _find_erl_call)


def epmd() -> Path:
    """Erlang's port mapper. Raises ConfigurationError when there is none."""
    return _found("RabbitMQ", _find_epmd)


def redis_server() -> Path:
    """The redis-server program. Raises ConfigurationError when there is none."""
    return _found("Redis", _find_redis)


def ensure_installed(say: Callable[[str], None]) -> None:
    """Install missing servers with apt where that is permitted, after saying so in one line.

    Raises ConfigurationError, which says what to install, where it isn't.
    """
    missing = [
        _PACKAGES[name]
        for name, find in (("RabbitMQ", _find_rabbitmq), ("Redis", _find_redis))
        if find() is None
    ]
    if missing:
        if servers_root() != Path("/"):
            raise ConfigurationError(_not_in_root(missing))
        install(missing, as_root(), say)


def install(packages: list[str], as_root: list[str] | None, say: Callable[[str], None]) -> None:
    """Install Debian's packages with apt, after saying so in one line.

    `as_root` is the prefix that makes a command run as root, None: that is not permitted. Raises
    ConfigurationError, which says what to install, where it can't be done.
    """
    if shutil.which("apt-get") is None or as_root is None:
        raise ConfigurationError(_how_to_install(packages))
    say(f"Installing {' and '.join(packages)} with apt; their own services stay off.")
    command = [*as_root, "sh", "-c", _INSTALL, "sh", *packages]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        print(result.stdout, file=sys.stderr)
        raise ConfigurationError(f"apt failed (its output is above). {_how_to_install(packages)}")


def _found(name: str, find: Callable[[], Path | None]) -> Path:
    path = find()
    if path is None:
        packages = [_PACKAGES[name]]
        is_root_named = servers_root() != Path("/")
        raise ConfigurationError(_not_in_root(packages) if is_root_named else _how_to_install(packages))
    return path


def _not_in_root(packages: list[str]) -> str:
    lacking = f"{servers_root()} lacks {' and '.join(packages)}"
    return f"{ROOT_VARIABLE}: {lacking}; scripts/trixie makes such a folder"


def _how_to_install(packages: list[str]) -> str:
    return f"{' and '.join(packages)} missing: install with `sudo apt-get install {' '.join(packages)}`"


@cache
def as_root() -> list[str] | None:
    """The prefix that makes a command run as root without a question, None when there is none."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n"]
    return None


def _find_erl() -> Path | None:
    erl = shutil.which("erl", path=_search_path())
    return Path(erl).resolve() if erl else None


def _find_erl_call() -> Path | None:
    erl = _find_erl()
    if erl is None:
        return None
    root = erl.parents[1]
    return next(iter(sorted(root.glob("lib/erl_interface-*/bin/erl_call"), reverse=True)), None)


def _find_epmd() -> Path | None:
    found = shutil.which("epmd", path=_search_path())
    return Path(found) if found else None


def _find_redis() -> Path | None:
    found = shutil.which("redis-server", path=_search_path())
    return Path(found) if found else None


def _find_rabbitmq() -> Path | None:
    """The script inside the package: Debian's wrapper around it insists on the user rabbitmq."""
    candidates = sorted(
        (servers_root() / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"), reverse=True
    )
    on_path = shutil.which("rabbitmq-server", path=_search_path())
    if on_path:
        candidates.append(Path(on_path).resolve())
    # The real one stands beside the settings that it reads.
    return next((path for path in candidates if (path.parent / "rabbitmq-env").is_file()), None)


def _search_path() -> str:
    root = servers_root()
    if root != Path("/"):
        return str(root / "usr/bin")
    # An ordinary user's PATH on Debian lacks the folders for servers.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
