"""Module calls by rows."""

from optrace.graph import ModuleCall
from optrace.graph.module_calls import ModuleCalls


def test_each_is_entered_once_and_read_back():
    calls = [
        ModuleCall("net.0", "Linear", 1),
        ModuleCall("net.1", "ReLU", 1),
        ModuleCall("net.0", "Linear", 2),
        ModuleCall("net.0", "Linear", 40),  # calls before it were not recorded
        ModuleCall("net.0", "Linear", 7),
        ModuleCall("net.0", "Conv2d", 1),  # another module at the same place
        ModuleCall("net.0", "Linear", 2**62),
        ModuleCall("net.0", "", 0),
    ]
    table = ModuleCalls()
    assert [table.add(call) for call in calls] == list(range(8))
    assert [table.add(call) for call in reversed(calls)] == list(range(7, -1, -1))
    assert list(table.rows) == calls
    assert (len(table), table[6]) == (8, calls[6])


def test_a_call_that_others_catch_up_with_keeps_its_row():
    calls = [ModuleCall("net", "Net", call) for call in (100, *range(1, 61))]
    table = ModuleCalls()
    assert [table.add(call) for call in calls] == list(range(61))
    assert table.add(calls[0]) == 0


def test_a_million_take_few_bytes():
    table = ModuleCalls()
    for call in range(1, 50_001):
        table.add(ModuleCall("net", "Net", call))
    held = [table._module, table._call, table._by_call[0]]
    assert sum(len(column) * column.itemsize for column in held) == 50_000 * (4 + 8 + 4) + 4
