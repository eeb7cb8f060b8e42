"""Convolutions: what PyTorch and cuDNN launch for them, and the multiply-adds of each pass."""

import pytest

from optrace.cost.rules import work_of
from optrace.cost.rules.implicit_gemm import ConvPass, plan, plan_data_gradient, plan_weight_gradient
from tests.cost.calls import T


def convolution(maker, data, weight, out, *, bias=None, stride=1, padding=0, transposed=False, groups=1):
    dims = len(data.shape) - 2
    steps = [[stride] * dims, [padding] * dims, [1] * dims]
    return maker(
        "aten.convolution.default", data, weight, bias, *steps, transposed, [0] * dims, groups, out=out
    )


def backward(
    maker, gradient, data, weight, *, stride=1, padding=0, transposed=False, groups=1, mask=(1, 1, 0)
):
    dims = len(data.shape) - 2
    steps = [[stride] * dims, [padding] * dims, [1] * dims]
    wanted = [bool(flag) for flag in mask]
    bias = T(gradient.shape[1])
    out = tuple(
        T(*like.shape, dtype=like.dtype) if wants else None
        for like, wants in zip((data, weight, bias), wanted, strict=True)
    )
    return maker(
        "aten.convolution_backward.default",
        gradient, data, weight, None, *steps, transposed, [0] * dims, groups, wanted, out=out,
    )  # fmt: skip


def conv_pass(pixels, inputs, outputs, window, **changes):
    facts = {
        "plane": pixels,
        "groups": 1,
        "dtype": "float32",
        "channels_last": False,
        "strided": False,
        "overlaps": True,
        "reach": max(window),
    }
    return ConvPass(pixels=pixels, inputs=inputs, outputs=outputs, window=window, **(facts | changes))


@pytest.mark.parametrize(
    ("made", "kernels", "memsets"),
    [
        # 49 x 1 = 49 tiles of 128 x 128 fit 132 SMs: data and weights to channels last, the product, back.
        (conv_pass(6272, 128, 128, (3, 3)), 4, 0),
        # 392 tiles are more than two a CTA: drawn from a counter.
        (conv_pass(50176, 128, 128, (3, 3)), 4, 1),
        # 31 x 4 = 124 tiles of 64 x 64: a few more than clusters of CTAs take at once (120), shared out along k.
        (conv_pass(1960, 256, 256, (3, 3)), 5, 0),
        # Up to 64 channels in and a multiple of 128 out: an Ampere-style kernel that writes NCHW itself.
        (conv_pass(125440, 64, 128, (3, 3)), 3, 0),
        # Little to compute (16e6 <= 132 x 2e6): the same; and k 2304 split over few tiles, semaphores zeroed.
        (conv_pass(1960, 256, 32, (3, 3)), 3, 1),
        # An image's three channels: directly, unless wide windows overlap.
        (conv_pass(100352, 3, 32, (3, 3)), 1, 0),
        (conv_pass(784, 3, 768, (16, 16), overlaps=False, strided=True), 1, 0),
        (conv_pass(50176, 3, 64, (7, 7), strided=True), 4, 0),
        # 1 x 1: the product of each image with the weights; strided, the pixels are gathered by a copy.
        (conv_pass(7840, 512, 128, (1, 1), plane=784), 1, 0),
        (conv_pass(1568, 1024, 2048, (1, 1), plane=49, strided=True, overlaps=False), 3, 0),
        # 3.3e9 multiply-adds in 7 x 4 x 64 tiles: counted.
        (conv_pass(50176, 128, 512, (1, 1), plane=784), 1, 1),
        # 7 x 7 images are merged into one matrix where there is enough to do, 3.3e9 / 132 = 25e6 each.
        (conv_pass(3136, 512, 2048, (1, 1), plane=49), 3, 0),
        (conv_pass(392, 512, 256, (1, 1), plane=49), 1, 0),
        # Three groups in turn; 55 narrow ones at once, channels last.
        (conv_pass(31360, 40, 160, (1, 1), groups=3), 3, 0),
        (conv_pass(392, 8, 8, (3, 3), groups=55), 4, 0),
        # Channels last in, channels last out.
        (conv_pass(6272, 128, 128, (3, 3), channels_last=True), 1, 0),
        (conv_pass(50176, 128, 128, (3, 3), channels_last=True), 1, 1),
        # Transposed.
        (conv_pass(65536, 64, 128, (3, 3), transposed=True), 4, 1),
    ],
)
def test_forward(target, made, kernels, memsets):
    planned = plan(made, target)
    assert (planned.kernels, planned.memsets) == (kernels, memsets)


