"""Fused attention: launches by backend, and FLOPs of public reports with their recomputed answers."""

import pytest

from optrace.cost.passes import passes_of
from optrace.cost.rules import work_of
from tests.cost.calls import T

HALF = "bfloat16"
CUDNN = "aten._scaled_dot_product_cudnn_attention"
EFFICIENT = "aten._scaled_dot_product_efficient_attention"
FLASH = "aten._scaled_dot_product_flash_attention"


def half(*shape):
    return T(*shape, dtype=HALF)


@pytest.mark.parametrize(
    ("query", "key", "dropout", "kernels", "memsets"),
    [
        # Hopper's kernel draws its tiles from a counter: one memset.
        (half(4, 12, 256, 64), half(4, 12, 256, 64), 0.0, 1, 1),
        # Seed and offset are unpacked for dropout.
        (half(4, 12, 256, 64), half(4, 12, 256, 64), 0.1, 2, 1),
        # Decoding: 12 heads leave 132 SMs idle, so keys are split and reduced; 32 x 12 = 384 do not.
        (half(1, 12, 1, 64), half(1, 12, 513, 64), 0.0, 2, 0),
        (half(32, 12, 1, 64), half(32, 12, 513, 64), 0.0, 1, 0),
    ],
)
def test_cudnn(maker, target, query, key, dropout, kernels, memsets):
    work = work_of(
        maker(f"{CUDNN}.default", query, key, key, None, True, dropout, out=half(*query.shape)), target
    )
    assert (work.kernels, work.memsets) == (kernels, memsets)


@pytest.mark.parametrize(("key_heads", "kernels"), [(12, 3), (4, 3 + 2)])
def test_cudnn_backward_sums_shared_key_heads(maker, target, key_heads, kernels):
    q, k = half(4, 12, 256, 64), half(4, key_heads, 256, 64)
    seed = T(dtype="int64")
    node = maker(
        f"{CUDNN}_backward.default",
        half(4, 12, 256, 64), q, k, k, half(4, 12, 256, 64), T(4, 12, 256, 1), seed, seed, None, None, None,
        256, 256, 0.0, False,
        out=(half(4, 12, 256, 64), half(4, key_heads, 256, 64), half(4, key_heads, 256, 64)),
    )  # fmt: skip
    work = work_of(node, target)
    assert (work.kernels, work.memsets) == (kernels, 1)
    # The query gradient in float32; with shared heads, gradients of keys and values for each of 12 heads.
    size = 4 * 12 * 256 * 64
    assert work.scratch == ((size * 4,) if key_heads == 12 else (size * 4, size * 2, size * 2))


def test_flash_splits_the_keys_of_few_queries(maker, target):
    # 8 heads x 1 block of queries on 2 x 132 slots; 4096 / 256 = 16 blocks of keys to share out.
    few, many = half(1, 8, 1, 64), half(8, 32, 512, 64)
    keys = half(1, 8, 4096, 64)
    assert work_of(maker(f"{FLASH}.default", few, keys, keys, out=half(1, 8, 1, 64)), target).kernels == 2
    assert work_of(maker(f"{FLASH}.default", many, many, many, out=half(8, 32, 512, 64)), target).kernels == 1


@pytest.mark.parametrize(
    ("query", "kernels"),
    [
        # Product with the gradient, sum, transposing copy, kernel; 64 keys are one block.
        (T(2, 8, 64, 64), 4),
        # Two blocks of keys: the workspace is zeroed (kEnableSplitKeys in kernel_backward.h; so it is on an H200).
        (T(2, 8, 128, 64), 4 + 1),
        # One head: nothing to transpose.
        (T(2, 1, 128, 64), 3 + 1),
        # 128 keys are two blocks of 64, shared out: the workspace is zeroed.
        (half(2, 8, 128, 64), 1 + 1),
        # 256 sequences of at most two blocks of keys are enough to do.
        (half(32, 8, 128, 64), 1),
    ],
)
def test_memory_efficient_backward(maker, target, query, kernels):
    like = [T(*query.shape, dtype=query.dtype) for _ in range(3)]
    lse, seed = T(*query.shape[:3]), T(dtype="int64", device="cpu")
    node = maker(
        f"{EFFICIENT}_backward.default",
        query, query, query, query, None, query, lse, seed, seed, 0.0, [True, True, True, False],
        out=(*like, None),
    )  # fmt: skip
    assert work_of(node, target).kernels == kernels


