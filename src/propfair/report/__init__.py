"""Tables, figures and pages, from records only. Nothing here trains."""

from propfair.report.document import make_document
from propfair.report.figures import draw_figure
from propfair.report.group_table import Cell, GroupTable, group_table
from propfair.report.live import LiveDocument, make_server
from propfair.report.partition import PartitionTable, describe_partition, draw_partition
from propfair.report.picture import draw_comparison
from propfair.report.relative import draw_relative
from propfair.report.scatter import draw_scatter
from propfair.report.sweep import write_results
from propfair.report.table_files import Layout, write_tables
from propfair.report.tables import TextTable
from propfair.report.verdicts import Verdicts, judge
from propfair.report.write import write_report

__all__ = [
    "Cell",
    "GroupTable",
    "Layout",
    "LiveDocument",
    "PartitionTable",
    "TextTable",
    "Verdicts",
    "describe_partition",
    "draw_comparison",
    "draw_figure",
    "draw_partition",
    "draw_relative",
    "draw_scatter",
    "group_table",
    "judge",
    "make_document",
    "make_server",
    "write_report",
    "write_results",
    "write_tables",
]