#: Kernels and memsets of weight gradients as they ran on an H200.
WEIGHT_GRADIENTS = [
    # An image of one pixel (squeeze and excite) is a plain product in either layout; a narrowing one of more than 64 outputs
    # is added up behind a memset.
    (conv_pass(8, 40, 160, (1, 1), plane=1), 1, 0),
    (conv_pass(8, 160, 40, (1, 1), plane=1), 1, 0),
    (conv_pass(8, 320, 80, (1, 1), plane=1), 1, 1),
    # 7 x 7 pixels are no multiple of 16 bytes, but 8 x 49 x 112 x 448 / 132 = 0.15 M multiply-adds an SM are little.
    (conv_pass(392, 112, 448, (1, 1), plane=49), 2, 0),
    (conv_pass(784, 192, 1152, (1, 1), plane=49), 2, 0),
    # Narrowing, 1.31 M are not: copied; 2 x 9 = 18 tiles are reduced.
    (conv_pass(784, 1152, 192, (1, 1), plane=49), 5, 0),
    # Few channels of many pixels are copied, those of fewer pixels summed up over images.
    (conv_pass(100352, 16, 64, (1, 1), plane=12544), 3, 1),
    (conv_pass(25088, 48, 24, (1, 1), plane=3136), 2, 0),
    # Three outputs, or an image's three channels whose windows overlap, are padded to vectors.
    (conv_pass(32768, 32, 3, (1, 1), plane=16384), 5, 2),
    (conv_pass(32768, 3, 32, (3, 3), plane=16384), 5, 2),
    (conv_pass(100352, 3, 16, (3, 3), plane=12544, strided=True), 1, 1),
    # 3 x 3 over 1,024 to 16,384 pixels: Winograd's three transforms and a product; over more, and fewer, not.
    (conv_pass(6272, 128, 128, (3, 3), plane=784), 4, 0),
    (conv_pass(25088, 64, 64, (3, 3), plane=3136), 6, 0),
    (conv_pass(392, 512, 512, (3, 3), plane=49), 4, 0),
    # Half precision: 3 x 3 tiles of 128 x 128 are reduced from 20,000 pixels on.
    (conv_pass(12544, 128, 128, (3, 3), plane=784, dtype="bfloat16"), 4, 0),
    (conv_pass(50176, 64, 64, (3, 3), plane=3136, dtype="bfloat16"), 6, 0),
]  # fmt: skip


@pytest.mark.parametrize(("made", "kernels", "memsets"), WEIGHT_GRADIENTS)
def test_weight_gradients(target, made, kernels, memsets):
    found = plan_weight_gradient(made, target)
    assert (found.kernels, found.memsets) == (kernels, memsets)


#: Launches of passes as they ran on an H200.
PASSES = [
    # Patches that do not overlap stay where they lie up to 512 outputs, a wide window in half precision does not.
    (conv_pass(6272, 3, 384, (16, 16), dtype="bfloat16", strided=True, overlaps=False), 1),
    (conv_pass(3136, 3, 768, (16, 16), dtype="bfloat16", strided=True, overlaps=False), 6),
    (conv_pass(100352, 3, 64, (7, 7), dtype="bfloat16", strided=True), 6),
    (conv_pass(100352, 3, 64, (3, 3), dtype="bfloat16", strided=True), 1),
    # One image's stem: 12544 x 64 x 147 / 132 = 0.9 M multiply-adds an SM.
    (conv_pass(12544, 3, 64, (7, 7), strided=True), 1),
    # 96 channels to 32: one tile of 128 x 32, where there is not much to do.
    (conv_pass(32768, 96, 32, (3, 3), plane=16384), 1),
    (conv_pass(262144, 96, 32, (3, 3), plane=65536), 5),
    # 192 channels to 64: written as NCHW.
    (conv_pass(131072, 192, 64, (3, 3), plane=16384), 3),
    # 64 channels to 128 over 16,384 pixels, 9.2 M multiply-adds an SM: copied both ways, 256 tiles of 64 x 128 drawn from a
    # counter; over twice as many pixels written as NCHW.
    (conv_pass(16384, 64, 128, (3, 3), plane=4096), 5),
    (conv_pass(32768, 64, 128, (3, 3), plane=4096), 3),
    # One image is split along the channels where its 64 x 64 tiles are few for them: 4 x 8 x 28 = 896 <= 1024; 13 x 2 x 28 > 512.
    (conv_pass(196, 1024, 512, (1, 1), strided=False), 2),
    (conv_pass(784, 512, 128, (1, 1)), 1),
    # 3.11 M multiply-adds an SM are enough to merge 7 x 7 images in half precision, not in float32.
    (conv_pass(392, 512, 2048, (1, 1), plane=49, dtype="bfloat16"), 3),
    (conv_pass(392, 512, 2048, (1, 1), plane=49), 1),
]  # fmt: skip