def test_the_query_gradient_is_gathered_in_tiles_that_have_locks(maker, target):
    """On an H200 193 blocks of 2,048 bytes zeroed the workspace of 2 x 6 sequences of 128 queries: two tiles each."""
    query, seed = T(2, 6, 128, 64), T(dtype="int64", device="cpu")
    node = maker(
        f"{EFFICIENT}_backward.default",
        query, query, query, query, None, query, T(2, 6, 128), seed, seed, 0.0, [True, True, True, False],
        out=(*[T(2, 6, 128, 64) for _ in range(3)], None),
    )  # fmt: skip
    product, gathered = work_of(node, target).scratch
    assert product == 4 * 2 * 6 * 128 * 64
    assert gathered == 12 * 2 * (4 * 64 * 64 + 16)
    assert 192 * 2048 < gathered <= 193 * 2048


class TestFlops:
    """``matmul_flops``: 2 x multiply-adds of both products; a causal mask halves the square."""

    def test_no_mask(self, maker, target):
        q = T(2, 5, 9, 4)
        work = work_of(maker(f"{EFFICIENT}.default", q, q, q, None, False, out=T(2, 5, 9, 4)), target)
        assert work.matmul_flops == 2 * (2 * 5) * (9 * 9) * (4 + 4) == 12_960
        assert work.flops == 12_960 + 5 * (2 * 5) * (9 * 9)

    def test_forward_and_backward(self, maker, target):
        q = half(64, 16, 1024, 64)
        forward = work_of(maker(f"{FLASH}.default", q, q, q, out=half(64, 16, 1024, 64)), target)
        backward = work_of(
            maker(
                f"{FLASH}_backward.default",
                q, q, q, q, q, T(64, 16, 1024), None, None, 1024, 1024, 0.0, False, T(), T(),
                out=(half(64, 16, 1024, 64), half(64, 16, 1024, 64), half(64, 16, 1024, 64)),
            ),
            target,
        )  # fmt: skip
        assert forward.matmul_flops == 2 * (64 * 16) * 1024 * 1024 * (64 + 64) == 274_877_906_944
        assert backward.matmul_flops * 2 == forward.matmul_flops * 5 == 2 * 687_194_767_360

    def test_grouped_queries_count_by_query_heads(self, maker, target):
        q, k = half(1, 32, 2048, 128), half(1, 8, 2048, 128)
        work = work_of(maker(f"{CUDNN}.default", q, k, k, None, False, out=half(1, 32, 2048, 128)), target)
        assert work.matmul_flops == 2 * 32 * 2048 * 2048 * (128 + 128) == 68_719_476_736

    def test_latent_attention_forward(self, maker, target):
        """Keys of 192, values of 128, causal: half of the square, as papers count. What is executed keeps the whole
        diagonal."""
        q, v = half(1, 128, 4096, 192), half(1, 128, 4096, 128)
        work = work_of(maker(f"{FLASH}.default", q, q, v, 0.0, True, out=half(1, 128, 4096, 128)), target)
        assert work.matmul_flops == 2 * 128 * (4096 * 4096 // 2) * (192 + 128)
        assert work.flops == (2 * (192 + 128) + 5) * 128 * (4096 * 4097 // 2)

    def test_length_before_heads(self, maker, target):
        q = T(2, 1024, 16, 64, dtype="float16")
        node = maker(
            "aten._flash_attention_forward.default", q, q, q, None, None, 1024, 1024, 0.0, False, False,
            out=T(2, 1024, 16, 64, dtype="float16"),
        )  # fmt: skip
        assert work_of(node, target).matmul_flops == 2 * (2 * 16) * 1024**2 * (64 + 64) == 8_589_934_592

    def test_packed_sequences_count_as_long_as_the_longest(self, maker, target):
        """Lengths 128 and 64 need 41,943,040; their values are not known, so both count 128: 67,108,864."""
        q, ends = half(192, 8, 64), T(3, dtype="int32")
        node = maker(
            "aten._flash_attention_forward.default", q, q, q, ends, ends, 128, 128, 0.0, False, False,
            out=half(192, 8, 64),
        )  # fmt: skip
        assert work_of(node, target).matmul_flops == 2 * (2 * 8) * 128 * 128 * (64 + 64) == 67_108_864


def _encoder_attention(maker, *, need_weights):
    x = T(1, 580, 512)
    return maker(
        "aten._native_multi_head_attention.default",
        x, x, x, 512, 4, T(1536, 512), T(1536), T(512, 512), T(512), None, need_weights,
        out=(T(1, 580, 512), T(1, 4, 580, 580) if need_weights else T(0)),
    )  # fmt: skip


def test_encoder_attention(maker, target):
    """``matmul_flops`` 2 x 952,647,680: projections 580 x 512 x 1536 and 580 x 512 x 512, scores and values
    580 x 580 x 512 each. Product, fused attention, product."""
    work = work_of(_encoder_attention(maker, need_weights=False), target)
    assert work.matmul_flops == 2 * (580 * 512 * 1536 + 2 * 580 * 580 * 512 + 580 * 512 * 512)
    assert work.matmul_flops == 2 * 952_647_680
    assert (work.kernels, work.memsets) == (1 + 1 + 1, 0)


def test_encoder_attention_in_steps_where_its_weights_are_wanted(maker, target):
    # Bias and heads apart, product, softmax, product, heads together, mean over heads.
    assert work_of(_encoder_attention(maker, need_weights=True), target).kernels == 2 + 6


def _encoder_layer(maker, data, *, gelu=False, norm_first=False):
    v, weights = T(512, dtype=data.dtype), [(1536, 512), (512, 512), (2048, 512), (512, 2048)]
    qkv, projection, wide, narrow = (T(*shape, dtype=data.dtype) for shape in weights)
    hidden = T(2048, dtype=data.dtype)
    return maker(
        "aten._transformer_encoder_layer_fwd.default",
        data, 512, 4, qkv, T(1536, dtype=data.dtype), projection, v, gelu, norm_first, 1e-5, v, v, v, v,
        wide, hidden, narrow, v,
        out=T(*data.shape, dtype=data.dtype),
    )  # fmt: skip


def test_encoder_layer(maker, target):
    """Attention as above, two linear layers 512 -> 2048 -> 512, two additions, two layer norms."""
    work = work_of(_encoder_layer(maker, T(1, 580, 512)), target)
    assert work.matmul_flops == 2 * 952_647_680 + 2 * 2 * 580 * 512 * 2048
    assert (work.kernels, work.memsets) == (3 + 2 + 2 + 2, 0)


def test_an_encoder_layer_has_a_gelu_of_its_own_in_float32(maker, target):
    """As on an H200: cuBLASLt has that epilogue in half precision, whose attention is cuDNN's, behind a memset."""
    plain = work_of(_encoder_layer(maker, T(1, 580, 512)), target)
    assert work_of(_encoder_layer(maker, T(1, 580, 512), gelu=True), target).kernels == plain.kernels + 1
    work = work_of(_encoder_layer(maker, half(1, 580, 512), gelu=True), target)
    assert (work.kernels, work.memsets) == (3 + 2 + 2 + 2, 1)


def test_an_encoder_layer_copies_what_does_not_lie_contiguous_for_its_first_norm(maker, target):
    data = T(1, 580, 512, stride=(580 * 512, 1, 580))
    assert (
        work_of(_encoder_layer(maker, data, norm_first=True), target).kernels
        == work_of(_encoder_layer(maker, T(1, 580, 512), norm_first=True), target).kernels + 1
    )


def test_an_encoder_layer_holds_what_its_widest_moment_needs(maker, target):
    """Besides the result: the hidden layer, four times the data's width, the residual, and its norm where that is first
    (transformer.cpp): so a stack of twelve on an H200 added 43 MB of 44."""
    each = 4 * 580 * 512
    assert sum(work_of(_encoder_layer(maker, T(1, 580, 512)), target).scratch) == (4 + 1) * each
    assert (
        sum(work_of(_encoder_layer(maker, T(1, 580, 512), norm_first=True), target).scratch)
        == (4 + 1 + 1) * each
    )


@pytest.mark.parametrize(
    ("batch", "value_dim", "dtype", "spilled"),
    [
        # 2 x 6 x 3 CTAs of 64 queries, 128 threads each, 344 bytes a thread; no more than 3 on each of 132 SMs at once.
        (2, 64, "float32", 2 * 6 * 3 * 128 * 344),
        (32, 64, "float32", 3 * 132 * 128 * 344),
        # The kernel for larger values spills nothing, the one for any size 216 bytes, of 32 queries a CTA.
        (2, 128, "float32", 0),
        (2, 256, "float32", 2 * 6 * 6 * 128 * 216),
        (2, 64, "bfloat16", 0),
    ],
)
def test_cutlass_spills_registers(maker, target, batch, value_dim, dtype, spilled):
    q, v = T(batch, 6, 192, 64, dtype=dtype), T(batch, 6, 192, value_dim, dtype=dtype)
    seed = T(dtype="int64")
    node = maker(f"{EFFICIENT}.default", q, q, v, None, False, out=(v, T(batch, 6, 0), seed, seed))
    work = work_of(node, target)
    assert (work.spilled, work.temporaries, work.allocated) == (spilled, (spilled,) if spilled else (), ())
    (only,) = passes_of(work)
    assert (0 in only.writes) == bool(spilled)
