"""RabbitMQ's management API as commands ask it: where it is, and how the two know each other."""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from dispatcher.certificates import client_context
from dispatcher.nodes.management import Management
from dispatcher.settings import RabbitSettings

_PORTS: Final = {"http": 15_672, "https": 15_671}


def management_of(settings: RabbitSettings, given: str | None) -> Management:
    """The API at the given URL, or else at the usual one. On the broker's own hosts https has the broker's
    certificates; elsewhere it trusts the system's authorities and the broker's. Raises ConfigurationError if
    these can't be used."""
    url = given or usual_management_url(settings)
    place = urlsplit(url)
    if place.scheme != "https":
        return Management(url)
    if place.hostname in {node.address.host for node in settings.nodes()}:
        return Management(url, client_context("rabbitmq", settings), settings.server_name)
    context = ssl.create_default_context()
    if settings.ca_file is not None:
        client_context("rabbitmq", settings)  # it names the file if that can't be used
        context.load_verify_locations(settings.ca_file)
    return Management(url, context)


def usual_management_url(settings: RabbitSettings) -> str:
    """The API on the broker's host, with the broker's user; with TLS if the broker's URL has it."""
    credentials, at, _ = urlsplit(settings.nodes()[0].url).netloc.rpartition("@")
    host = settings.address.host
    host = f"[{host}]" if ":" in host else host
    scheme = _scheme(settings)
    return urlunsplit((scheme, f"{credentials}{at}{host}:{_PORTS[scheme]}", "", "", ""))


def where_else(settings: RabbitSettings, given: str | None) -> str:
    """How to say where it is, when it can't be asked at this URL."""
    if given is None and settings.address.tls:
        scheme = _scheme(settings)
        why = f"without it {scheme} on port {_PORTS[scheme]} is asked, because {settings.url_key} has TLS"
        return f"--management URL; {why}"
    return "--management URL"


def _scheme(settings: RabbitSettings) -> str:
    return "https" if settings.address.tls else "http"
