"""What each op makes the GPU do: every expected number is arithmetic on the page."""

import math

import pytest
import torch

from optrace.cost.rules import RULES, rule, work_of
from optrace.cost.rules.foreach import multi_tensor_launches
from tests.cost.calls import T, gone

x = T(4, 24)
y = T(4, 24)
cpu = T(4, 24, device="cpu")

# (call, out, kernels, memcpys, bytes read, bytes written, flops, matmul flops)
ROWS = [
    # One launch that reads its inputs and writes its output; `a - b` costs what `a + b` does.
    (("aten.add.Tensor", x, y), T(4, 24), 1, 0, 2 * 4 * 24 * 4, 4 * 24 * 4, 4 * 24, 0),
    (("aten.sub.Tensor", T(2, 3), T(2, 3)), T(2, 3), 1, 0, 2 * 2 * 3 * 4, 2 * 3 * 4, 2 * 3, 0),
    # x + x reads x once.
    (("aten.add.Tensor", x, x), T(4, 24), 1, 0, 4 * 24 * 4, 4 * 24 * 4, 4 * 24, 0),
    # A broadcast bias is read once, not once a row.
    (("aten.add.Tensor", x, T(24)), T(4, 24), 1, 0, (4 * 24 + 24) * 4, 4 * 24 * 4, 4 * 24, 0),
    (("aten.add.Tensor", x, T(4, 24, stride=(0, 1))), T(4, 24), 1, 0, (4 * 24 + 24) * 4, 4 * 24 * 4, 4 * 24, 0),
    # In place: read and written.
    (("aten.mul_.Tensor", x, y), x, 1, 0, 2 * 4 * 24 * 4, 4 * 24 * 4, 4 * 24, 0),
    # A fill and a copy do not read their destination.
    (("aten.zero_.default", x), x, 1, 0, 0, 4 * 24 * 4, 0, 0),
    (("aten.copy_.default", T(4, 24, dtype="bfloat16"), x), None, 1, 0, 4 * 24 * 4, 4 * 24 * 2, 0, 0),
    (("aten.copy_.default", x, x), x, 0, 0, 0, 0, 0, 0),
    (("aten.clone.default", x), T(4, 24), 0, 1, 4 * 24 * 4, 4 * 24 * 4, 0, 0),
    # Views and factories without values are free.
    (("aten.view.default", x, [96]), T(96, alias=x), 0, 0, 0, 0, 0, 0),
    (("aten._unsafe_view.default", x, [96]), T(96, alias=x), 0, 0, 0, 0, 0, 0),
    (("aten.empty.memory_format", [4, 24]), T(4, 24), 0, 0, 0, 0, 0, 0),
    (("aten.zeros.default", [4, 24]), T(4, 24), 1, 0, 0, 4 * 24 * 4, 0, 0),
    # Nothing to write, nothing to launch.
    (("aten.add.Tensor", T(0, 24), T(0, 24)), T(0, 24), 0, 0, 0, 0, 0, 0),
    # On the CPU the GPU does nothing.
    (("aten.add.Tensor", cpu, cpu), T(4, 24, device="cpu"), 0, 0, 0, 0, 4 * 24, 0),
    # Across the bus: the device's side only.
    (("aten._to_copy.default", cpu), T(4, 24), 0, 1, 0, 4 * 24 * 4, 0, 0),
    (("aten._to_copy.default", x), T(4, 24, device="cpu"), 0, 1, 4 * 24 * 4, 0, 0, 0),
    # dropout writes a mask of one byte an element.
    (
        ("aten.native_dropout.default", x, 0.1, True),
        (T(4, 24), T(4, 24, dtype="bool")),
        1, 0, 4 * 24 * 4, 4 * 24 * (4 + 1), 3 * 4 * 24, 0,
    ),
    # 2 x multiply-adds.
    (
        ("aten.mm.default", T(8, 4), T(4, 2)),
        T(8, 2),
        1, 0, (8 * 4 + 4 * 2) * 4, 8 * 2 * 4, 2 * 8 * 4 * 2, 2 * 8 * 4 * 2,
    ),
    (
        ("aten.addmm.default", T(2), T(8, 4), T(4, 2)),
        T(8, 2),
        1, 0, (2 + 8 * 4 + 4 * 2) * 4, 8 * 2 * 4, 2 * 8 * 4 * 2 + 8 * 2, 2 * 8 * 4 * 2,
    ),
    # A gather reads the rows it takes, 1000 x (1 - exp(-5 / 1000)) of them different ones, and does no arithmetic.
    (
        ("aten.embedding.default", T(1000, 16), T(5, dtype="int64")),
        T(5, 16),
        1, 0, round(1000 * 16 * 4 * (1 - math.exp(-5 / 1000))) + 5 * 8, 5 * 16 * 4, 0, 0,
    ),
    (("aten.sum.default", x), T(), 1, 0, 4 * 24 * 4, 4, 4 * 24, 0),
    (("aten._softmax.default", x, -1, False), T(4, 24), 1, 0, 4 * 24 * 4, 4 * 24 * 4, 5 * 4 * 24, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "out", "kernels", "memcpys", "read", "written", "flops", "matmul_flops"),
    ROWS,
    ids=[f"{i}-{row[0][0]}" for i, row in enumerate(ROWS)],
)
def test_work(maker, target, call, out, kernels, memcpys, read, written, flops, matmul_flops):
    work = work_of(maker(*call, out=out), target)
    assert (work.kernels, work.memcpys) == (kernels, memcpys)
    assert sum(access.nbytes for access in work.reads) == read
    assert sum(access.nbytes for access in work.writes) == written
    assert (work.flops, work.matmul_flops) == (flops, matmul_flops)