@pytest.mark.parametrize(("made", "launches"), PASSES)
def test_passes(target, made, launches):
    assert plan(made, target).launches == launches


def test_a_deep_data_gradient_shares_few_tiles_out(target):
    """An H200: copies of both, one set-up kernel, the product and a copy back for 7 x 8 = 56 <= 132 / 2 tiles of 64 x 64."""
    made = conv_pass(392, 512, 512, (3, 3), plane=49, transposed=True)
    assert plan_data_gradient(made, target).launches == 5


def test_gradients(target):
    small = conv_pass(6272, 256, 256, (3, 3), transposed=True)
    strided = conv_pass(6272, 256, 256, (3, 3), transposed=True, strided=True)
    plain = conv_pass(6272, 256, 256, (3, 3), strided=True)
    # Copies of data and weights, the product, a copy back; a product for each phase of the stride wants a counter.
    assert plan_data_gradient(small, target).launches == 4
    assert plan_data_gradient(strided, target).launches == 5
    # Of a transposed convolution: a plain strided one.
    assert plan_data_gradient(plain, target) == plan(plain, target)
    # Weights: 2 x 18 = 36 tiles of 128 x 128: set-up, product, and three copies.
    assert plan_weight_gradient(small, target).launches == 5
    # 1 x 5 = 5 tiles: split and reduced as well.
    assert plan_weight_gradient(conv_pass(200704, 64, 64, (3, 3)), target).launches == 6
    # 1 x 1: a product an image and their sum.
    assert plan_weight_gradient(conv_pass(50176, 128, 512, (1, 1), plane=784), target).launches == 2


