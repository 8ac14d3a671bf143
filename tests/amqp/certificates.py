"""A certificate authority of the test's own, made with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """Signs certificates; files are below `folder`."""

    folder: Path
    name: str = "ca"

    @property
    def file(self) -> str:
        return str(self.folder / f"{self.name}.pem")

    def create(self) -> Authority:
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN=test {self.name}", "-keyout", self._path("key"), "-out", self.file,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
        return self

    def sign(self, name: str, subject_alt_name: str = "") -> tuple[str, str]:
        """Certificate and key files for this common name."""
        stem = self.folder / f"{self.name}-{name}"
        certificate, key, request = (str(stem.with_suffix(end)) for end in (".pem", ".key", ".csr"))
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-out", request,
        )  # fmt: skip
        extensions = stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={subject_alt_name or f'DNS:{name}'}\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._path("key"), "-CAcreateserial",
            "-days", "2", "-out", certificate, "-extfile", str(extensions),
        )  # fmt: skip
        return certificate, key

    def _path(self, ending: str) -> str:
        return str(self.folder / f"{self.name}.{ending}")
