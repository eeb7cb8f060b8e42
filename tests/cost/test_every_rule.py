"""Every op that has a rule stands in a row of a hand-computed table: here those that the other tables leave out.

A row: the ops (their first overload, unless one is named), the call's arguments, its output, and what it launches and
computes: kernels, memcpys, memsets, FLOPs.
"""

import pytest
import torch

from optrace.cost.rules import RULES
from tests.cost import (
    test_rules,
    test_rules_copies,
    test_rules_gather,
    test_rules_lists,
    test_rules_normalization,
    test_rules_passes,
    test_rules_reductions,
)
from tests.cost.calls import T, gone
from tests.cost.rows import check

X, Y, Z = (T(4, 24) for _ in range(3))
E = 4 * 24


def ints(*shape):
    return T(*shape, dtype="int64")


def bools(*shape):
    return T(*shape, dtype="bool")


def halves(*shape):
    return T(*shape, dtype="float16")


def cpu(*shape):
    return T(*shape, device="cpu")


#: An LSTM layer of 4 units over 5 steps of 2 samples with 3 features.
LAYER, STATE = (cpu(5, 2, 3), cpu(16, 3), cpu(16, 4), cpu(16), cpu(16)), (cpu(1, 2, 4), cpu(1, 2, 4))

#: 2 x 4 heads of 64 queries and keys in 32 dimensions.
Q, K, V, OF, G = (T(2, 4, 64, 32) for _ in range(5))
HQ, HK, HV, HO, HG = (halves(2, 4, 64, 32) for _ in range(5))
LQ, LK, LV, LO, LG = (halves(2, 64, 4, 32) for _ in range(5))
LSE = T(2, 4, 64)
SEED = ints()
PAIRS = 2 * 4 * 64 * 64
#: Two products and 5 for softmax a pair; backward five products and 8.
ATTENDS, ATTENDS_BACKWARD = (2 * 2 * 32 + 5) * PAIRS, (2 * 5 * 32 + 8) * PAIRS

IMAGE, SMALL, VOLUME, LINE = T(2, 3, 8, 8), T(2, 3, 4, 4), T(2, 3, 8, 8, 8), T(2, 3, 8)
PIXELS, WINDOWS = 2 * 3 * 8 * 8, 2 * 3 * 4 * 4
FEW = T(2, 3, 4, 4, 4)

OUT, OUTS, ROW = T(4, 16), T(2, 4, 16), T(4)
POINTWISE_FOREACH = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
PAIRED_FOREACH = ["add", "div", "maximum", "minimum", "mul", "pow", "sub", "clamp_max", "clamp_min"]