@pytest.mark.parametrize(
    ("name", "alpha", "flops"),
    [("aten.add.out", (1,), 8 * 8), ("aten.mm.out", (), 2 * 8 * 8 * 8)],
)
def test_an_out_of_no_size_is_priced_as_it_comes_out(maker, target, name, alpha, flops):
    given = T(0)
    work = work_of(maker(name, T(8, 8), T(8, 8), *alpha, given, out=T(8, 8, alias=given)), target)
    assert work.kernels == 1
    assert sum(access.nbytes for access in work.reads) == 2 * 8 * 8 * 4
    assert sum(access.nbytes for access in work.writes) == 8 * 8 * 4
    assert work.flops == flops


def test_attention_flops_and_gqa_bytes(maker, target):
    q, k, v = T(1, 32, 2048, 128), T(1, 8, 2048, 128), T(1, 8, 2048, 128)
    node = maker(
        "aten._scaled_dot_product_efficient_attention.default", q, k, v, None, False, out=T(1, 32, 2048, 128)
    )
    work = work_of(node, target)
    assert work.matmul_flops == 68_719_476_736  # 4 x heads x length^2 x dim
    bytes_of = {access.tensor.id: access.nbytes for access in work.reads}
    assert bytes_of[node.inputs[1].id] * 4 == bytes_of[node.inputs[0].id]


