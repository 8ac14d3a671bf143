"""Files in PEM format that a configuration names: our certificate, its key, and authorities to trust."""

from __future__ import annotations

import ssl
from typing import Protocol

from dispatcher.errors import ConfigurationError


class Files(Protocol):
    """A section of the configuration."""

    @property
    def ca_file(self) -> str | None: ...

    @property
    def cert_file(self) -> str | None: ...

    @property
    def key_file(self) -> str | None: ...


def client_context(section: str, files: Files) -> ssl.SSLContext:
    """Trusts `ca_file` alone, without it the system's authorities.

    Raises ConfigurationError when a file is missing or is not what it should be. It names the key, as one of
    this section.
    """
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as problem:
        raise ConfigurationError(f"{section}.ca_file: {files.ca_file}: {_why(problem)}") from None
    _show_ours(context, section, files)
    return context


def server_context(section: str, files: Files) -> ssl.SSLContext:
    """Shows `cert_file`; with `ca_file` it takes only clients that show a certificate of these authorities.
    Raises as `client_context`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _show_ours(context, section, files)
    if files.ca_file is not None:
        try:
            context.load_verify_locations(files.ca_file)
        except OSError as problem:
            raise ConfigurationError(f"{section}.ca_file: {files.ca_file}: {_why(problem)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _show_ours(context: ssl.SSLContext, section: str, files: Files) -> None:
    if files.cert_file is None:
        return
    named = " and ".join(file for file in (files.cert_file, files.key_file) if file)

    def refuse() -> str:
        raise ConfigurationError(f"{section}.key_file: {named}: the key is encrypted; take one that is not")

    try:
        context.load_cert_chain(files.cert_file, files.key_file, refuse)  # else OpenSSL asks on the terminal
    except OSError as problem:
        raise ConfigurationError(f"{section}.cert_file: {named}: {_why(problem)}") from None


def _why(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLError):
        return f"not a PEM file that can be used ({problem.reason or problem})"
    return problem.strerror or str(problem)
