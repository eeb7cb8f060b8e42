"""``graph.json``: the record with every figure, read back and priced again.

``docs/format.md`` documents the fields. Only the record and the pricing options are read: costs, times and
totals are computed from them, so that they cannot disagree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from optrace.cost.host_profile import ONE_FOR_ALL, HostProfile
from optrace.cost.profiles import (
    GpuProfile,
    Pricing,
    UnknownProfileError,
    pricing,
    ships,
    this_host,
)
from optrace.cost.work import Work
from optrace.graph import GraphFormatError, graph_from_record, graph_to_record
from optrace.graph.folding import folding_record
from optrace.rendering import findings
from optrace.rendering.cures import cures_record
from optrace.rendering.options import DrawOptions, Rendered
from optrace.rendering.scoreboard import main_math_dtype, tax_layers
from optrace.report import Report
from optrace.report import report as make_report

#: Names of overridable numbers: in ``Pricing.overrides``, as arguments of ``pricing``, where they live.
_OVERRIDES: tuple[tuple[str, str, str], ...] = (
    ("dispatch_us", "dispatch_us", "host"),
    ("launch_us", "launch_us", "host"),
    ("bandwidth_tb", "bandwidth_tb_s", "gpu"),
)


def render(report: Report, options: DrawOptions) -> Rendered:  # noqa: ARG001 - a record is never folded
    """The file's bytes, a line a node and a line an edge, so that two files can be compared by line."""
    return Rendered(_by_line(_document(report)))


def _document(report: Report) -> dict[str, Any]:
    record = graph_to_record(report.graph)
    nodes, edges = record.pop("nodes"), record.pop("edges")
    rest = {
        name: record.pop(name)
        for name in ("storages", "tensor_names", "freed_before", "marks", "operators", "frames")
    }
    return {
        **record,
        "complete": report.complete,
        "pricing": _pricing_record(report.pricing),
        "totals": _totals(report),
        "findings": [findings.record(finding) for finding in report.findings],
        "nodes": [node | costs for node, costs in zip(nodes, _cost_records(report), strict=True)],
        "edges": edges,
        "folding": folding_record(report.graph),
        "cures": cures_record(report),
        "peak_storages": [
            {
                "storage": held.storage,
                "bytes": held.nbytes,
                "use": held.use,
                "born": held.born,
                "freed": held.freed,
            }
            for held in report.peak.holdings
        ],
        **rest,
    }


def costs_record(report: Report, call: int) -> dict[str, Any]:
    """A call's figures as ``graph.json`` has them."""
    return next(_cost_records(report, call, call + 1))