class TestBackends:
    def test_depthwise_has_its_own_kernel_with_the_bias_in_it(self, maker, target):
        node = convolution(
            maker, T(8, 32, 16, 16), T(32, 1, 3, 3), T(8, 32, 16, 16), bias=T(32), padding=1, groups=32
        )
        work = work_of(node, target)
        assert (work.kernels, work.memsets, work.scratch) == (1, 0, ())

    def test_its_gradients_have_one_each(self, maker, target):
        node = backward(maker, T(8, 32, 16, 16), T(8, 32, 16, 16), T(32, 1, 3, 3), padding=1, groups=32)
        assert work_of(node, target).launches == 2

    def test_a_bias_is_a_pass_of_its_own(self, maker, target):
        node = convolution(maker, T(4, 3, 32, 32), T(16, 3, 3, 3), T(4, 16, 32, 32), bias=T(16), padding=1)
        work = work_of(node, target)
        assert (work.kernels, work.flops - work.matmul_flops) == (1 + 1, 4 * 16 * 32 * 32)

    def test_adding_it_to_more_than_32_bits_reach_takes_more(self, maker, target):
        out = T(128, 64, 382, 382)  # 4.8e9 bytes: halved twice
        node = convolution(maker, T(128, 8, 384, 384), T(64, 8, 3, 3), out, bias=T(64))
        plain = convolution(maker, T(128, 8, 384, 384), T(64, 8, 3, 3), T(128, 64, 382, 382))
        assert work_of(node, target).kernels == work_of(plain, target).kernels + 4

    def test_layout_copies_are_scratch(self, maker, target):
        data, weight, out = T(8, 128, 28, 28), T(128, 128, 3, 3), T(8, 128, 28, 28)
        work = work_of(convolution(maker, data, weight, out, padding=1), target)
        assert work.scratch == (8 * 128 * 784 * 4, 128 * 128 * 9 * 4, 8 * 128 * 784 * 4)

    def test_weight_gradients_of_images_are_scratch(self, maker, target):
        gradient, data, weight = T(64, 256, 14, 14), T(64, 1024, 14, 14), T(256, 1024, 1, 1)
        work = work_of(backward(maker, gradient, data, weight, mask=(0, 1, 0)), target)
        assert (work.launches, work.scratch) == (2, (64 * 256 * 1024 * 4,))

    def test_both_gradients_take_the_same_workspace(self, maker, target):
        """One call of cuDNN after the other: copies of gradient, weights and data for the first serve the second too."""
        gradient, data, weight = T(64, 128, 28, 28), T(64, 128, 28, 28), T(128, 128, 3, 3)
        work = work_of(backward(maker, gradient, data, weight, padding=1), target)
        each, weights = 64 * 128 * 784 * 4, 128 * 128 * 9 * 4
        assert sorted(work.scratch) == [weights, each, each]

    def test_channels_last_data_pull_the_weights_along(self, maker, target):
        last = (128 * 784, 1, 28 * 128, 128)
        data, out = T(8, 128, 28, 28, stride=last), T(8, 128, 28, 28, stride=last)
        work = work_of(convolution(maker, data, T(128, 128, 3, 3), out, padding=1), target)
        assert (work.kernels, work.scratch) == (1 + 1, (128 * 128 * 9 * 4,))

    def test_a_slice_is_copied_first(self, maker, target):
        data = T(8, 58, 28, 28, stride=(90944, 784, 28, 1))
        work = work_of(convolution(maker, data, T(58, 58, 1, 1), T(8, 58, 28, 28)), target)
        assert (work.kernels, work.scratch) == (1 + 1, (8 * 58 * 784 * 4,))

    def test_an_empty_batch_launches_nothing(self, maker, target):
        work = work_of(convolution(maker, T(0, 3, 8, 8), T(4, 3, 3, 3), T(0, 4, 6, 6)), target)
        assert work.launches == 0

    def test_one_pixel_in_several_of_few_channels_is_taken_directly(self, maker, target):
        """Whatever there is to compute: the shortcut of a ResNet's second stage, at a batch of 64 and of 512."""
        for batch in (64, 512):
            data, out = T(batch, 64, 56, 56), T(batch, 128, 28, 28)
            work = work_of(convolution(maker, data, T(128, 64, 1, 1), out, stride=2), target)
            assert (work.launches, work.scratch) == (1, ())


