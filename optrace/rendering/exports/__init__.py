"""Formats that other tools read: a timeline, graphs, and the table of nodes.

| module | writes | read by |
|---|---|---|
| `chrome_trace` | `.trace.json`, `.perfetto.json` | Perfetto, chrome://tracing, HolisticTraceAnalysis |
| `model_explorer` | `.explorer.json`, `.nodedata.json` | Model Explorer |
| `networks` | `.graphml`, `.nodelink.json` | networkx, Gephi, yEd |
| `tables` | `.csv`, `.parquet` | pandas, DuckDB, spreadsheets |

`columns` is what a node says of itself in all but the timeline; `clock` lays calls and launches on a time axis.
Nothing is folded: each call is a node. A figure that is not known is left out, never zero; a predicted time's name
begins with ``predicted_``, a measured one's with ``measured_``.
"""
