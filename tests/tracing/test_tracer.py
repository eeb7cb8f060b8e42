"""What the tracer keeps of a call."""

import contextlib
import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import optrace
from optrace.cost.profiles import pricing
from optrace.graph import graph_from_record, graph_to_record
from optrace.report import report
from optrace.tracing import TraceError, open_session


def traced(program, **options):
    with open_session("cpu", device="cpu", **options) as session, session.recording():
        program()
    return session.graph


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))))


def test_shapes_strides_dtypes_and_arguments():
    graph = traced(lambda: torch.ones(2, 3).t().add(1, alpha=2))
    ones, transposed, added = graph
    assert ones.args == ((2, 3),)
    assert (transposed.outputs[0].shape, transposed.outputs[0].stride) == ((3, 2), (1, 3))
    assert transposed.outputs[0].storage == ones.outputs[0].storage
    assert added.op == "aten.add.Tensor"
    assert added.arg("alpha") == 2
    assert added.inputs[0].device == "cpu"
    assert added.facts.tags == ("pointwise",)


def test_arguments_that_compare_equal_are_kept_apart():
    def program():
        x = torch.ones(2)
        for value in (1, 1.0, True):
            torch.full_like(x, value)

    values = [node.args[1] for node in traced(program) if node.label == "full_like"]
    assert values == [1, 1.0, True]
    assert [type(value) for value in values] == [int, float, bool]


def test_module_paths_and_call_numbers():
    block = Block()
    graph = traced(lambda: block(torch.ones(1, 4)))
    assert [(n.label, n.module.path, n.module.call) for n in graph if n.label in ("addmm", "relu")] == [
        ("addmm", "Block.first", 1),
        ("relu", "Block.act", 1),
        ("addmm", "Block.second", 1),
        ("relu", "Block.act", 2),
    ]


def test_a_shared_module_shows_under_each_caller():
    shared = nn.ReLU()
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared) for _ in range(3))
    )
    graph = traced(lambda: model(torch.ones(1, 4)))
    relus = [n.module.path for n in graph if n.label == "relu"]
    assert [n.label for n in graph].count("addmm") == len(relus) == 6
    assert [path.split(".")[1] for path in relus] == ["0", "0", "1", "1", "2", "2"]


def test_a_child_exchanged_within_a_run_has_its_own_name():
    block = nn.Sequential(nn.ReLU(), nn.Sigmoid())

    def program():
        x = torch.ones(1, 4)
        block(x)
        block[0], block[1] = nn.Tanh(), block[0]
        block(x)

    paths = [(n.label, n.module.path, n.module.call) for n in traced(program) if n.module]
    assert paths == [
        ("relu", "Sequential.0", 1),
        ("sigmoid", "Sequential.1", 1),
        ("tanh", "Sequential.0", 2),
        ("relu", "Sequential.1", 2),
    ]


def test_the_children_of_a_long_sequence_are_looked_through_once():
    class Children(dict):
        looks = 0

        def items(self):
            Children.looks += 1
            return super().items()

    block = nn.Sequential(*(nn.ReLU() for _ in range(100)))
    graph = traced_block(block, Children)
    assert [n.module.path for n in graph if n.label == "relu"] == [f"Sequential.{i}" for i in range(100)]
    assert Children.looks == 1


def traced_block(block, children):
    """The graph of a call of ``block``, whose children are kept in ``children`` once it was entered."""
    x = torch.ones(1)
    with open_session("cpu", device="cpu") as session, session.recording():
        block(x)
        session.forget()
        block._modules = children(block._modules)
        session._tracer._modules._below.clear()
        block(x)
    return session.graph


def test_backward_calls_carry_the_forward_module_and_line():
    block = Block()
    graph = traced(lambda: block(torch.ones(1, 4)).sum().backward())
    backward = [
        node for node in graph if node.phase == "backward" and node.label in ("mm", "threshold_backward")
    ]
    assert {node.module.path for node in backward} == {"Block.first", "Block.second", "Block.act"}
    lines = {node.source.line.function for node in backward}
    assert lines == {"Block.forward"}


