"""Rows of (call, output, kernels, memcpys, memsets, flops) and the check that runs one."""

from __future__ import annotations

import pytest

from optrace.cost.rules import work_of


def rows(table):
    """Parametrize a test with ``table``, a name a row."""
    names = [f"{number}-{row[0][0]}" for number, row in enumerate(table)]
    return pytest.mark.parametrize("row", table, ids=names)


def check(row, maker, target):
    """Price the row's call and compare each count."""
    call, out, kernels, memcpys, memsets, flops = row
    work = work_of(maker(*call, out=out), target)
    assert (work.kernels, work.memcpys, work.memsets) == (kernels, memcpys, memsets)
    assert work.flops == flops
    return work