def _cost_records(report: Report, first: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The figures of calls from ``first`` to before ``end``; what a call shares with others that are alike, once."""
    part = slice(first, end)
    costs, spans = report.costs, report.timeline.spans
    counts = [_counts_record(work) for work in costs.works.distinct]
    roofs = [None if time is None else time.roofline_us for time in costs.device.distinct]
    host = costs.host
    columns = (
        costs.works.of,
        costs.traffic.read,
        costs.traffic.written,
        host.total_us,
        host.python_us,
        host.autograd_us,
        host.dispatch_us,
        host.launch_us,
        costs.device_us,
        costs.device.of,
        spans.start_us,
        spans.gap_us,
        spans.exposed_us,
        spans.wait_us,
    )
    rows = zip(*(column[part].tolist() for column in columns), report.bounds[part], strict=True)
    for (
        number,
        read,
        written,
        total_us,
        python_us,
        autograd_us,
        dispatch_us,
        launch_us,
        device_us,
        timed,
        start_us,
        gap_us,
        exposed_us,
        wait_us,
        bound,
    ) in rows:
        before, after = counts[number]
        crosses = before["launches"] is not None
        flops = after["flops"]
        moved = read + written
        yield {
            **before,
            "hbm_read": read if crosses else None,
            "hbm_written": written if crosses else None,
            "flops": flops,
            "matmul_flops": after["matmul_flops"],
            "intensity": flops / moved if crosses and moved and flops is not None else None,
            "kind": after["kind"],
            "math_dtype": after["math_dtype"],
            "host_us": total_us,
            "host_layers_us": {
                "python": python_us,
                "autograd": autograd_us,
                "dispatch": dispatch_us,
                "launch": launch_us,
            },
            "host_wait": after["host_wait"],
            "device_us": None if roofs[timed] is None else device_us,
            "roofline_us": roofs[timed],
            "start_us": start_us,
            "gap_us": gap_us,
            "exposed_us": exposed_us,
            "wait_us": wait_us,
            "bound": bound,
            "cost_source": after["source"],
        }


def _counts_record(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a call's work says of it, before and after its traffic."""
    before = ("launches", "kernels", "memcpys", "memsets", "tensor_bytes")
    after = ("flops", "matmul_flops", "kind", "math_dtype", "host_wait", "source")
    return {name: getattr(work, name) for name in before}, {name: getattr(work, name) for name in after}


_COUNTS = frozenset(
    {
        "launches",
        "kernels",
        "memcpys",
        "memsets",
        "tensor_bytes",
        "hbm_bytes",
        "hbm_read",
        "hbm_written",
        "flops",
        "matmul_flops",
    }
)


def _totals(report: Report) -> dict[str, Any]:
    timeline, verdict, plain, memory = report.timeline, report.verdict, report.lesson, report.priced.memory
    totals = report.totals
    return {
        **{name: int(total.value) if name in _COUNTS else total.value for name, total in totals.items()},
        "partial": {name: total.missing for name, total in totals.items() if not total.complete},
        "peak_bytes": memory.peak,
        "peak_call": memory.peak_call if memory.peak_call >= 0 else None,
        "base_bytes": memory.base,
        "reserved_bytes": memory.reserved,
        "peak_bytes_by_use": report.peak.shares,
        "library_bytes": memory.library,
        "fits": report.fits,
        "wall_us": timeline.wall_us,
        "b2b_us": timeline.b2b_us,
        "host_tail_us": timeline.host_tail_us,
        "causes_us": {
            "launch": verdict.launch_us,
            "memory": verdict.memory_us,
            "compute": verdict.compute_us,
            "sync": verdict.sync_us,
        },
        "host_layers_us": {layer.name.lower(): layer.us for layer in tax_layers(report)},
        "gpu_busy_share": report.gpu_busy_share,
        "flops_only_us": report.flops_only_us,
        "mfu": report.mfu,
        "hbm_utilization": report.hbm_utilization,
        "ridge_point": report.pricing.gpu.ridge_point(main_math_dtype(report)),
        "bottleneck": verdict.bottleneck,
        "cuda_graph_us": verdict.graph_us,
        "lesson": {
            "kernels": plain.kernels,
            "bytes": plain.bytes,
            "traffic_us": plain.traffic_us,
            "tax_us": plain.tax_us,
        },
    }


def _pricing_record(priced: Pricing) -> dict[str, Any]:
    replaced = {text.partition("=")[0] for text in priced.overrides}
    profiles: dict[str, GpuProfile | HostProfile] = {"gpu": priced.gpu, "host": priced.host}
    fields = {
        profile: [
            argument for name, argument, lives_in in _OVERRIDES if lives_in == profile and name in replaced
        ]
        for profile in profiles
    }
    if "dispatch_us" in fields["host"]:
        fields["host"] += tuple(ONE_FOR_ALL)  # went with it
    return {
        "gpu": priced.gpu.key,
        "gpu_name": priced.gpu.name,
        "gpu_memory_bytes": priced.gpu.memory_bytes,
        "gpu_measured": priced.gpu.measured,
        "host": priced.host.key,
        "host_measured": priced.host.measured,
        "overrides": {
            argument: getattr(profiles[profile], argument)
            for name, argument, profile in _OVERRIDES
            if name in replaced
        },
        "profiles": {
            kind: msgspec.to_builtins(profile)
            for kind, profile in profiles.items()
            if not ships(profile, fields[kind])
        },
    }


def _by_line(document: Mapping[str, Any]) -> bytes:
    """JSON with a line a top-level field, and a line an item of its lists and objects of many items."""
    encode = msgspec.json.encode
    fields = []
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            shown = b"[\n  " + b",\n  ".join(map(encode, value)) + b"\n]"
        elif name == "cures":
            shown = _by_line(value).rstrip()
        elif name in ("operators", "tensor_names", "totals") and value:
            items = (encode(key) + b":" + encode(item) for key, item in value.items())
            shown = b"{\n  " + b",\n  ".join(items) + b"\n}"
        else:
            shown = encode(value)
        fields.append(encode(name) + b":" + shown)
    return b"{\n" + b",\n".join(fields) + b"\n}\n"


def read_report(
    source: str | os.PathLike[str] | bytes,
    *,
    gpu: str | None = None,
    host: str | None = None,
    dispatch_us: float | None = None,
    launch_us: float | None = None,
    bandwidth_tb_s: float | None = None,
) -> Report:
    """The report of a ``graph.json`` (a path, or its bytes), priced as it was written.

    A ``gpu`` or ``host`` given here replaces the file's together with the numbers that were replaced in it;
    single numbers given here replace the file's. Raises ``GraphFormatError`` for a file that cannot be read
    or is no such file, ``UnknownProfileError`` and ``ValueError`` for arguments of ours, as ``pricing`` does.
    """
    name = "graph" if isinstance(source, bytes) else os.fspath(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        graph, stored = graph_from_record(data)
        kept, note = _stored_arguments(stored, new_gpu=gpu is not None, new_host=host is not None)
    except OSError as error:
        raise GraphFormatError(f"cannot read {name}: {error.strerror or error}") from None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise GraphFormatError(f"cannot read {name}: {error}") from None
    given = {
        "gpu": gpu,
        "host": host,
        "dispatch_us": dispatch_us,
        "launch_us": launch_us,
        "bandwidth_tb_s": bandwidth_tb_s,
    }
    if note:
        graph.info = replace(graph.info, notes=(*graph.info.notes, note))
    priced_as = pricing(**{**kept, **{key: value for key, value in given.items() if value is not None}})
    try:
        return make_report(graph, priced_as)
    except Exception as error:
        # Rules trust the arguments that torch's dispatcher let pass; a file may hold others.
        raise GraphFormatError(
            f"cannot read {name}: its calls cannot be priced ({type(error).__name__}: {str(error)[:200]}); "
            "was it edited?"
        ) from error


def _stored_arguments(
    stored: Mapping[str, Any], *, new_gpu: bool, new_host: bool
) -> tuple[dict[str, Any], str]:
    """The arguments of ``pricing`` that a file's ``pricing`` stands for, less those of replaced profiles; and what is to
    be said of them.

    Raises ``GraphFormatError``, or ``ValueError`` as ``pricing`` does, where it stands for none.
    """
    overrides, profiles = stored.get("overrides", {}), stored.get("profiles", {})
    for name, value in (("overrides", overrides), ("profiles", profiles)):
        if not isinstance(value, dict):
            raise GraphFormatError(f'its "pricing.{name}" is no object')
    arguments: dict[str, Any] = {}
    kinds = {"gpu": GpuProfile, "host": HostProfile}
    for profile, replaced in (("gpu", new_gpu), ("host", new_host)):
        if replaced:
            continue
        if profile in profiles:
            arguments[profile] = msgspec.convert(profiles[profile], kinds[profile])
        elif profile in stored:
            if not isinstance(stored[profile], str):
                raise GraphFormatError(f'its "pricing.{profile}" is no name')
            arguments[profile] = stored[profile]
        arguments.update(_numbers(overrides, profile))
    try:
        pricing(**arguments)
    except UnknownProfileError:
        # Of files that were written before the profiles of a machine were kept in them.
        unknown = arguments.pop("host", None)
        pricing(**arguments)
        return arguments, (
            f"The file's host profile {unknown!r} is not on this machine: its host times are those of {this_host().key!r}."
        )
    return arguments, ""


def _numbers(overrides: Mapping[str, Any], profile: str) -> Iterator[tuple[str, float]]:
    for _, argument, lives_in in _OVERRIDES:
        if lives_in == profile and argument in overrides:
            value = overrides[argument]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise GraphFormatError(f'its "pricing.overrides.{argument}" is {value!r}')
            yield argument, value