def test_source_is_the_users_line_with_library_frames_before_it():
    def program():
        nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2))
        nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))

    graph = traced(program)
    addmm = next(node for node in graph if node.label == "addmm")
    assert Path(addmm.source.line.file).resolve() == Path(__file__).resolve()  # from the working folder
    assert addmm.source.line.function.endswith("program")
    assert addmm.source.frames[-1] == addmm.source.line
    in_module = next(node for node in graph if node.module and node.label == "addmm")
    assert next(f.file for f in in_module.source.frames if not f.user) == "torch/nn/modules/linear.py"


def test_phases():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def program():
        model(torch.ones(1, 2)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    graph = traced(program)
    phases = [node.phase for node in graph]
    assert [p for i, p in enumerate(phases) if i == 0 or p != phases[i - 1]] == [
        "forward",
        "backward",
        "optimizer",
    ]


def test_storages_know_what_they_are():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    graph = traced(step)
    named = {storage.name: storage.kind for storage in graph.storages if storage.kind}
    assert named["Linear.weight"] == "parameter"
    assert named["Linear.weight.grad"] == "gradient"
    assert named["Linear.weight.exp_avg"] == "optimizer state"


def test_frees_are_seen_and_no_tensor_is_kept_alive():
    def program():
        x = torch.ones(1000)
        y = x * 2
        del x
        y + 1

    graph = traced(program)
    ones, mul, _ = graph
    assert ones.outputs[0].storage in mul.freed
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (1000,)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's word on its prototype
def test_a_tensor_that_is_nested_has_no_storage_and_no_shape():
    def program():
        rows = [torch.ones(2, 3), torch.ones(4, 3)]
        nested = torch.nested.nested_tensor(rows)
        nested + nested

    *_, call = traced(program)
    assert call.op == "aten.add.Tensor"
    assert [(tensor.shape, tensor.storage) for tensor in (*call.inputs, *call.outputs)] == [((), -1)] * 3


def test_a_recording_where_no_device_is_begins_without_a_look_at_all_objects():
    begun = []

    def count(phase, info):
        if phase == "start" and info["generation"] == 2:
            begun.append(info)

    with open_session("cpu", device="cpu") as session:
        gc.collect()
        gc.callbacks.append(count)
        try:
            with session.recording():
                torch.ones(2)
        finally:
            gc.callbacks.remove(count)
    assert not begun
    assert len(session.graph) == 1


def test_a_failing_program_leaves_the_partial_graph():
    def program():
        x = torch.ones(2)
        x @ torch.ones(3)

    with open_session("cpu") as session, pytest.raises(RuntimeError), session.recording():
        program()
    assert [node.label for node in session.graph] == ["ones", "ones"]
    assert not session.graph.info.complete
    assert "RuntimeError" in session.graph.info.incomplete[0]


def test_inference_mode_is_taken_apart():
    def program():
        with torch.inference_mode():
            nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))

    assert [node.label for node in traced(program)][-2:] == ["t", "addmm"]


def test_marked_steps_leave_setup_out():
    def script():
        x = torch.ones(3)
        for _ in range(4):
            with optrace.step():
                x = x * 2
            x + 1

    with open_session("cpu") as session, session.recording(warmup=1, steps=2):
        script()
    assert [node.label for node in session.graph] == ["mul", "mul"]
    assert session.steps_seen == 4


def test_step_decorates_with_and_without_parentheses():
    @optrace.step
    def one(x):
        return x + 1

    @optrace.step()
    def two(x):
        return x * 2

    assert (one(1), two(3)) == (2, 6)