def test_causal_attention_counts_the_lower_triangle(maker, target):
    q = T(2, 3, 5, 4)
    node = maker("aten._scaled_dot_product_flash_attention.default", q, q, q, 0.0, True, out=T(2, 3, 5, 4))
    work = work_of(node, target)
    assert work.matmul_flops == 2 * 3 * 5 * 5 * (4 + 4)  # half of 5 x 5, as papers count
    assert work.flops == 2 * 3 * (5 * 6 // 2) * (2 * (4 + 4) + 5)  # 15 pairs are computed


def test_flash_attention_reads_batch_length_heads_dim(maker, target):
    q = T(2, 1024, 16, 64, dtype="float16")
    node = maker(
        "aten._flash_attention_forward.default", q, q, q, None, None, 1024, 1024, 0.0, False, False,
        out=T(2, 1024, 16, 64, dtype="float16"),
    )  # fmt: skip
    assert work_of(node, target).matmul_flops == 8_589_934_592


def test_reading_a_value_makes_the_host_wait(maker, target):
    work = work_of(maker("aten._local_scalar_dense.default", T(), out=1.0), target)
    assert (work.kernels, work.memcpys, work.host_wait) == (0, 1, True)
    assert not work_of(maker("aten._local_scalar_dense.default", T(device="cpu"), out=1.0), target).host_wait


def test_copies_across_the_bus_wait_unless_told_not_to(maker, target):
    waits = maker("aten._to_copy.default", T(4, device="cpu"), out=T(4))
    goes_on = maker("aten._to_copy.default", T(4, device="cpu"), out=T(4), non_blocking=True)
    assert work_of(waits, target).host_wait
    assert not work_of(goes_on, target).host_wait


def test_an_op_of_somebody_else_has_no_price(maker, target):
    from dataclasses import replace

    node = maker("aten.add.Tensor", x, y, out=T(4, 24))
    facts = replace(node.facts, name="mylib.fused.default", tags=())
    work = work_of(replace(node, op="mylib.fused.default", facts=facts), target)
    assert (work.kernels, work.launches, work.flops, work.source) == (None, None, None, "unknown")


def test_arithmetic_without_a_formula_is_unknown_not_zero(maker, target):
    work = work_of(maker("aten._linalg_eigvals.default", T(4, 4), out=T(4, dtype="complex64")), target)
    assert (work.kernels, work.flops, work.source) == (None, None, "unknown")


@pytest.mark.parametrize(
    "name",
    [
        "_cslt_sparse_mm", "_dyn_quant_matmul_4bit", "_sparse_semi_structured_mm", "_slow_conv2d_forward", "_conv_depthwise2d",
        "fake_quantize_per_tensor_affine_cachemask", "ctc_loss.Tensor",
        "renorm", "segment_reduce", "trace_backward", "vander", "nanquantile", "lu_unpack", "linalg_matrix_exp", "matrix_exp",
    ],
)  # fmt: skip
def test_an_op_without_a_rule_that_is_not_pointwise_does_unknown_arithmetic(maker, target, name):
    packet, _, chosen = name.partition(".")
    overload = f"aten.{packet}.{chosen or getattr(torch.ops.aten, packet).overloads()[0]}"
    work = work_of(maker(overload, x, y, out=T(4, 24)), target)
    assert work.flops is None
    assert work.matmul_flops is None


def test_in_place_ops_are_pointwise_as_their_siblings_are(maker, target):
    """torch tags ``abs`` and not ``abs_``."""
    work = work_of(maker("aten.abs_.default", x, out=x), target)
    assert (work.kernels, work.flops, work.kind) == (1, 4 * 24, "elementwise")


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (("aten.allclose.default", x, y), True),
        (("aten._linalg_check_errors.default", T(4, dtype="int32"), "linalg.inv"), True),
        (("aten._assert_async.default", T(dtype="bool")), False),
    ],
)
def test_what_the_host_is_told(maker, target, monkeypatch, call, waits):
    """Without a rule it is not known what that takes: no output is no free call."""
    node = maker(*call, out=None)
    work = work_of(node, target)
    assert (work.host_wait, work.kernels > 0, work.source) == (waits, True, "rule")
    monkeypatch.delitem(RULES, node.facts.packet)
    assert (work_of(node, target).kernels, work_of(node, target).source) == (None, "unknown")


@pytest.mark.parametrize(
    ("sizes", "depth", "launches"),
    [
        ([1], 1, 1),
        ([0, 0], 1, 0),
        ([10] * 110, 1, 1),  # a launch takes 110 tensors of one list
        ([10] * 111, 1, 2),
        ([10] * 36, 4, 1),  # and 36 of four lists
        ([10] * 73, 4, 3),
        ([65536 * 320], 1, 1),  # 320 chunks of 65,536 elements
        ([65536 * 320 + 1], 1, 2),
        ([65536 * 200, 65536 * 200], 2, 2),
    ],
)
def test_multi_tensor_launches(sizes, depth, launches):
    assert multi_tensor_launches(sizes, depth) == launches


def test_registering_twice_is_an_error():
    with pytest.raises(ValueError, match=r"aten\.mm has a rule already: multiplies"):
        rule("aten.mm")(lambda node, target: None)


@pytest.mark.parametrize("name", sorted(set(RULES) - gone()))
def test_every_rule_is_for_a_real_op(name):
    namespace, packet, *overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace), packet)
    if overload:
        assert overload[0] in found.overloads()
