"""What fuses, what must not, and what the fused program costs, on programs small enough to work out by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from optrace.cost.profiles import pricing
from optrace.diagnosis.fusible import ReductionShape, split_factor
from optrace.diagnosis.fusion import Fusion, fuse
from optrace.report import Report
from optrace.report import report as price
from optrace.tracing import open_session


def report_of(
    step: Callable[..., object], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Report:
    """``step`` recorded on the stand-in GPU; inputs of these shapes are there before it."""
    with open_session("fake", assume="zero") as session:
        inputs = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        with session.recording():
            result = step(*inputs)
        del result
    return price(session.graph, pricing("h200"))


def fused_ops(report: Report) -> list[list[str]]:
    graph = report.graph
    return [[graph.facts(call).label for call in region.calls] for region in report.cures.regions]


# -- the toy block -------------------------------------------------------------------------------------


def toy(copies: int) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(copies):
                x = x + F.dropout(F.gelu(x @ w + b), 0.1)
            return x

    return step


def toy_report(rows: int, width: int, dtype: torch.dtype, copies: int = 1) -> Report:
    return report_of(toy(copies), (rows, width), (width, width), (width,), dtype=dtype)


@pytest.fixture(scope="module")
def big() -> Report:
    return toy_report(32768, 4096, torch.bfloat16)


@pytest.fixture(scope="module")
def small() -> Report:
    return toy_report(8, 64, torch.float32, copies=16)


ACTIVATION = 32768 * 4096 * 2


def test_toy_block_four_ops_become_one_kernel(big: Report) -> None:
    """Eager: bias add 2, gelu 2, dropout 2 and a mask of half an activation, residual add 3. Fused: the product
    and the residual in, the result out."""
    (region,) = big.cures.regions
    ops = [big.graph.facts(call).label for call in region.calls]
    assert ops == ["add", "gelu", "native_dropout", "add"]
    assert (region.launches_before, region.launches_after) == (4, 1)
    bias = 4096 * 2
    assert region.bytes_before == (2 + 2 + 2.5 + 3) * ACTIVATION + bias
    assert region.bytes_after == 3 * ACTIVATION + bias


def test_toy_block_launches(big: Report) -> None:
    """A matmul and four ops; the matmul, one kernel and one for the seeds. cuBLAS clears 4 bytes before a matmul."""
    eager, _, fused, both = big.cures.rows
    memsets = big.totals["memsets"].value
    assert eager.launches == 5 + memsets
    assert fused.launches == both.launches == 3 + memsets


def test_toy_block_fused_needs_less_memory(big: Report) -> None:
    """The result is written over the product, the last of it read there."""
    eager, graph, fused, _ = big.cures.rows
    assert graph.peak_bytes == eager.peak_bytes
    assert fused.peak_bytes < eager.peak_bytes - ACTIVATION


def test_big_toy_block_gains_nothing_from_a_graph(big: Report) -> None:
    assert not big.cures.cuda_graph.worth_it
    assert big.cures.cuda_graph.speed_up < 1.03


def test_small_toy_blocks_in_a_graph_take_about_their_device_time(small: Report) -> None:
    eager, graph, _, both = small.cures.rows
    assert eager.wall_us > 300
    assert eager.bottleneck == "launch"
    assert graph.worth_it
    # The profile's constant, and its share a launch: 5 kernels a copy.
    assert graph.wall_us == pytest.approx(eager.device_us + 42 + 0.59 * 80)
    # Compiled code checks its guards before each replay: 30 us, and 4 for each of input, weight and residual.
    assert both.wall_us == pytest.approx(both.device_us + 30 + 4 * 3 + 42 + 0.59 * (16 * 2 + 1))
    assert both.launches == 16 * 2 + 1


def test_toy_block_moves_nine_and_a_half_activations_in_eager_and_three_fused(big: Report) -> None:
    """The product's own three tensors left out."""
    works = [cost.work for cost in big.priced.costs if cost.work.kind != "matmul"]
    assert sum(work.kernels or 0 for work in works) == 4
    assert sum(work.tensor_bytes for work in works) / ACTIVATION == pytest.approx(9.5, abs=0.01)
    steps = [step for step in big.cures.fusion.steps if step.region]
    moved = sum(access.nbytes for step in steps for access in (*step.reads, *step.writes))
    assert (len(steps), moved / ACTIVATION) == (1, pytest.approx(3, abs=0.01))


