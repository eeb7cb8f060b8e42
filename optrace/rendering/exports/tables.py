"""The table of nodes: a row a call, as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from typing import Any

from optrace.rendering.errors import RenderError
from optrace.rendering.exports.columns import COLUMNS, Kind, rows
from optrace.rendering.options import DrawOptions, Rendered
from optrace.report import Report


def render_csv(report: Report, options: DrawOptions) -> Rendered:
    """Comma-separated, with a head; an empty field is a figure that is not known."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for row in rows(report, options):
        writer.writerow(column.figure(row) for column in COLUMNS)
    return Rendered(text.getvalue().encode())


def render_parquet(report: Report, options: DrawOptions) -> Rendered:
    """Typed columns with null for what is not known; needs pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RenderError("Parquet needs pyarrow: pip install 'torch-optrace[parquet]'") from None
    types: dict[Kind, Any] = {
        "text": pyarrow.string(),
        "count": pyarrow.int64(),
        "number": pyarrow.float64(),
        "flag": pyarrow.bool_(),
    }
    figures: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
    for row in rows(report, options):
        for column in COLUMNS:
            figures[column.name].append(column.figure(row))
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in COLUMNS])
    info = report.graph.info
    schema = schema.with_metadata(
        {"program": info.program, "gpu": report.pricing.gpu.key, "torch": info.torch, "mode": info.mode}
    )
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(figures, schema=schema), sink)
    return Rendered(sink.getvalue())
