"""`dispatcher config …`: about the configuration file."""

from __future__ import annotations

import typer

from dispatcher.cli.output import print_json
from dispatcher.settings import json_schema

app = typer.Typer(help="About the configuration file.", no_args_is_help=True)


@app.callback()
def about() -> None:
    """About the configuration file."""


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of the configuration file, for editors."""
    print_json(json_schema())