def test_toy_blocks_as_measured_on_an_h200(big: Report, small: Report) -> None:
    """Microseconds of a step with torch 2.11. Big: eager 2,356, a graph 2,371, compiled 2,210 (device 2,430 and
    2,018). Small, 16 copies: eager 1,835 with 116 on the device, a graph 226, compiled 772."""
    eager, graph, fused, _ = big.cures.rows
    assert graph.wall_us == pytest.approx(2371, rel=0.05)
    assert abs(eager.wall_us - graph.wall_us) < 0.05 * eager.wall_us
    assert eager.device_us == pytest.approx(2430, rel=0.1)
    assert fused.device_us == pytest.approx(2018, rel=0.15)
    assert (graph.worth_it, fused.worth_it) == (2371 < 0.95 * 2356, 2210 < 0.95 * 2356) == (False, True)
    eager, graph, fused, _ = small.cures.rows
    assert eager.device_us == pytest.approx(116, rel=0.1)
    assert graph.wall_us == pytest.approx(226, rel=0.1)
    assert eager.wall_us > 5 * graph.wall_us > 5 * eager.device_us
    assert graph.wall_us < fused.wall_us < eager.wall_us
    assert (graph.worth_it, fused.worth_it) == (True, True)


def test_a_loss_reads_one_element_a_target() -> None:
    """As Inductor's scheduler plans it: maximum and sum of each row in one kernel, then the mean over 2,048 rows. Of the
    logits the second takes a sector of 32 bytes a row; twice the logits are never stored."""

    def step(logits: torch.Tensor) -> torch.Tensor:
        labels = torch.zeros(2048, dtype=torch.int64, device="cuda")
        return F.cross_entropy(logits * 2, labels)

    rows, loss = report_of(step, (2048, 8000)).cures.fusion.steps
    assert sum(access.nbytes for access in rows.reads) == 2048 * 8000 * 4
    assert sum(access.nbytes for access in rows.writes) == 2048 * 4
    assert sum(access.nbytes for access in loss.reads) < 2048 * (32 + 2 * 4 + 8) + 1
    assert sum(access.nbytes for access in loss.writes) <= 8


def test_picking_from_an_expression_computes_what_is_picked() -> None:
    """4 of 8,000 elements a row, a sector each."""

    def step(x: torch.Tensor) -> torch.Tensor:
        picked = torch.zeros(2048, 4, dtype=torch.int64, device="cuda")
        return (x * 2).exp().gather(1, picked) + 1

    steps = report_of(step, (2048, 8000)).cures.fusion.steps
    picks = steps[-1]
    assert [len(picks.calls) >= 4, picks.region] == [True, True]
    assert sum(access.nbytes for access in picks.reads) <= 2048 * 4 * (32 + 8)


def test_what_only_a_function_of_the_program_holds_is_no_output() -> None:
    """``logits`` is there until the function returns, its double only in the kernel that reads it."""

    def step(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled.sum(-1)

    (region,) = report_of(step, (4096, 4096)).cures.fusion.steps
    assert sum(access.nbytes for access in region.writes) == 4096 * 4


def test_long_rows_of_a_softmax_are_arithmetic_short_ones_are_bytes() -> None:
    """A block keeps a row of 1,024; in a loop over a longer one each element may scale the sum: about 2 ps."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1)

    short, long = (report_of(step, shape).cures.fused for shape in ((65536, 1024), (2048, 32768)))
    assert long.costs[0].device_us is not None
    assert long.costs[0].device_us == pytest.approx(65536 * 1024 * 2.1e-6, rel=0.05)
    assert short.costs[0].device_us == pytest.approx(65536 * 1024 * 4 / 4.2e6, rel=0.05)


def test_what_is_added_up_over_many_products_is_read_at_once() -> None:
    """The gradient of a layer's weight that 40 time steps share, transposed as autograd gives it. As Inductor's scheduler
    plans it, each step's is stored until one kernel reads all 40; eager adds them one by one, from the L2."""

    def step(*tensors: torch.Tensor) -> torch.Tensor:
        sums = (tensors[0].t() @ tensors[0]).t()
        for tensor in tensors[1:]:
            sums = sums + (tensor.t() @ tensor).t()
        return sums

    *products, last = report_of(step, *[(32, 256)] * 40).cures.fusion.steps
    assert [product.region for product in products] == [False] * 40
    assert len(last.reads) == 40
    assert sum(access.nbytes for access in last.writes) == 256 * 256 * 4


# -- what does not fuse --------------------------------------------------------------------------------


def test_a_library_reads_what_generated_code_wrote_in_place() -> None:
    """Attention written out: the softmax overwrites the scores, which the second product reads from there, in each of the
    passes that its rule names."""

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2), -1) @ v

    report = report_of(step, *[(64, 1024, 64)] * 3)
    softmax, product = report.cures.fused.costs[-2:]
    scores = 64 * 1024 * 1024 * 4
    assert product.work.passes
    written = {access.tensor.storage for access in softmax.work.writes}
    for one in product.work.passes:
        assert written & {access.tensor.storage for access in one.reads if not isinstance(access, int)}
    assert product.hbm_read is not None
    assert product.hbm_read > 0.5 * scores


