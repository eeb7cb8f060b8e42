"""Edges of small programs, by hand: who made it, who wrote its bytes, who read them before."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from optrace.tracing import open_session


def traced(program):
    with open_session("cpu", device="cpu") as session, session.recording():
        program()
    return session.graph


def edges(graph, kind=None):
    """Edges as (producer, consumer) names, in order; ``mul`` for ``aten.mul.Tensor``, ``mul@3`` for call 3."""
    names = [node.label for node in graph]
    repeated = {name for name in names if names.count(name) > 1}
    label = [f"{name}@{i}" if name in repeated else name for i, name in enumerate(names)]
    return [(label[e.src], label[e.dst]) for e in graph.edges if kind in (None, e.kind)]


def test_using_a_tensor_twice_is_two_edges():
    def program():
        x = torch.ones(4)
        x + x

    assert edges(traced(program)) == [("ones", "add"), ("ones", "add")]


def test_a_write_through_a_view_reaches_the_base():
    def program():
        a = torch.ones(4)
        v = a[:2]
        v.add_(1)
        a * 2

    graph = traced(program)
    assert ("add_", "mul") in edges(graph, "data")
    assert ("ones", "mul") in edges(graph, "data")  # the bytes that add_ left alone
    assert ("slice", "add_") in edges(graph, "data")


def test_a_write_after_a_read_waits_for_the_read():
    def program():
        a = torch.ones(4)
        b = a * 2  # noqa: F841
        a.add_(1)

    graph = traced(program)
    assert ("mul", "add_") in edges(graph, "order")
    assert ("ones", "add_") in edges(graph, "data")


def test_disjoint_slices_do_not_order_each_other():
    def program():
        cache = torch.zeros(2, 3, 8, 4)
        cache[:, :, 0:1].copy_(torch.ones(2, 3, 1, 4))
        cache[:, :, 1:2].copy_(torch.full((2, 3, 1, 4), 2.0))

    graph = traced(program)
    copies = [node.id for node in graph if node.label == "copy_"]
    assert len(copies) == 2
    assert copies[0] not in _ancestors(graph, copies[1])


def test_overlapping_slices_do():
    def program():
        cache = torch.zeros(8)
        cache[0:2].fill_(1)
        cache[1:3].fill_(2)

    graph = traced(program)
    first, second = (node.id for node in graph if node.label == "fill_")
    assert first in _ancestors(graph, second)  # by way of the second slice


def test_a_detached_view_hangs_on_its_base():
    def program():
        x = torch.ones(4, requires_grad=True)
        y = x * 2
        d = y.detach()
        d + 1
        y + 2

    graph = traced(program)
    detach = next(node.id for node in graph if node.label == "detach")
    mul = next(node.id for node in graph if node.label == "mul")
    plus_one, plus_two = (node.id for node in graph if node.label == "add")
    found = {(e.src, e.dst) for e in graph.edges}
    assert {(mul, detach), (detach, plus_one), (mul, plus_two)} <= found
    assert (detach, plus_two) not in found
    assert graph.is_view(detach)


def test_an_out_argument_is_written_not_read():
    def program():
        a = torch.ones(2, 2)
        out = torch.empty(2, 2)
        torch.mm(a, a, out=out)
        out + 1

    graph = traced(program)
    mm = next(node for node in graph if node.label == "mm")
    assert mm.writes == (False, False, True)
    assert mm.reads == (True, True, False)
    assert ("mm", "add") in edges(graph, "data")


def test_a_tensor_list_is_an_edge_a_tensor():
    def program():
        a, b = torch.ones(2), torch.zeros(2)
        torch.cat([a, b, a])

    assert edges(traced(program)) == [("ones", "cat"), ("zeros", "cat"), ("ones", "cat")]


def test_foreach_writes_every_tensor_of_its_list():
    def program():
        a, b = torch.ones(2), torch.zeros(2)
        torch._foreach_add_([a, b], 1)
        a + b

    graph = traced(program)
    assert edges(graph, "data").count(("_foreach_add_", "add")) == 2
    foreach = next(node for node in graph if node.label == "_foreach_add_")
    assert foreach.writes == (True, True)


def test_an_optimizer_updates_the_parameter_that_the_next_forward_reads():
    model = torch.nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 3)

    def program():
        model(x).sum().backward()
        optimizer.step()
        model(x)

    graph = traced(program)
    update = next(node for node in graph if node.phase == "optimizer" and any(node.writes))
    forward, weight_gradient, second = (node for node in graph if node.label in ("mm", "addmm"))
    assert weight_gradient.phase == "backward"
    found = {(e.src, e.dst, e.kind) for e in graph.edges}
    assert any((src, update.id, "data") in found for src in range(weight_gradient.id, update.id))
    # The first forward read the weight through its transpose: the update comes after it, the next forward after that.
    assert (forward.id, update.id, "order") in found
    transposed = next(n for n in graph if n.label == "t" and n.id > update.id)
    assert (update.id, transposed.id, "data") in found
    assert (transposed.id, second.id, "data") in found


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_in_the_backward_pass(reentrant):
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    x = torch.ones(2, 4, requires_grad=True)

    def program():
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()

    graph = traced(program)
    forward, again = (node for node in graph if node.label == "addmm")
    assert (forward.phase, again.phase) == ("forward", "backward")
    assert forward.module.path == again.module.path == "Sequential.0"
    tanh_backward = next(node for node in graph if node.label == "tanh_backward")
    recomputed = [node.id for node in graph if node.label == "tanh"][-1]
    assert recomputed in _ancestors(graph, tanh_backward.id)
    assert tanh_backward.module.path == "Sequential.1"


def _ancestors(graph, call):
    before = {}
    for edge in graph.edges:
        before.setdefault(edge.dst, set()).add(edge.src)
    found, todo = set(), [call]
    while todo:
        for src in before.get(todo.pop(), ()):
            if src not in found:
                found.add(src)
                todo.append(src)
    return found


def test_cat_used_twice_gives_two_edges_from_its_output():
    def program():
        y = torch.cat([torch.ones(2), torch.zeros(2)])
        y.sin()
        y.cos()

    graph = traced(program)
    cat = next(node for node in graph if node.label == "cat")
    uses = [e for e in graph.edges if e.src == cat.id]
    assert [graph[e.dst].label for e in uses] == ["sin", "cos"]
    assert {e.tensor for e in uses} == {cat.outputs[0].id}


def test_many_slices_are_found_again_quickly():
    """Linear, not quadratic: ten times the slices in well under a hundred times the time."""
    import time

    def run(count):
        def program():
            buffer = torch.zeros(count, 64)
            for i in range(count):
                buffer[i].fill_(1)

        graph = traced(program)
        start = time.perf_counter()
        assert len(graph.edges) == 2 * count  # zeros -> select -> fill_, for each slice
        return time.perf_counter() - start

    run(50)
    assert run(3000) < 40 * max(run(300), 1e-3)