def test_sessions_do_not_nest_and_end_after_errors():
    with open_session("cpu"), pytest.raises(TraceError, match="already running"), open_session("cpu"):
        pass
    with pytest.raises(TraceError, match="unknown mode 'gpu'"), open_session("gpu"):
        pass
    with pytest.raises(ZeroDivisionError), open_session("cpu"):
        raise ZeroDivisionError
    with open_session("cpu"):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cuda_mode_needs_a_gpu():
    with pytest.raises(TraceError, match="torch sees none"), open_session("cuda"):
        pass


def test_the_record_survives_json():
    import msgspec

    block = Block()

    def program():
        x = block(torch.ones(1, 4))
        x.masked_fill(x > 0, float("-inf")).sum().backward()
        torch.ones(2, dtype=torch.complex64).mul(1 + 2j)

    graph = traced(program)
    data = msgspec.json.encode(graph_to_record(graph))
    again, _ = graph_from_record(data)
    assert list(again) == list(graph)
    assert again.edges == graph.edges
    assert again.storages == graph.storages
    assert again.info == graph.info
    assert b"NaN" not in data
    assert b"Infinity" not in data


def test_calls_that_autograd_records_are_told_apart():
    weight = torch.ones(2, 2, requires_grad=True)

    def program():
        x = torch.ones(2, 2)
        x * 2
        y = x @ weight
        y.detach()
        y.relu()
        with torch.no_grad():
            x @ weight

    graph = traced(program)
    assert [(node.label, node.autograd) for node in graph] == [
        ("ones", False),
        ("mul", False),
        ("mm", True),
        ("detach", False),
        ("relu", True),
        ("detach", False),
        ("mm", False),
    ]


def test_the_first_call_can_be_one_that_autograd_records():
    weight = torch.ones(2, 2, requires_grad=True)
    (node,) = traced(lambda: weight * 2)
    assert node.autograd


def test_a_step_may_free_what_it_never_touches():
    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 256, device="cuda")).sum().backward()
        optimizer.step()

    with open_session("cpu") as session:
        model = session.place(nn.Linear(256, 256))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step()
        with session.recording():
            step()
    graph = session.graph
    old_gradients = [graph.storages[s].nbytes for s in graph.freed_after(-1)]
    assert sorted(old_gradients) == [256 * 4, 256 * 256 * 4]


def test_inference_mode_takes_the_gpus_attention():
    def program():
        q = torch.ones(1, 4, 16, 64, dtype=torch.bfloat16, device="cuda")
        with torch.inference_mode():
            nn.functional.scaled_dot_product_attention(q, q, q)

    with open_session("fake") as session, session.recording():
        program()
    assert [n.label for n in session.graph if "attention" in n.label] == [
        "_scaled_dot_product_cudnn_attention"
    ]


def test_streams_of_the_stand_in():
    def program():
        x = torch.ones(2, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x + 1
        x * 2

    with open_session("fake") as session, session.recording():
        program()
    streams = [node.stream for node in session.graph]
    assert streams[0] == streams[-1] == 0 != streams[1]


def test_a_call_from_a_thread_with_no_frames_below_it():
    """As the autograd engine's own threads make them on a GPU."""
    import _thread
    import time

    x = torch.ones(2)
    with open_session("cpu") as session, session.recording():
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        _thread.start_new_thread(mode.__torch_dispatch__, (torch.ops.aten.add.Tensor, (), (x, 1), {}))
        end = time.monotonic() + 10
        while not len(session.graph) and time.monotonic() < end:
            time.sleep(0.01)
    (node,) = session.graph
    assert node.source.line is None


def test_arguments_that_compare_equal_or_to_nothing_are_kept_apart():
    def program():
        x = torch.ones(2)
        for value in (0.0, -0.0, float("nan"), float("nan"), 0, False, 0j):
            torch.full_like(x, value, dtype=torch.complex64)

    graph = traced(program)
    values = [repr(node.args[1]) for node in graph if node.label == "full_like"]
    assert values == ["0.0", "-0.0", "nan", "nan", "0", "False", "0j"]


def test_a_part_compiled_while_recording_makes_the_calls_of_the_plain_one():
    def part(x):
        return x.relu() + 1

    def calls(mode, device, function):
        with open_session(mode, device=device) as session:
            x = session.place(torch.ones(2))
            with session.recording():
                function(x)
        return [node.op for node in session.graph]

    for mode, device in (("cpu", "cpu"), ("fake", "cuda")):
        torch.compiler.reset()
        assert calls(mode, device, torch.compile(part, backend="eager")) == calls(mode, device, part)


def test_library_code_called_from_two_lines_shows_both():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))

    def program():
        x = torch.ones(1, 2)
        model(x)
        model(x)

    graph = traced(program)
    lines = [node.source.line.line for node in graph if node.label == "addmm"]
    assert lines == [lines[0], lines[0], lines[0] + 1, lines[0] + 1]
    assert [f.function for f in graph[len(graph) - 1].source.frames] == [
        "Linear.forward",
        "Sequential.forward",
        "Sequential.forward",
        "test_library_code_called_from_two_lines_shows_both.<locals>.program",
    ]


