"""Columns in files are what they were in memory."""

import copy
import errno
import pickle
from array import array
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from optrace.cost.profiles import pricing
from optrace.graph import OpGraph, graph_to_record, opgraph, spill
from optrace.graph.spill import Spilled, spilled, values
from optrace.report import report
from optrace.tracing import open_session, tracer


@pytest.fixture
def column():
    """10, 11, 12 in a file, 13 and 14 in memory."""
    column = spilled({"": array("I", [10, 11, 12])})[""]
    column.append(13)
    column.extend(array("I", [14]))
    return column


def test_rows_are_read_wherever_they_lie(column):
    assert len(column) == 5
    assert list(column) == [10, 11, 12, 13, 14]
    assert [column[place] for place in (0, 2, 3, -1, -5)] == [10, 12, 13, 14, 10]
    assert [list(column[start:stop]) for start, stop in ((0, 2), (3, 5), (2, 4), (1, 1), (4, 9))] == [
        [10, 11],
        [13, 14],
        [12, 13],
        [],
        [14],
    ]
    assert values(column).tolist() == [10, 11, 12, 13, 14]
    for place in (5, -6):
        with pytest.raises(IndexError, match=f"row {place} of 5"):
            column[place]


def test_rows_are_corrected_wherever_they_lie(column):
    column[0], column[-1] = 20, 24
    assert list(column) == [20, 11, 12, 13, 24]


def test_what_was_in_memory_follows_what_is_in_the_file(column):
    again = spilled({"": column})[""]
    assert list(again) == [10, 11, 12, 13, 14]
    assert len(again.head) == 5
    assert again.scratch is column.scratch


def test_rows_that_an_interrupt_left_in_the_file_are_written_over(column):
    spilled({"": column})  # and nobody took it over
    column.append(15)
    assert list(spilled({"": column})[""]) == [10, 11, 12, 13, 14, 15]


def test_a_copy_is_in_memory(column):
    for other in (copy.copy(column), copy.deepcopy(column), pickle.loads(pickle.dumps(column))):
        assert type(other) is array
        assert list(other) == [10, 11, 12, 13, 14]


def recorded(device: str) -> OpGraph:
    """Two training steps of two layers."""
    with open_session("cpu", device=device) as session:
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        with session.recording():
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 16, device=device)).sum().backward()
                optimizer.step()
        return session.graph


def test_a_program_is_recorded_into_files_as_into_memory(monkeypatch):
    # On the CPU: what lives on a device before a record begins is numbered as the garbage collector lists it.
    graphs = []
    monkeypatch.setattr(tracer, "_MANY", 8)  # calls that come to the columns together
    for calls in (opgraph.SPILLED_CALLS, 10):
        monkeypatch.setattr(opgraph, "SPILLED_CALLS", calls)
        graphs.append(recorded("cpu"))
    whole, parts = graphs
    assert type(whole._op) is array
    assert isinstance(parts._op, Spilled)
    assert len(parts) - 10 - 8 <= len(parts._op.head) <= len(parts) == len(whole)
    assert graph_to_record(parts) == graph_to_record(whole)


def test_a_record_in_files_is_read_and_priced_as_in_memory(monkeypatch):
    monkeypatch.setattr(opgraph, "SPILLED_CALLS", 10)
    parts = recorded("cuda")
    whole = copy.deepcopy(parts)
    assert isinstance(parts._op, Spilled)
    assert type(whole._op) is array
    assert list(parts) == list(whole)
    assert parts.edges == whole.edges
    for field in fields(whole.columns()):
        np.testing.assert_array_equal(
            getattr(parts.columns(), field.name), getattr(whole.columns(), field.name), field.name
        )
    one, other = (report(graph, pricing("h200", "default")) for graph in (whole, parts))
    assert one.totals == other.totals
    assert one.timeline.wall_us == other.timeline.wall_us > 0
    parts.set_python_us(0, 1.5)
    assert parts.python_us(0) == parts.columns().python_us[0] == 1.5


def test_without_room_for_files_a_record_stays_in_memory_and_says_so(monkeypatch):
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(opgraph, "SPILLED_CALLS", 10)
    monkeypatch.setattr(spill.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(opgraph, "gettempdir", lambda: "/full")
    graph = recorded("cpu")
    assert type(graph._op) is array
    assert graph.info.notes == ("the record is kept in memory: no room in /full (No space left on device)",)
    assert len(graph) == len(recorded("cpu"))
