"""TLS of the HTTP port: the certificate that it shows, and whose clients it takes."""

from __future__ import annotations

import ssl

from dispatcher.errors import ConfigurationError
from dispatcher.settings import HttpSettings


def server_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """None without a certificate: plain HTTP. The files are read once, now. Raises ConfigurationError."""
    if settings.cert_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"http.cert_file: can't be read with its key_file: {error}") from None
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except OSError as error:
            raise ConfigurationError(f"http.ca_file: can't be read: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