class TestMultiplyAdds:
    """``matmul_flops`` is twice these; ``flops`` adds the bias. Public reports with their recomputed answers."""

    @pytest.mark.parametrize(
        ("data", "weight", "out", "facts", "macs"),
        [
            # Each of 8 x 3 x 9 weights meets 100 positions of 2 samples.
            (T(2, 3, 10, 10), T(8, 3, 3, 3), T(2, 8, 10, 10), {"padding": 1}, 8 * 3 * 9 * 100 * 2),
            # Transposed: positions of the input.
            (T(1, 32, 1, 1), T(32, 1, 3, 3), T(1, 1, 3, 3), {"transposed": True}, 32 * 9),
            (T(1, 3, 2, 2), T(3, 1, 2, 2), T(1, 1, 4, 4), {"transposed": True, "stride": 2}, 48),
            (
                T(2, 4, 8, 8), T(4, 6, 4, 4), T(2, 6, 16, 16),
                {"transposed": True, "stride": 2, "padding": 1}, 49_152,
            ),
            (
                T(2, 4, 8, 8), T(4, 1, 3, 3), T(2, 4, 15, 15),
                {"transposed": True, "stride": 2, "padding": 1, "groups": 4}, 4 * 9 * 64 * 2,
            ),
            (
                T(2, 6, 8, 8), T(6, 2, 2, 2), T(2, 6, 16, 16),
                {"transposed": True, "stride": 2, "groups": 3}, 6 * 2 * 4 * 64 * 2,
            ),
            # In one dimension and in three.
            (T(4, 80, 3000), T(384, 80, 3), T(4, 384, 3000), {"padding": 1}, 384 * 80 * 3 * 3000 * 4),
            (T(1, 2, 4, 4, 4), T(3, 2, 3, 3, 3), T(1, 3, 2, 2, 2), {}, 3 * 2 * 27 * 8),
        ],
    )  # fmt: skip
    def test_forward(self, maker, target, data, weight, out, facts, macs):
        work = work_of(convolution(maker, data, weight, out, **facts), target)
        assert work.matmul_flops == work.flops == 2 * macs

    def test_bias_of_a_transposed_convolution(self, maker, target):
        node = convolution(
            maker, T(1, 3, 2, 2), T(3, 1, 2, 2), T(1, 1, 4, 4), bias=T(1), stride=2, transposed=True
        )
        work = work_of(node, target)
        assert (work.matmul_flops, work.flops) == (2 * 48, 2 * 48 + 16)

    def test_weight_gradient_alone_costs_what_the_forward_does(self, maker, target):
        """ConvTranspose2d(192 -> 384, k2, s2) on 6 x 192 x 30 x 96 whose input wants no gradient."""
        data, weight = T(6, 192, 30, 96), T(192, 384, 2, 2)
        facts = {"stride": 2, "transposed": True}
        forward = work_of(convolution(maker, data, weight, T(6, 384, 60, 192), **facts), target)
        gradient = work_of(backward(maker, T(6, 384, 60, 192), data, weight, mask=(0, 1, 0), **facts), target)
        assert forward.matmul_flops == gradient.matmul_flops == 10_192_158_720
        assert forward.matmul_flops + gradient.matmul_flops == 20_384_317_440

    @pytest.mark.parametrize(
        ("channels", "outputs", "size", "groups", "total"),
        [
            # 2 x 16 x (8 / 4) x 9 x 100 positions x 2 samples = 115,200 a pass, three passes.
            (8, 16, 10, 4, 345_600),
            # Depthwise: 2 x 32 x 9 x 256 x 2 = 294,912 a pass.
            (32, 32, 16, 32, 884_736),
        ],
    )
    def test_groups_forward_and_backward(self, maker, target, channels, outputs, size, groups, total):
        data, weight = T(2, channels, size, size), T(outputs, channels // groups, 3, 3)
        facts = {"padding": 1, "groups": groups}
        forward = work_of(convolution(maker, data, weight, T(2, outputs, size, size), **facts), target)
        both = work_of(backward(maker, T(2, outputs, size, size), data, weight, **facts), target)
        assert forward.matmul_flops + both.matmul_flops == total

    def test_bias_gradient_is_a_sum(self, maker, target):
        gradient, data, weight = T(2, 16, 10, 10), T(2, 8, 10, 10), T(16, 8, 3, 3)
        without = work_of(backward(maker, gradient, data, weight, padding=1), target)
        with_it = work_of(backward(maker, gradient, data, weight, padding=1, mask=(1, 1, 1)), target)
        assert with_it.matmul_flops == without.matmul_flops
        assert with_it.flops - without.flops == 2 * 16 * 100
        assert with_it.kernels == without.kernels + 1


@pytest.mark.parametrize(
    ("made", "launches"),
    [
        # Hopper's kernels reach over seven pixels; wider windows, or dilated ones, go without a counter.
        (conv_pass(2_000_000, 32, 64, (5, 9)), 4),
        (conv_pass(4_194_304, 32, 64, (5,), reach=13, transposed=True), 4),
        (conv_pass(4_194_304, 32, 64, (3,), reach=5, transposed=True), 5),
        # Forward in three dimensions: an Ampere-style kernel that writes NCHW.
        (conv_pass(2_097_152, 32, 64, (3, 3, 3)), 3),
        # One image, few tiles (4 x 2), 672 channels: split and reduced.
        (conv_pass(196, 672, 112, (1, 1)), 2),
        # Three channels are padded to a vector in zero-filled copies of data and weights.
        (conv_pass(2_097_152, 3, 16, (3, 3, 3), transposed=True), 4 + 3),
        # Deep groups: each copied, counted, multiplied, copied back.
        (conv_pass(31360, 320, 80, (1, 1), groups=3), 3 * 4),
    ],
)
def test_forward_engines(target, made, launches):
    assert plan(made, target).launches == launches
