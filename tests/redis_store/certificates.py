"""Certificates, by a CA made for the test: for a server called redis.internal, a client, and 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path

SERVER_NAME = "redis.internal"


class Certificates:
    """PEM files in a directory: `ca`, `server`, `client`, `sentinel` (at 127.0.0.1) and their keys;
    `stranger` is another CA."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for authority in ("ca", "stranger"):
            self._openssl(
                "req", "-x509", "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
                "-out", f"{authority}.pem", "-addext", "keyUsage=critical,keyCertSign", *_NEW_KEY,
            )  # fmt: skip
        named = f"DNS:{SERVER_NAME}"
        for name, owner in (("server", named), ("client", named), ("sentinel", "IP:127.0.0.1")):
            self._openssl(
                "req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request", *_NEW_KEY
            )
            (directory / "extensions").write_text(f"subjectAltName={owner}\n")
            self._openssl(
                "x509", "-req", "-days", "2", "-in", "request", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.pem",
            )  # fmt: skip

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