def test_a_module_that_failed_leaves_the_lines_of_the_next_alone():
    good, bad = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(3, 3))

    def program():
        x = torch.ones(1, 2)
        with pytest.raises(RuntimeError):
            bad(x)
        good(x)
        x + 1

    graph = traced(program)
    addmm = next(node for node in graph if node.label == "addmm")
    last = graph[len(graph) - 1]
    assert last.module is None
    assert last.source.line.line == addmm.source.line.line + 1


class Wrapped(torch.Tensor):
    """A tensor of another, whose own handler unpacks it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrapped = [a.inner if isinstance(a, cls) else a for a in args]
        return cls(func(*unwrapped, **(kwargs or {})))


def test_a_call_on_a_tensor_subclass_is_recorded_once():
    def calls(mode, device):
        with open_session(mode, device=device) as session:
            x = Wrapped(session.place(torch.ones(2)))
            with session.recording():
                y = x + 1
        assert type(y) is Wrapped
        return [node.op for node in session.graph]

    assert calls("fake", "cuda") == calls("cpu", "cpu") == ["aten.add.Tensor"]


def test_calls_are_counted_as_they_are_recorded():
    def program(x):
        with torch.inference_mode():
            nn.functional.linear(x, x)
        x + 1

    for mode, device in (("cpu", "cpu"), ("fake", "cuda")):
        numbers = []

        def around(number, numbers=numbers):
            numbers.append(number)
            return contextlib.nullcontext()

        with open_session(mode, device=device) as session:
            x = session.place(torch.ones(2, 2))
            with session.recording():
                program(x)
            with session.counting(around):
                program(x)
        assert numbers == list(range(len(session.graph)))


def test_what_an_earlier_trace_left_alive_takes_no_memory() -> None:
    with optrace.trace(mode="fake"):
        kept = torch.ones(1 << 20, device="cuda")
    with optrace.trace(mode="fake") as t:
        mine = torch.ones(256, device="cuda")
        with optrace.step():
            mine.add_(1)
    assert kept.numel() == 1 << 20
    assert [s.nbytes for s in t.graph.storages if s.device != "cpu"] == [1024]


def test_what_a_call_frees_of_its_operands_is_gone_after_it() -> None:
    """cuDNN's weights are packed into one buffer, which takes their place: the parts are gone once they were read."""
    with open_session("fake") as session, session.recording():
        nn.GRU(4, 8).cuda()(torch.ones(3, 2, 4, device="cuda"))
    (packs,) = (call for call in session.graph if "flatten_weight" in call.op)
    assert packs.freed == tuple(tensor.storage for tensor in packs.inputs)
    assert report(session.graph, pricing()).totals["launches"].complete
