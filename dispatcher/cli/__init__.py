"""The command line: noun, then verb; thin commands over the broker, one line for what went wrong."""

from dispatcher.cli.app import app, main

__all__ = ["app", "main"]