def test_neighbours_in_the_graph_fuse_whatever_stands_between_them() -> None:
    """Two chains issued in turns are two regions, not four ops that do not match."""

    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = a * 2, b * 2
        x, y = x + 1, y + 1
        return x.relu(), y.relu()

    report = report_of(step, (64, 64), (128, 128))
    assert fused_ops(report) == [["mul", "add", "relu"]] * 2


def test_views_between_are_folded() -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        return (a * 2).view(-1).add(1).view(64, 64).relu()

    assert fused_ops(report_of(step, (64, 64))) == [["mul", "add", "relu"]]


def test_a_sync_keeps_its_sides_apart() -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        b = (a * 2).relu()
        torch.cuda.synchronize()
        b.sum().item()
        return (b + 1).relu()

    ops = fused_ops(report_of(step, (64, 64)))
    assert ["mul", "relu", "sum"] in ops
    assert ["add", "relu"] in ops


def test_no_cycle_through_a_matmul() -> None:
    """The last add needs the product, which needs the relu: one kernel for both would wait for itself."""

    def step(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        r = (a * 2).relu()
        return ((r @ w) + r).relu()

    assert fused_ops(report_of(step, (64, 64), (64, 64))) == [["mul", "relu"], ["add", "relu"]]


def test_a_write_in_part_waits_for_the_readers_of_the_old_bytes() -> None:
    def step(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        before = cache * 2
        cache[:4].copy_(new)
        return before + cache

    report = report_of(step, (64, 64), (4, 64))
    fusion = fuse(report.priced)
    places = {call: place for place, step in enumerate(fusion.steps) for call in step.calls}
    ops = {report.graph.facts(call).label: call for call in range(len(report.graph))}
    assert places[ops["mul"]] < places[ops["copy_"]] < places[ops["add"]]


def test_a_custom_op_is_a_call_of_its_own() -> None:
    @torch.library.custom_op("cures_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def step(a: torch.Tensor) -> torch.Tensor:
        return twice((a + 1).relu()).add(1).relu()

    assert fused_ops(report_of(step, (64, 64))) == [["add", "relu"], ["add", "relu"]]


def test_other_sizes_do_not_fuse() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (a + 1).relu(), (b + 1).relu()

    report = report_of(step, (64, 64), (64, 32))
    assert len(fused_ops(report)) == 2


def test_each_step_of_a_stencil_is_a_kernel() -> None:
    """A step reads five elements around each; its result, read five times, is stored and waited for."""

    def step(grid: torch.Tensor) -> torch.Tensor:
        u = grid
        for _ in range(3):
            around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
            u = u + 0.1 * (around - 4 * u)
        return u

    report = report_of(step, (64, 64))
    assert [region.launches_after for region in report.cures.regions] == [1, 1, 1]
    assert len(report.cures.fusion.steps) == 3


def test_a_row_of_a_cache_is_written_by_generated_code() -> None:
    def step(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        place = torch.full((1,), 5, device="cuda")
        cache.index_copy_(0, place, (new * 2).relu())
        return cache.sum(-1)

    report = report_of(step, (1024, 64), (1, 64))
    assert all(step.region for step in report.cures.fusion.steps)
    assert ["mul", "relu", "index_copy_"] in [ops[-3:] for ops in fused_ops(report)]


# -- reductions ----------------------------------------------------------------------------------------


def test_a_softmax_written_out_is_one_kernel() -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        e = (a - a.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    assert fused_ops(report_of(step, (4096, 1024))) == [["amax", "sub", "exp", "sum", "div"]]


def test_layer_norm_takes_in_the_residual_before_it_and_the_op_behind_it() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return F.layer_norm(a + b, (1024,)).relu()

    (region,) = report_of(step, (4096, 1024), (4096, 1024)).cures.regions
    assert region.launches_after == 1
    assert region.bytes_after == 3 * 4096 * 1024 * 4


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        # 2 x 132 rows and more fill the GPU.
        (ReductionShape(264, 10**6, True), 1),
        (ReductionShape(1, 8192, True), 1),
        # 2^20 elements are under 32 a thread of 132 x 2,048: 32 each, 256 threads.
        (ReductionShape(1, 2**20, True), 2**20 // (32 * 256)),
        # Columns: 4 at a time.
        (ReductionShape(32, 2**15, False), 2**15 // (4 * 32)),
        (ReductionShape(64 * 132, 2**15, False), 1),
    ],
)
def test_reductions_with_few_rows_are_split(shape: ReductionShape, parts: int) -> None:
    assert split_factor(shape, 132) == parts


# -- libraries -----------------------------------------------------------------------------------------


def test_a_bias_leaves_the_product_for_a_pointwise_reader() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    fusion = report_of(step, (64, 64), (64, 64), (64,)).cures.fusion
    kinds = [(step.region, step.work.kind) for step in fusion.steps]
    assert kinds == [(False, "matmul"), (True, "elementwise")]
    # The kernel reads the product and the bias and writes the result.
    assert sum(access.nbytes for access in fusion.steps[1].reads) == 64 * 64 * 4 + 64 * 4


def test_foreach_ops_over_the_same_lists_are_one_kernel() -> None:
    def step(*tensors: torch.Tensor) -> None:
        torch._foreach_mul_(tensors, 0.9)
        torch._foreach_add_(tensors, 1.0)
        torch._foreach_sqrt_(tensors)

    (region,) = report_of(step, *[(256, 256)] * 20).cures.regions
    assert region.launches_after == 1
    # Each tensor read once and written once.
    assert region.bytes_after == 2 * 20 * 256 * 256 * 4


def with_epilogues(report: Report) -> list[list[str]]:
    graph = report.graph
    steps = replace(report, epilogues=True).cures.fusion.steps
    return [[graph.facts(call).label for call in step.calls] for step in steps]


def test_an_epilogue_and_a_prologue_go_into_the_product_where_that_is_asked_for() -> None:
    """Four tensors of 64 x 64 floats stay: the two operands, the residual and the result."""

    def step(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return ((x * 2) @ w).relu() + r

    report = report_of(step, (64, 64), (64, 64), (64, 64))
    assert len(report.cures.fusion.steps) == 3
    assert with_epilogues(report) == [["mul", "mm", "relu", "add"]]
    (region,) = replace(report, epilogues=True).cures.regions
    assert (region.launches_before, region.launches_after) == (report.cures.eager.launches, 1)
    assert region.bytes_after == 4 * 64 * 64 * 4


def test_what_others_need_stays_out_of_the_product() -> None:
    """A result that a second kernel reads, a reduction, and a neighbour that waits for another product."""

    def reduction(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).softmax(-1)

    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y.relu() @ y

    def detour(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return (y @ w) + x @ y

    assert with_epilogues(report_of(reduction, (64, 64), (64, 64))) == [["mm"], ["_softmax"]]
    assert ["mm", "relu"] not in with_epilogues(report_of(twice, (64, 64), (64, 64)))
    assert sorted(map(len, with_epilogues(report_of(detour, (64, 64), (64, 64))))) == [1, 1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_products_with_epilogues_keep_an_order(seed: int) -> None:
    choose = random.Random(seed)

    def step(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = [a, a * 2]
        for _ in range(40):
            x, y = choose.choice(values[-6:]), choose.choice(values[-8:])
            values.append((x @ w, x @ y, x + y, x.relu(), x.softmax(-1))[choose.randrange(5)])
        return sum(values[-3:], a)

    report = report_of(step, (64, 64), (64, 64))
    assert_runs_in_order(report, fuse(report.priced, epilogues=True))


# -- order and speed -----------------------------------------------------------------------------------


def assert_runs_in_order(report: Report, fusion: Fusion) -> None:
    """Nothing is read before the step that writes it, where some step does."""
    first: dict[int, int] = {}
    for place, step in enumerate(fusion.steps):
        for access in step.writes:
            first.setdefault(access.tensor.storage, place)
    given: set[int] = set()
    made: set[int] = set()
    for call in range(len(report.graph)):
        given.update({report.graph.tensor_storage(t) for t in report.graph.operands(call)} - made)
        made.update({report.graph.tensor_storage(t) for t in report.graph.outputs(call)} - given)
    for place, step in enumerate(fusion.steps):
        for access in step.reads:
            storage = access.tensor.storage
            if storage >= 0 and storage not in given:
                assert first[storage] <= place


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_keep_an_order(seed: int) -> None:
    choose = random.Random(seed)

    def step(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = [a, a * 2]
        for _ in range(60):
            x, y = choose.choice(values[-8:]), choose.choice(values[-12:])
            kind = choose.randrange(8)
            if kind == 0:
                values.append(x @ w)
            elif kind == 1:
                values.append(x.softmax(-1))
            elif kind == 2:
                values.append(x - x.mean(-1, keepdim=True))
            elif kind == 3:
                values.append(x.t().contiguous())
            elif kind == 4:
                values.append(x.clone().mul_(3))
            else:
                values.append(x + y)
        return sum(values[-3:], a)

    report = report_of(step, (128, 128), (128, 128))
    assert_runs_in_order(report, fuse(report.priced))


def test_time_grows_with_the_number_of_calls() -> None:
    def chain(length: int) -> Report:
        def step(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(length):
                a = ((a @ w) + a).relu()
            return a

        return report_of(step, (32, 32), (32, 32))

    def seconds(report: Report) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            fuse(report.priced)
            best = min(best, time.process_time() - start)
        return best

    short, long = chain(60), chain(480)
    assert seconds(long) < 8 * 3 * seconds(short)
