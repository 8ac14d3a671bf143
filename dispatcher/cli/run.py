"""`dispatcher run`: the service itself."""

from __future__ import annotations

import typer

from dispatcher.cli import options


def run(file: options.ConfigFile = options.DEFAULT_CONFIG) -> None:
    """Run every lane of the configuration until SIGTERM or SIGINT.

    Several may run with the same configuration: per lane one is active, the others stand by.
    """
    settings = options.load_settings(file)
    from dispatcher import logs  # with a wrong configuration the line that says so comes at once
    from dispatcher.service import process

    logs.configure()

    raise typer.Exit(process.run(settings, lambda: options.load_settings(file)))
