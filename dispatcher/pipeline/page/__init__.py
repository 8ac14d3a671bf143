"""A finished report as one HTML page that needs nothing else: no network, no script, no Spark."""

from dispatcher.pipeline.page.render import write_page
from dispatcher.pipeline.page.source import Source, open_report

__all__ = ["Source", "open_report", "write_page"]