# (ops, args, out, kernels, memcpys, memsets, flops)
EVERY = [
    # ---- attention
    (("_scaled_dot_product_flash_attention_for_cpu",),
     tuple(cpu(2, 4, 64, 32) for _ in range(3)), (cpu(2, 4, 64, 32),), 0, 0, 0, ATTENDS),
    (("_scaled_dot_product_flash_attention_for_cpu_backward",),
     (*(cpu(2, 4, 64, 32) for _ in range(5)), cpu(2, 4, 64), 0.0, False),
     tuple(cpu(2, 4, 64, 32) for _ in range(3)), 0, 0, 0, ATTENDS_BACKWARD),
    (("_efficient_attention_forward",), (LQ, LK, LV, None, None, None, None, None, 0.0, 0), (LO, LSE), 1, 0, 0, ATTENDS),
    # Dot of output and gradient, the kernel, the query gradient's conversion; Hopper's cuDNN kernel zeroes a counter.
    (("_scaled_dot_product_cudnn_attention_backward",),
     (HG, HQ, HK, HV, HO, LSE, SEED, SEED, None, None, None, 64, 64, 0.0, False), (T(2), T(2), T(2)), 3, 0, 1, ATTENDS_BACKWARD),
    (("_scaled_dot_product_flash_attention_backward",),
     (HG, HQ, HK, HV, HO, LSE, None, None, 64, 64, 0.0, False, SEED, SEED), (T(2), T(2), T(2)), 3, 0, 0, ATTENDS_BACKWARD),
    (("_flash_attention_backward",),
     (LG, LQ, LK, LV, LO, LSE, None, None, 64, 64, 0.0, False, SEED, SEED), (T(2), T(2), T(2)), 3, 0, 0, ATTENDS_BACKWARD),
    # float32: output times gradient, its sum, transposed by a copy, the kernel.
    (("_scaled_dot_product_efficient_attention_backward",),
     (G, Q, K, V, None, OF, LSE, SEED, SEED, 0.0, [True, True, True, False]), (T(2), T(2), T(2), None),
     4, 0, 0, ATTENDS_BACKWARD),
    # Half: one block of 64 keys is one share, so nothing is zeroed.
    (("_efficient_attention_backward",),
     (LG, LQ, LK, LV, None, LO, None, None, 64, 64, LSE, 0.0, SEED, SEED, 0, False), (T(2), T(2), T(2), None),
     1, 0, 0, ATTENDS_BACKWARD),
    # ---- copies, fills and factories
    (("empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_", "set_", "record_stream",
      "is_pinned", "_pin_memory", "is_same_size", "is_coalesced", "dense_dim", "sparse_dim", "_assert_tensor_metadata", "sym_size.int", "sym_numel", "sym_stride.int", "sym_storage_offset", "detach_", "squeeze_", "t_",
      "transpose_", "unsqueeze_"), (X,), X, 0, 0, 0, 0),
    (("new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "arange", "linspace", "logspace",
      "scalar_tensor", "tril_indices", "triu_indices"), (), T(4, 24), 1, 0, 0, 0),
    (("empty_like", "_efficientzerotensor"), (X,), T(4, 24), 0, 0, 0, 0),
    (("zeros_like",), (X,), T(4, 24), 1, 0, 0, 0),
    (("item", "_local_scalar_dense"), (T(),), None, 0, 1, 0, 0),
    (("fill.Scalar",), (X, 0.0), T(4, 24), 1, 0, 0, 0),
    (("fill_.Scalar",), (X, 0.0), X, 1, 0, 0, 0),
    # A random number an element.
    (("rand", "randint", "randn"), (), T(4, 24), 1, 0, 0, E),
    (("bernoulli", "rand_like", "randint_like", "randn_like"), (X,), T(4, 24), 1, 0, 0, E),
    (("bernoulli_.float", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "cauchy_"),
     (X,), X, 1, 0, 0, E),
    # The same bytes in the same order are a memcpy.
    (("lift_fresh_copy",), (X,), T(4, 24), 0, 1, 0, 0),
    # Zeros, then the diagonal of 4.
    (("diagonal_backward",), (T(4), [4, 24], 0, 0, 1), T(4, 24), 2, 0, 0, 0),
    # A clone by memcpy, then one kernel into the part.
    (("alias_copy", "detach_copy"), (X,), T(4, 24), 0, 1, 0, 0),
    (("view_copy", "unsqueeze_copy"), (X, [1]), T(96), 0, 1, 0, 0),
    (("squeeze_copy",), (T(4, 1, 24),), T(4, 24), 0, 1, 0, 0),
    # What is shown in another order, or in part, is copied by a kernel.
    (("t_copy", "permute_copy", "transpose_copy.int"), (X,), T(24, 4), 1, 0, 0, 0),
    (("expand_copy",), (T(24), [4, 24]), T(4, 24), 1, 0, 0, 0),
    (("narrow_copy",), (X, 0, 1, 2), T(2, 24), 1, 0, 0, 0),
    (("as_strided_copy", "unfold_copy"), (X,), T(10, 3), 1, 0, 0, 0),
    (("diagonal_copy", "select_copy.int", "slice_copy.Tensor"), (X,), T(4), 1, 0, 0, 0),
    (("rot90",), (X, 1, [0, 1]), T(24, 4), 1, 0, 0, 0),
    (("select_scatter",), (X, T(24), 0, 1), T(4, 24), 1, 1, 0, 0),
    (("diagonal_scatter",), (X, T(4)), T(4, 24), 1, 1, 0, 0),
    (("as_strided_scatter",), (X, T(3, 5), [3, 5], [24, 1]), T(4, 24), 1, 1, 0, 0),
    (("triu", "repeat"), (X,), T(4, 24), 1, 0, 0, 0),
    (("tril_", "triu_"), (X,), X, 1, 0, 0, 0),
    (("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), (IMAGE, 2), T(2, 3, 8, 8), 1, 0, 0, 0),
    (("reflection_pad1d", "replication_pad1d"), (LINE, [1, 1]), T(2, 3, 10), 1, 0, 0, 0),
    (("replication_pad2d",), (IMAGE, [1, 1, 1, 1]), T(2, 3, 10, 10), 1, 0, 0, 0),
    (("reflection_pad3d", "replication_pad3d"), (VOLUME, [1] * 6), T(2, 3, 10, 10, 10), 1, 0, 0, 0),
    # Zeros, then an addition an element of the gradient.
    (("reflection_pad1d_backward", "replication_pad1d_backward"), (T(2, 3, 10), LINE, [1, 1]), T(2, 3, 8), 2, 0, 0, 2 * 3 * 10),
    (("replication_pad2d_backward",), (T(2, 3, 10, 10), IMAGE, [1] * 4), T(2, 3, 8, 8), 2, 0, 0, 2 * 3 * 100),
    (("reflection_pad3d_backward", "replication_pad3d_backward"), (T(2, 3, 10, 10, 10), VOLUME, [1] * 6), T(2, 3, 8, 8, 8),
     2, 0, 0, 2 * 3 * 1000),
    # ---- pointwise
    (("_masked_scale",), (X, T(4, 24, dtype="uint8"), 1.5), T(4, 24), 1, 0, 0, 2 * E),
    (("silu_backward", "gelu_backward", "tanh_backward", "sigmoid_backward", "hardswish_backward", "hardsigmoid_backward",
      "logit_backward", "mish_backward"), (X, Y), T(4, 24), 1, 0, 0, E),
    (("_prelu_kernel",), (X, T(24)), T(4, 24), 1, 0, 0, E),
    (("rrelu_with_noise_backward",), (X, Y, Z, 0.1, 0.3, True, False), T(4, 24), 1, 0, 0, E),
    (("rsub.Tensor",), (X, Y), T(4, 24), 1, 0, 0, E),
    # Each component of 32 cross products: two multiplications, a subtraction.
    (("linalg_cross",), (T(32, 3), T(32, 3)), T(32, 3), 1, 0, 0, 3 * 32 * 3),
    # neg, mul, exp; mul, mul; add; div, mul.
    (("soft_margin_loss_backward",), (T(), X, Y, 1), T(4, 24), 8, 0, 0, 8 * E),
    (("threshold_backward", "softshrink_backward", "hardshrink_backward"), (X, Y, 0.5), T(4, 24), 1, 0, 0, E),
    (("hardtanh_backward",), (X, Y, -1.0, 1.0), T(4, 24), 1, 0, 0, E),
    (("leaky_relu_backward",), (X, Y, 0.1, False), T(4, 24), 1, 0, 0, E),
    (("softplus_backward",), (X, Y, 1.0, 20.0), T(4, 24), 1, 0, 0, E),
    (("elu_backward",), (X, 1.0, 1.0, 1.0, False, Y), T(4, 24), 1, 0, 0, E),
    (("log_sigmoid_backward",), (X, Y, T(0)), T(4, 24), 1, 0, 0, E),
    (("mse_loss_backward",), (X, Y, Z, 0), T(4, 24), 1, 0, 0, E),
    (("smooth_l1_loss_backward", "huber_loss_backward"), (X, Y, Z, 0, 1.0), T(4, 24), 1, 0, 0, E),
    (("hardtanh", "leaky_relu", "elu", "celu"), (X,), T(4, 24), 1, 0, 0, E),
    (("hardswish_", "hardtanh_", "leaky_relu_", "elu_", "celu_"), (X,), X, 1, 0, 0, E),
    (("floor_divide",), (X, Y), T(4, 24), 1, 0, 0, E),
    (("floor_divide_.Tensor",), (X, Y), X, 1, 0, 0, E),
    (("masked_fill_.Scalar",), (X, bools(4, 24), 0.0), X, 1, 0, 0, E),
    (("where.self",), (bools(4, 24), X, Y), T(4, 24), 1, 0, 0, E),
    (("clamp",), (X, 0.0, 1.0), T(4, 24), 1, 0, 0, E),
    (("lerp.Scalar",), (X, Y, 0.5), T(4, 24), 1, 0, 0, E),
    (("log_sigmoid_forward",), (X,), (T(4, 24), T(0)), 1, 0, 0, E),
    # Half of the input's size comes out, one FLOP each.
    (("glu",), (X, -1), T(4, 12), 1, 0, 0, E // 2),
    (("glu_backward",), (T(4, 12), X, -1), T(4, 24), 1, 0, 0, E),
    (("complex", "polar"), (X, Y), T(4, 24, dtype="complex64"), 1, 0, 0, E),
    (("view_as_complex_copy",), (T(4, 24, 2),), T(4, 24, dtype="complex64"), 1, 0, 0, E),
    # Two gradients, an element each.
    (("_prelu_kernel_backward",), (X, Y, Z), (T(4, 24), T(4, 24)), 1, 0, 0, 2 * E),
    # ---- lists: one launch for two tensors of 96 elements
    (tuple(f"_foreach_{name}" for name in POINTWISE_FOREACH), ([X, Y],), [T(4, 24), T(4, 24)], 1, 0, 0, 2 * E),
    (tuple(f"_foreach_{name}_" for name in POINTWISE_FOREACH), ([X, Y],), None, 1, 0, 0, 2 * E),
    (tuple(f"_foreach_{name}.List" for name in PAIRED_FOREACH), ([X, Y], [T(4, 24), T(4, 24)]), [T(4, 24), T(4, 24)],
     1, 0, 0, 2 * E),
    (tuple(f"_foreach_{name}_.List" for name in PAIRED_FOREACH), ([X, Y], [T(4, 24), T(4, 24)]), None, 1, 0, 0, 2 * E),
    (("_foreach_addcdiv.Scalar", "_foreach_addcmul.Scalar"), ([X], [Y], [Z]), [T(4, 24)], 1, 0, 0, E),
    (("_foreach_addcdiv_.Scalar", "_foreach_addcmul_.Scalar"), ([X], [Y], [Z]), None, 1, 0, 0, E),
    (("_foreach_lerp.Scalar",), ([X], [Y], 0.5), [T(4, 24)], 1, 0, 0, E),
    (("_foreach_lerp_.Scalar",), ([X], [Y], 0.5), None, 1, 0, 0, E),
    (("_foreach_copy_",), ([X, Y], [T(4, 24), T(4, 24)]), None, 1, 0, 0, 0),
    # Partial maxima cleared, made, finished; a FLOP an element.
    (("_foreach_max",), ([X, Y],), [T(), T()], 3, 0, 0, 2 * E),
    # Parameters, gradients and states in one table: 14 FLOPs an element of Adam, 7 of Adagrad.
    (("_fused_adamw_", "_fused_adam_"), ([X], [Y], [Z], [T(4, 24)], [], [T()]), None, 1, 0, 0, 14 * E),
    (("_fused_adagrad_",), ([X], [Y], [Z], [T()]), None, 1, 0, 0, 7 * E),
    # ---- gathers and scatters
    (("take",), (X, ints(5)), T(5), 1, 0, 0, 0),
    (("_unsafe_index",), (X, [ints(2)]), T(2, 24), 1, 0, 0, 0),
    # A scan of the mask (2), a check of the size, the pass.
    (("masked_scatter_",), (X, bools(4, 24), Y), X, 2 + 1 + 1, 0, 0, E),
    # Cloned by memcpy; then one kernel, a FLOP an element of the source where it adds.
    (("index_add",), (X, 0, ints(2), T(2, 24)), T(4, 24), 1, 1, 0, 2 * 24),
    (("index_copy",), (X, 0, ints(2), T(2, 24)), T(4, 24), 1, 1, 0, 0),
    (("index_copy_",), (X, 0, ints(2), T(2, 24)), X, 1, 0, 0, 0),
    (("index_fill.int_Scalar",), (X, 0, ints(2), 1.0), T(4, 24), 1, 1, 0, 0),
    (("index_reduce",), (X, 0, ints(2), T(2, 24), "amax"), T(4, 24), 1, 1, 0, 2 * 24),
    (("index_reduce_",), (X, 0, ints(2), T(2, 24), "amax"), X, 1, 0, 0, 2 * 24),
    (("put_",), (X, ints(5), T(5)), X, 1, 0, 0, 0),
    (("scatter_reduce.two",), (X, 0, ints(2, 24), T(2, 24), "amax"), T(4, 24), 1, 1, 0, 2 * 24),
    (("_index_put_impl_",), (X, [ints(2)], T(2, 24)), X, 1, 0, 0, 0),
    (("_unsafe_index_put",), (X, [ints(2)], T(2, 24)), T(4, 24), 1, 1, 0, 0),
    # Ten rows of 16 added up.
    (("_embedding_bag_forward_only",), (T(100, 16), ints(10), ints(3)), (T(3, 16), ints(10), ints(3), ints(3)),
     1, 0, 0, 10 * 16),
    # ---- reductions: 96 elements are one block's
    (("nansum", "prod"), (X,), T(), 1, 0, 0, E),
    (("norm.Scalar",), (X, 2), T(), 1, 0, 0, 2 * E),
    (("min", "argmin", "all"), (X,), T(), 1, 0, 0, E),
    (("amin",), (X, [1]), T(4), 1, 0, 0, E),
    (("aminmax",), (X,), (T(), T()), 1, 0, 0, E),
    (("std", "var_mean", "std_mean"), (X,), T(), 1, 0, 0, 4 * E),
    # A radix selection a row.
    (("nanmedian.dim",), (X, 1), (T(4), ints(4)), 1, 0, 0, E),
    # isclose in 13 kernels, all, one value to the host; equal and four for NaN; casts of integers; equality alone.
    (("allclose",), (X, Y), True, 13 + 1, 1, 0, 14 * E),
    (("allclose",), (X, Y, 1e-5, 1e-8, True), True, 13 + 4 + 1, 1, 0, 18 * E),
    (("allclose",), (ints(4, 24), ints(4, 24)), True, 13 + 1 + 1, 1, 0, 15 * E),
    (("allclose",), (X, T(24), 0.0, 0.0), True, 1 + 1, 1, 0, 2 * E),
    (("_linalg_check_errors",), (T(4, dtype="int32"), "linalg.inv"), None, 1, 1, 0, 4),
    (("_assert_async",), (bools(),), None, 1, 0, 0, 0),
    # Losses, then their mean: 3 FLOPs an element and 1 to add up.
    (("smooth_l1_loss", "huber_loss"), (X, Y, 1), T(), 2, 0, 0, 4 * E),
    (("nll_loss2d_backward",), (T(), T(2, 3, 8, 8), ints(2, 8, 8), None, 1, -100, T()), T(2, 3, 8, 8), 2, 0, 0, 2 * 8 * 8),
    # ---- products
    (("bmm",), (T(2, 4, 8), T(2, 8, 16)), T(2, 4, 16), 1, 0, 0, 2 * 2 * 4 * 8 * 16),
    # The activation is a kernel of its own where the bias is no vector; here it is in the epilogue. 24 rows of 32 x 32
    # tiles: k 8 is not split.
    (("_addmm_activation",), (T(1024), T(1024, 8), T(8, 1024)), T(1024, 1024), 1, 0, 0, 2 * 1024 * 1024 * 8 + 1024 * 1024),
    # The addend is copied into the output by memcpy; a product a batch is added. In place nothing is copied.
    (("addbmm",), (T(4, 16), T(2, 4, 8), T(2, 8, 16)), T(4, 16), 2, 1, 0, 2 * 2 * 4 * 8 * 16 + 4 * 16),
    (("addbmm_",), (OUT, T(2, 4, 8), T(2, 8, 16)), OUT, 2, 0, 0, 2 * 2 * 4 * 8 * 16 + 4 * 16),
    (("addmm_",), (OUT, T(4, 8), T(8, 16)), OUT, 1, 0, 0, 2 * 4 * 8 * 16 + 4 * 16),
    (("baddbmm_",), (OUTS, T(2, 4, 8), T(2, 8, 16)), OUTS, 1, 0, 0, 2 * 2 * 4 * 8 * 16 + 2 * 4 * 16),
    (("addmv_",), (ROW, T(4, 8), T(8)), ROW, 1, 0, 0, 2 * 4 * 8 + 4),
    (("addr_",), (X, T(4), T(24)), X, 1, 0, 0, 2 * E),
    # The addend is copied into the output: a memcpy where it has its shape, a kernel where it is repeated.
    (("baddbmm",), (T(2, 4, 16), T(2, 4, 8), T(2, 8, 16)), T(2, 4, 16), 1, 1, 0, 2 * 2 * 4 * 8 * 16 + 2 * 4 * 16),
    (("baddbmm",), (T(16), T(2, 4, 8), T(2, 8, 16)), T(2, 4, 16), 2, 0, 0, 2 * 2 * 4 * 8 * 16 + 2 * 4 * 16),
    (("mv",), (T(4, 8), T(8)), T(4), 1, 0, 0, 2 * 4 * 8),
    (("addmv",), (T(4), T(4, 8), T(8)), T(4), 1, 1, 0, 2 * 4 * 8 + 4),
    (("dot",), (T(96), T(96)), T(), 2, 0, 0, 2 * 96),
    (("_scaled_mm",), (T(32, 64, dtype="float8_e4m3fn"), T(64, 32, dtype="float8_e4m3fn", stride=(1, 64)), T(), T()),
     T(32, 32, dtype="bfloat16"), 1, 0, 0, 2 * 32 * 64 * 32),
    # 16 rows in two groups meet one matrix each: pointers are laid out by a kernel first.
    (("_grouped_mm",), (T(16, 8, dtype="bfloat16"), T(2, 8, 24, dtype="bfloat16"), T(2, dtype="int32")),
     T(16, 24, dtype="bfloat16"), 2, 0, 0, 2 * 16 * 8 * 24),
    (("_cdist_forward",), (T(40, 6), T(30, 6), 2.0, None), T(40, 30), 1, 0, 0, 3 * 40 * 30 * 6),
    (("_int_mm",), (T(32, 64, dtype="int8"), T(64, 32, dtype="int8")), T(32, 32, dtype="int32"), 1, 0, 0, 2 * 32 * 64 * 32),
    (("vdot",), (T(96), T(96)), T(), 2, 0, 0, 2 * 96),
    # Squares (2), sums (2), ones (2), times -2, two concatenations, the product, clamp and root.
    (("_euclidean_dist",), (T(40, 6), T(30, 6)), T(40, 30), 2 + 2 + 2 + 1 + 2 + 1 + 2, 0, 0,
     2 * 40 * 30 * 8 + 2 * (240 + 180) + 240 + 2 * 40 * 30),
    (("addr",), (X, T(4), T(24)), T(4, 24), 1, 0, 0, 2 * E),
    # ---- convolutions of other names are the same
    (("_convolution",), (T(1, 1, 4, 4), T(1, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True),
     T(1, 1, 2, 2), 1, 0, 0, 2 * 4 * 9),
    (("convolution_overrideable",), (T(1, 1, 4, 4), T(1, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
     T(1, 1, 2, 2), 1, 0, 0, 2 * 4 * 9),
    (("cudnn_convolution",), (T(1, 1, 4, 4), T(1, 1, 3, 3), [0, 0], [1, 1], [1, 1], 1, False, False, True),
     T(1, 1, 2, 2), 1, 0, 0, 2 * 4 * 9),
    # Weights alone: 1 x 1 over 16 pixels is a product an image and a sum over images.
    (("convolution_backward_overrideable",),
     (T(2, 8, 4, 4), T(2, 16, 4, 4), T(8, 16, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
     (None, T(8, 16, 1, 1), None), 2, 0, 0, 2 * 2 * 16 * 8 * 16),
    # ---- norms and softmax
    (("_log_softmax",), (X, -1, False), T(4, 24), 1, 0, 0, 5 * E),
    (("_fused_rms_norm",), (X, [24], T(24), 1e-6), (T(4, 24), T(4, 1)), 1, 0, 0, 7 * E),
    # The input's gradient and the weight's.
    (("_fused_rms_norm_backward",), (X, Y, [24], T(4, 1), T(24), [True, True]), (T(4, 24), T(24)), 2, 0, 0, 12 * E),
    # Training: sums a channel, the running statistics, the transformation. 7 FLOPs an element.
    (("_native_batch_norm_legit", ), (IMAGE, T(3), T(3), T(3), T(3), True, 0.1, 1e-5), (T(2, 3, 8, 8), T(3), T(3)),
     3, 0, 0, 7 * PIXELS),
    (("_batch_norm_with_update", "_batch_norm_with_update_functional"), (IMAGE, T(3), T(3), T(3), T(3), 0.1, 1e-5),
     (T(2, 3, 8, 8), T(3), T(3), T(0)), 3, 0, 0, 7 * PIXELS),
    # Inference: the mean by memcpy, the variance inverted, the transformation.
    (("_native_batch_norm_legit_no_training",), (IMAGE, T(3), T(3), T(3), T(3), 0.1, 1e-5), (T(2, 3, 8, 8), T(3), T(3)),
     2, 1, 0, 4 * PIXELS),
    (("_batch_norm_no_update",), (IMAGE, T(3), T(3), T(3), T(3), 0.1, 1e-5), (T(2, 3, 8, 8), T(3), T(3), T(0)),
     2, 1, 0, 4 * PIXELS),
    (("batch_norm_backward",),
     (T(2, 3, 8, 8), IMAGE, T(3), T(3), T(3), T(3), T(3), True, 1e-5, [True, True, True], T(0)),
     (T(2, 3, 8, 8), T(3), T(3)), 1, 0, 0, 12 * PIXELS),
    # ---- pooling and resampling: a FLOP an element of each window
    (("max_pool2d_with_indices",), (IMAGE, [2, 2]), (SMALL, ints(2, 3, 4, 4)), 1, 0, 0, 4 * WINDOWS),
    (("adaptive_max_pool2d",), (IMAGE, [4, 4]), (SMALL, ints(2, 3, 4, 4)), 1, 0, 0, 4 * WINDOWS),
    (("avg_pool1d",), (LINE, [2]), T(2, 3, 4), 1, 0, 0, 2 * 2 * 3 * 4),
    (("_adaptive_avg_pool3d",), (VOLUME, [4, 4, 4]), FEW, 1, 0, 0, 8 * 2 * 3 * 64),
    (("adaptive_max_pool3d",), (VOLUME, [4, 4, 4]), (FEW, ints(2, 3, 4, 4, 4)), 1, 0, 0, 8 * 2 * 3 * 64),
    (("max_pool3d_with_indices",), (VOLUME, [2, 2, 2]), (FEW, ints(2, 3, 4, 4, 4)), 1, 0, 0, 8 * 2 * 3 * 64),
    (("upsample_nearest1d_backward",), (T(2, 3, 8), [8], [2, 3, 4]), T(2, 3, 4), 1, 0, 0, 2 * 3 * 8),
    (("_upsample_nearest_exact1d_backward",), (LINE, [8], [2, 3, 4]), T(2, 3, 4), 1, 0, 0, 2 * 3 * 8),
    (("_upsample_nearest_exact3d_backward",), (VOLUME, [8] * 3, [2, 3, 4, 4, 4]), T(2, 3, 4, 4, 4), 1, 0, 0, 2 * 3 * 8**3),
    # Zeros, then each of the gradient's elements, or of the maxima, to its place.
    (("adaptive_max_pool3d_backward",), (FEW, VOLUME, ints(2, 3, 4, 4, 4)), T(2, 3, 8, 8, 8), 2, 0, 0, 2 * 3 * 64),
    (("max_unpool2d",), (SMALL, ints(2, 3, 4, 4), [8, 8]), T(2, 3, 8, 8), 2, 0, 0, 0),
    (("max_unpool3d",), (FEW, ints(2, 3, 4, 4, 4), [8] * 3, [2] * 3, [0] * 3), T(2, 3, 8, 8, 8), 2, 0, 0, 0),
    (("_upsample_nearest_exact2d_backward",), (IMAGE, [8, 8], [2, 3, 4, 4]), T(2, 3, 4, 4), 1, 0, 0, PIXELS),
    (("upsample_nearest3d_backward",), (VOLUME, [8, 8, 8], [2, 3, 4, 4, 4]), T(2, 3, 4, 4, 4), 1, 0, 0, 2 * 3 * 512),
    # Zeros, then an addition for each place that a gradient goes to.
    (("adaptive_max_pool2d_backward",), (T(2, 3, 4, 4), IMAGE, ints(2, 3, 4, 4)), T(2, 3, 8, 8), 2, 0, 0, WINDOWS),
    (("_adaptive_avg_pool2d_backward",), (T(2, 3, 4, 4), IMAGE), T(2, 3, 8, 8), 2, 0, 0, 4 * WINDOWS),
    (("_adaptive_avg_pool3d_backward",), (T(2, 3, 4, 4, 4), VOLUME), T(2, 3, 8, 8, 8), 2, 0, 0, 8 * 2 * 3 * 64),
    (("max_pool3d_with_indices_backward",),
     (T(2, 3, 4, 4, 4), VOLUME, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, ints(2, 3, 4, 4, 4)), T(2, 3, 8, 8, 8),
     2, 0, 0, 2 * 3 * 64),
    (("upsample_linear1d_backward",), (T(2, 3, 8), [8], [2, 3, 4], False), T(2, 3, 4), 2, 0, 0, 4 * 2 * 3 * 8),
    (("upsample_bicubic2d_backward", "_upsample_bicubic2d_aa_backward"), (IMAGE, [8, 8], [2, 3, 4, 4], False), T(2, 3, 4, 4),
     2, 0, 0, 40 * PIXELS),
    (("_upsample_bilinear2d_aa_backward",), (IMAGE, [8, 8], [2, 3, 4, 4], False), T(2, 3, 4, 4), 2, 0, 0, 8 * PIXELS),
    (("upsample_trilinear3d_backward",), (VOLUME, [8, 8, 8], [2, 3, 4, 4, 4], False), T(2, 3, 4, 4, 4), 2, 0, 0, 16 * 2 * 3 * 512),
    # One neighbour, 2, 4 (8 FLOPs), 8 or 16 of them.
    (("upsample_nearest1d", "_upsample_nearest_exact1d"), (T(2, 3, 4), [8]), T(2, 3, 8), 1, 0, 0, 2 * 3 * 8),
    (("upsample_nearest2d", "_upsample_nearest_exact2d"), (SMALL, [8, 8]), T(2, 3, 8, 8), 1, 0, 0, PIXELS),
    (("upsample_nearest3d", "_upsample_nearest_exact3d"), (FEW, [8, 8, 8]), T(2, 3, 8, 8, 8), 1, 0, 0, 2 * 3 * 512),
    (("upsample_linear1d",), (T(2, 3, 4), [8], False), T(2, 3, 8), 1, 0, 0, 4 * 2 * 3 * 8),
    (("_upsample_bilinear2d_aa",), (SMALL, [8, 8], False), T(2, 3, 8, 8), 1, 0, 0, 8 * PIXELS),
    (("upsample_bicubic2d", "_upsample_bicubic2d_aa"), (SMALL, [8, 8], False), T(2, 3, 8, 8), 1, 0, 0, 40 * PIXELS),
    (("upsample_trilinear3d",), (FEW, [8, 8, 8], False), T(2, 3, 8, 8, 8), 1, 0, 0, 16 * 2 * 3 * 512),
    (("grid_sampler_2d",), (SMALL, T(2, 8, 8, 2), 0, 0, False), T(2, 3, 8, 8), 1, 0, 0, 8 * PIXELS),
    (("grid_sampler_3d",), (FEW, T(2, 8, 8, 8, 3), 0, 0, False), T(2, 3, 8, 8, 8), 1, 0, 0, 16 * 2 * 3 * 512),
    # Zeros and one kernel for both gradients.
    (("grid_sampler_3d_backward",), (VOLUME, FEW, T(2, 8, 8, 8, 3), 0, 0, False, [True, True]),
     (T(2, 3, 4, 4, 4), T(2, 8, 8, 8, 3)), 2, 0, 0, 2 * 16 * 2 * 3 * 512),
    # ---- recurrent cells: 10 FLOPs an element written
    (("_thnn_fused_gru_cell",), (T(4, 72), T(4, 72), X), (T(4, 24), T(4, 120)), 1, 0, 0, 10 * (E + 4 * 120)),
    (("_thnn_fused_gru_cell_backward",), (X, T(4, 120), False), (T(4, 72), T(4, 72), T(4, 24)), 1, 0, 0, 10 * (2 * 4 * 72 + E)),
    # With biases, each of their gradients is a sum over the batch (_thnn_fused_gru_cell_backward in RNN.cu).
    (("_thnn_fused_gru_cell_backward",), (X, T(4, 120), True), (T(4, 72), T(4, 72), T(4, 24), T(72), T(72)),
     1 + 2, 0, 0, 10 * (2 * 4 * 72 + E) + 2 * 4 * 72),
    # On the CPU a layer launches nothing: 10 rows meet 16 x (3 + 4) weights, 4 units take 21 FLOPs a row; backward twice.
    (("mkldnn_rnn_layer",), (*LAYER, *STATE, False, [], 2, 4, 1, True, False, False, True), (cpu(5, 2, 4), *STATE, cpu(1)),
     0, 0, 0, 2 * 10 * 16 * 7 + 10 * 4 * 21),
    (("mkldnn_rnn_layer_backward",),
     (*LAYER, *STATE, cpu(5, 2, 4), *STATE, cpu(5, 2, 4), None, None, False, 2, 4, 1, True, True, False, [], False, cpu(1)),
     (cpu(5, 2, 3), cpu(16, 3), cpu(16, 4), cpu(16), cpu(16), *STATE), 0, 0, 0, 2 * (2 * 10 * 16 * 7 + 10 * 4 * 21)),
    # ---- sorts and scans: an addition an element, in one kernel along the row
    (("cumprod", "logcumsumexp"), (X, 1), T(4, 24), 1, 0, 0, E),
    (("cummin",), (X, 1), (T(4, 24), ints(4, 24)), 1, 0, 0, E),
    (("cumsum_", "cumprod_"), (X, 1), X, 1, 0, 0, E),
    (("_cummax_helper", "_cummin_helper"), (X, T(4, 24), ints(4, 24), 1), None, 1, 0, 0, E),
    (("bucketize.Tensor",), (X, T(10)), ints(4, 24), 1, 0, 0, E),
    # ---- libraries that choose by size or values: launches are not known, arithmetic by convention
    # 5 n log2(n) of 8 points, 4 rows.
    (("_fft_c2c",), (T(4, 8, dtype="complex64"), [1], 0, True), T(4, 8, dtype="complex64"), None, 0, 0, 4 * 5 * 8 * 3),
    (("_fft_r2c",), (T(4, 8), [1], 0, True), T(4, 5, dtype="complex64"), None, 0, 0, 4 * 5 * 8 * 3 // 2),
    (("_fft_c2r",), (T(4, 5, dtype="complex64"), [1], 0, 8), T(4, 8), None, 0, 0, 4 * 5 * 8 * 3 // 2),
    (("_linalg_det", "_linalg_slogdet"), (T(2, 6, 6),), (T(2), T(2, 6, 6), ints(2, 6)), None, 0, 0, 2 * 2 * 6**3 // 3),
    # LU and two triangles for 3 right sides.
    (("_linalg_solve_ex",), (T(2, 6, 6), T(2, 6, 3)), (T(2, 6, 3), T(2, 6, 6), ints(2, 6), ints(2)), None, 0, 0,
     2 * (2 * 6**3 // 3 + 2 * 6**2 * 3)),
    (("cholesky",), (T(2, 6, 6),), T(2, 6, 6), None, 0, 0, 2 * 6**3 // 3),
    (("linalg_cholesky_ex",), (T(2, 6, 6),), (T(2, 6, 6), ints(2)), None, 0, 0, 2 * 6**3 // 3),
    (("cholesky_inverse",), (T(2, 6, 6),), T(2, 6, 6), None, 0, 0, 2 * 2 * 6**3 // 3),
    # 2 n^2 (m - n / 3) of 9 rows and 6 columns.
    (("geqrf",), (T(9, 6),), (T(9, 6), T(6)), None, 0, 0, 2 * 36 * (9 - 2)),
    (("linalg_inv_ex",), (T(2, 6, 6),), (T(2, 6, 6), ints(2)), None, 0, 0, 2 * 2 * 6**3),
    (("linalg_lu",), (T(9, 6),), (T(9, 9), T(9, 6), T(6, 6)), None, 0, 0, 36 * (9 - 2)),
    (("linalg_lu_factor_ex",), (T(9, 6),), (T(9, 6), ints(6), ints()), None, 0, 0, 36 * (9 - 2)),
    # n^2 a triangle and right side.
    (("cholesky_solve",), (T(6, 3), T(6, 6)), T(6, 3), None, 0, 0, 2 * 36 * 3),
    (("linalg_lu_solve",), (T(6, 6), ints(6), T(6, 3)), T(6, 3), None, 0, 0, 2 * 36 * 3),
    (("linalg_solve_triangular",), (T(6, 6), T(6, 3)), T(6, 3), None, 0, 0, 36 * 3),
    (("triangular_solve",), (T(6, 3), T(6, 6)), (T(6, 3), T(6, 6)), None, 0, 0, 36 * 3),
    # 2 x rows x k x n, whatever form the weights have.
    (("_mixed_dtypes_linear", "_weight_int4pack_mm", "_weight_int8pack_mm", "mkldnn_linear"),
     (T(16, 64), T(64, 32)), T(16, 32), None, 0, 0, 2 * 16 * 64 * 32),
    # Three groups of weights: each column meets one.
    (("_scaled_grouped_mm",), (T(3, 16, 64), T(64, 96), T(3, 16), T(96), T(3, dtype="int32")), T(16, 96), None, 0, 0,
     2 * 16 * 64 * 96),
    (("_unsafe_masked_index", "affine_grid_generator", "renorm", "renorm_", "linalg_matrix_exp", "linalg_pinv"), (X,),
     T(4, 24), None, 0, 0, None),
    (("_unsafe_masked_index_put_accumulate",), (X, bools(4, 24), [ints(4)], Y), T(4, 24), None, 0, 0, None),
    # Iterations and steps that the values decide: nothing is known.
    (("_linalg_eigh", "_linalg_eigvals", "_linalg_svd", "linalg_eig", "linalg_ldl_factor_ex", "linalg_qr"), (T(6, 6),),
     (T(6), T(6, 6)), None, 0, 0, None),
    (("linalg_lstsq", "ormqr", "lu_unpack", "_trilinear", "_pdist_forward", "_pdist_backward", "_cdist_backward", "_ctc_loss",
      "_ctc_loss_backward", "_cudnn_ctc_loss"), (T(6, 6), T(6, 6)), T(6, 6), None, 0, 0, None),
    (("mode",), (X,), (T(4), ints(4)), None, 0, 0, None),
    (("masked_scatter_backward",), (X, bools(4, 24), [96]), T(96), None, 0, 0, None),
    (("unique_consecutive", "unique_dim", "_unique2"), (X,), (T(96), ints(0), ints(0)), None, 0, 0, None),
]  # fmt: skip

#: Priced in tests of their own, which say what they launch.
ELSEWHERE = {
    "test_attention.py": ("_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_flash_attention_forward",
                          "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
                          "_scaled_dot_product_flash_attention"),
    "test_convolution.py": ("convolution", "convolution_backward"),
    "test_cudnn_rnn.py": ("_cudnn_rnn", "_cudnn_rnn_backward"),
}  # fmt: skip


def overload(name):
    """``aten.packet.overload`` of a name that may lack the last: the default, else the first."""
    packet, _, chosen = name.partition(".")
    known = getattr(torch.ops.aten, packet).overloads()
    return f"aten.{packet}.{chosen or ('default' if 'default' in known else known[0])}"


@pytest.mark.parametrize(
    "row",
    [(name, *row[1:]) for row in EVERY for name in row[0] if f"aten.{name}" not in gone()],
    ids=lambda row: row[0],
)
def test_launches(row, maker, target):
    name, args, out, *expected = row
    check(((overload(name), *args), out, *expected), maker, target)


def test_every_rule_stands_in_a_table():
    tables = (
        test_rules, test_rules_copies, test_rules_gather, test_rules_lists, test_rules_normalization, test_rules_passes,
        test_rules_reductions,
    )  # fmt: skip
    priced = {row[0][0] for table in tables for row in table.ROWS}
    priced |= {overload(name) for row in EVERY for name in row[0] if f"aten.{name}" not in gone()}
    priced |= {overload(name) for names in ELSEWHERE.values() for name in names}
    packets = {name.rpartition(".")[0] for name in priced}
    assert sorted(set(RULES) - priced - packets - gone()) == []
