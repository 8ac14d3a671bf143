"""A finished report as one HTML page that needs nothing else: no network, no script, no Spark."""

from dispatcher.pipeline.page.lane_view import LaneSection
from dispatcher.pipeline.page.numbers import as_numbers
from dispatcher.pipeline.page.render import ReportView, view_of, write_page
from dispatcher.pipeline.page.source import Source, open_report

__all__ = ["LaneSection", "ReportView", "Source", "as_numbers", "open_report", "view_of", "write_page"]
