"""Device time launch by launch: what is launched, and its time as arithmetic on the page."""

import ast
from pathlib import Path

import msgspec
import pytest

import optrace.cost.device
from optrace.cost.device import DeviceModel, device_time, launches_of
from optrace.cost.device.kernel import Kernel, Product, launches
from optrace.cost.device.rates import Rates
from optrace.cost.l2 import Traffic
from optrace.cost.profiles import (
    KernelRates,
    ProductRates,
    find_gpu,
    gpu_profiles,
    pricing,
    with_kernel_rates,
)
from optrace.cost.rules import work_of
from optrace.cost.work import Access, Work
from optrace.graph import TensorMeta, TraceInfo
from tests.cost.calls import TARGET, Maker, T

#: 100 SMs, 4 TB/s from HBM and 8 from L2, 100 TFLOP/s in bfloat16: round numbers.
GPU = msgspec.structs.replace(
    find_gpu("h200"),
    sm_count=100,
    bandwidth_tb_s=4.0,
    l2_bandwidth_tb_s=8.0,
    peak_tflops={"float32": 50.0, "bfloat16": 100.0},
    kernels={
        "stream": KernelRates(floor_us=1.0, hbm=1.25, l2=1.0),
        "blocks": KernelRates(
            floor_us=2.0, block_us=0.5, step_us=0.1, chain_us=3.0, miss_us=2.0, tail_us=0.25
        ),
    },
    products={
        "tiled": ProductRates(
            floor_us=2.0,
            math=1.0,
            fetch_ps=0.0,
            store_ps=0.0,
            wait_us=0.0,
            tile_us=0.5,
            hbm=1.0,
            l2=1.0,
            tiles=((100, 100),),
            persistent=True,
        )
    },
)


def us(launch, hbm_bytes=0.0):
    return Rates(GPU).launch_us(launch, hbm_bytes)[0]


def listed(node):
    return launches_of(node, work_of(node, TARGET), TARGET)


# Times -----------------------------------------------------------------------------------------------------


def test_bytes_from_hbm_and_from_l2_take_their_own_time():
    # 40 MB at 4 TB/s, 1.25 times over, and 80 MB of hits at 8 TB/s.
    assert us(Kernel("stream", 120e6), 40e6) == pytest.approx(1.0 + 1.25 * 40 / 4 + 80 / 8)


def test_blocks_take_turns_on_an_sm():
    # 1000 blocks on 100 SMs are ten an SM, each with a fixed part and four rounds.
    assert us(Kernel("blocks", 0, blocks=1000, steps=4)) == pytest.approx(
        2.0 + max(4 * 3.0, 10 * (0.5 + 4 * 0.1))
    )


def test_a_few_long_blocks_wait_for_memory():
    assert us(Kernel("blocks", 0, blocks=8, steps=1000)) == pytest.approx(2.0 + 1000 * 3.0)


def test_rounds_wait_longer_for_hbm_than_for_the_l2():
    # Half of the bytes miss; they take no time of their own here.
    assert us(Kernel("blocks", 100.0, blocks=8, steps=1000), 50.0) == pytest.approx(
        2.0 + 1000 * (3.0 + 0.5 * 2.0)
    )


def test_the_last_block_puts_the_rest_together():
    assert us(Kernel("blocks", tail=40)) == pytest.approx(2.0 + 40 * 0.25)


def test_launches_alike_run_one_after_the_other():
    assert us(Kernel("stream", count=3)) == pytest.approx(3 * 1.0)


def test_a_product_takes_its_rounds_of_tiles():
    # 1100 x 1000 results are 110 tiles of 100 x 100: two rounds on 100 SMs of a TFLOP/s each.
    tile_us = 2 * 100 * 100 * 600 / 1e12 * 1e6
    assert us(Product("tiled", "bfloat16", 1100, 1000, 600)) == pytest.approx(2.0 + 2 * (tile_us + 0.5))


def test_a_shallow_product_takes_its_bytes():
    assert us(Product("tiled", "bfloat16", 100, 100, 1, nbytes=400e6), 400e6) == pytest.approx(2.0 + 400 / 4)


def test_split_depth_is_worked_on_side_by_side():
    whole = us(Product("tiled", "bfloat16", 100, 100, 6400))
    split = us(Product("tiled", "bfloat16", 100, 100, 6400, split=True))
    # One tile of 128 us, or 64 parts of it at once.
    assert whole == pytest.approx(2.0 + 0.5 + 128)
    assert split == pytest.approx(2.0 + 0.5 + 128 / 64)


# What is launched ------------------------------------------------------------------------------------------


def test_a_contiguous_op_is_vectorized_and_a_broadcast_one_is_not():
    make = Maker()
    same = make("aten.add.Tensor", T(64, 1024), T(64, 1024), out=T(64, 1024))
    (kernel,) = listed(same)
    assert (kernel.kind, kernel.nbytes) == ("vectorized", 3 * 4 * 64 * 1024)
    broadcast = make("aten.add.Tensor", T(64, 1024), T(1024), out=T(64, 1024))
    (kernel,) = listed(broadcast)
    assert (kernel.kind, kernel.nbytes) == ("strided", 4 * (2 * 64 * 1024 + 1024))
    # Offsets along two dimensions, 512 elements a block.
    assert (kernel.steps, kernel.blocks) == (2, 64 * 1024 / 512)


def test_mixed_dtypes_are_cast_on_the_way_and_narrowing_is_vectorized():
    make = Maker()
    mixed = make("aten.add.Tensor", T(4096), T(4096, dtype="bfloat16"), out=T(4096))
    assert [kernel.kind for kernel in listed(mixed)] == ["cast"]
    narrowed = make("aten._to_copy.default", T(4096), out=T(4096, dtype="bfloat16"), dtype="bfloat16")
    assert [kernel.kind for kernel in listed(narrowed)] == ["vectorized"]
    widened = make("aten._to_copy.default", T(4096, dtype="bfloat16"), out=T(4096), dtype="float32")
    assert [kernel.kind for kernel in listed(widened)] == ["cast"]


def test_a_transposing_copy_is_one():
    copied = Maker()("aten.clone.default", T(512, 256, stride=(1, 512)), out=T(512, 256))
    assert [kernel.kind for kernel in listed(copied)] == ["transposing"]


def test_a_layer_norm_is_a_block_a_row():
    (kernel,) = listed(
        Maker()("aten.native_layer_norm.default", T(300, 768), (768,), T(768), T(768), 1e-5, out=(T(300, 768), T(300, 1), T(300, 1)))
    )  # fmt: skip
    # 128 threads load four elements each.
    assert (kernel.kind, kernel.blocks, kernel.steps) == ("layer_norm_scaled", 300, 768 / 512)


def test_a_convolution_copies_its_layouts_around_the_product():
    node = Maker()("aten.convolution.default", T(8, 256, 28, 28), T(512, 256, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, out=T(8, 512, 28, 28))  # fmt: skip
    found = [launch for launch in listed(node) if launch.kind != "memset"]
    assert [launch.kind for launch in found] == ["layout", "layout", "conv", "layout_back"]
    product = found[2]
    assert (product.m, product.n, product.k) == (8 * 28 * 28, 512, 9 * 256)
    # Tiles of 32 channels by 32 pixels: 8 images, 8 x 25 tiles.
    assert found[0].blocks == 8 * (256 // 32) * 25


def test_a_reduction_that_blocks_share_clears_semaphores_and_has_a_tail():
    memset, kernel = listed(Maker()("aten.sum.default", T(1 << 24), out=T()))
    assert memset.kind == "memset"
    assert kernel.kind == "reduce_rows"
    # 132 SMs hold four blocks of 512 threads each: 528 partial sums, put together by the 512 threads of one block.
    assert kernel.blocks == 528
    assert kernel.tail == pytest.approx(528 / 512)
    # Four elements a load.
    assert kernel.steps == pytest.approx((1 << 24) / (528 * 512) / 4)


def test_few_blocks_of_keys_wait_for_the_longest_walk():
    """2 x 6 heads x 2 blocks of keys are fewer than the SMs: the first block meets all 128 queries although half of the
    scores are masked, five products each."""
    query, seed = T(2, 6, 128, 64), T(dtype="int64", device="cpu")
    found = listed(
        Maker()(
            "aten._scaled_dot_product_efficient_attention_backward.default",
            query, query, query, query, None, query, T(2, 6, 128), seed, seed, 0.0, [True, True, True, False], True,
            out=(*[T(2, 6, 128, 64) for _ in range(3)], None),
        )
    )  # fmt: skip
    assert [launch.kind for launch in found[:-1]] == ["vectorized", "reduce_rows", "fill", "small"]
    assert (found[-1].m, found[-1].n, found[-1].k, found[-1].batch) == (128, 64, 5 * 128, 12)


def test_an_image_in_half_precision_is_convolved_in_float32():
    """28.9 us on an H200 (``implicit_convolve_sgemm``) for 347 MFLOP: 0.4 us at the matrix units' rate."""
    made = T(8, 3, 224, 224, dtype="bfloat16"), T(64, 3, 3, 3, dtype="bfloat16")
    steps = [2, 2], [1, 1], [1, 1], False, [0, 0], 1
    found = listed(
        Maker()("aten.convolution.default", *made, None, *steps, out=T(8, 64, 112, 112, dtype="bfloat16"))
    )
    assert [(launch.kind, launch.dtype) for launch in found] == [("conv_direct", "float32")]


def test_winograd_transforms_both_multiplies_at_36_points_and_transforms_back():
    """8 x 28 x 28 pixels in tiles of 16; as 4.7, 3.5, 21.8 and 2.2 us on an H200."""
    gradient, data, weight = T(8, 128, 28, 28), T(8, 128, 28, 28), T(128, 128, 3, 3)
    found = listed(
        Maker()(
            "aten.convolution_backward.default",
            gradient, data, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False],
            out=(None, T(128, 128, 3, 3), None),
        )
    )  # fmt: skip
    assert [launch.kind for launch in found] == ["strided", "strided", "simt_nt", "strided"]
    assert (found[2].m, found[2].n, found[2].k, found[2].batch) == (128, 128, 8 * 784 / 16, 36)


def test_shares_of_k_over_all_sms_wait_for_one_another():
    """31.3 us measured on an H200 for 0.8 MFLOP: one of three tiles of 32 x 128 a turn, 132 turns each."""
    node = Maker()("aten.mm.default", T(8, 128), T(128, 384, stride=(1, 128)), out=T(8, 384))
    found = listed(node)
    assert [(launch.kind, launch.steps) for launch in found] == [("memset", 0), ("shares_in_turn", 132)]


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "parts"),
    [
        # Eight 64 x 64 tiles: seven parts of 2048, where an H200's grid has 8 x 7; six of 384.
        (64, 2048, 512, 7),
        (32, 384, 1000, 6),
        # Four take a part for 64 steps: 1280 / 64.
        (8, 1280, 256, 20),
    ],
)
def test_a_product_with_a_bias_is_split_into_few_parts(rows, depth, columns, parts):
    node = Maker()(
        "aten.addmm.default", T(columns), T(rows, depth), T(depth, columns, stride=(1, depth)), out=T(rows, columns)
    )  # fmt: skip
    found = listed(node)
    product = next(launch for launch in found if isinstance(launch, Product))
    assert (product.split, product.most_parts) == (True, parts)


def test_a_split_product_with_a_bias_is_scaled_added_to_and_finished():
    node = Maker()("aten.addmm.default", T(768), T(64, 768), T(768, 768, stride=(1, 768)), out=T(64, 768))
    found = listed(node)
    assert [launch.kind for launch in found] == ["memset", "small", "atomic_split", "vectorized"]
    # 2 x 24 tiles of 32 x 32, the depth in five parts.
    assert (found[2].blocks, found[2].steps) == (2 * 24 * 5, 768 / 5)


def test_every_op_is_listed_once():
    with pytest.raises(ValueError, match=r"aten\.cat is listed already"):
        launches("aten.cat")(lambda *_: ())


# Profiles --------------------------------------------------------------------------------------------------


def test_every_kind_has_rates():
    made = {"Kernel": set(), "Product": set(), "flat": set()}
    for path in Path(optrace.cost.device.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in made:
                constants = [arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant)]
                made[call.func.id].update(constants)
    # Kinds that are put together from parts.
    made["Kernel"] |= {
        f"{kind}_{way}" for kind in ("reduce", "arg_reduce", "moments") for way in ("rows", "columns")
    }
    ways = ("", "_backward")
    made["Kernel"] |= {f"softmax_{kind}{way}" for kind in ("warp", "block", "spatial") for way in ways}
    made["Kernel"] |= {
        f"{kind}_pool{dims}" for kind in ("max", "average", "adaptive") for dims in ("", "_3d")
    }
    made["Product"] |= {f"simt_{layout}" for layout in ("nn", "nt", "tn", "tt")}
    made["Product"] |= {
        f"attention_{backend}{way}"
        for backend in ("flash", "cudnn", "efficient")
        for way in (*ways, *(("_wide", "_backward_wide") if backend == "cudnn" else ()))
    }
    made["Product"] |= {
        "conv",
        "conv_half",
        "conv_image",
        "conv_first",
        "conv_pointwise",
        "conv_pixel",
        "conv_last",
    }
    made["Product"] |= {f"conv_transposed{kind}" for kind in ("", "_half", "_3d")}
    made["Product"] |= {"conv_grouped", "warp_specialized", "tensor_op", "tensor_op_nt", "attention_decode"}
    gpu = find_gpu("h200")
    assert made["Kernel"] | made["flat"] <= set(gpu.kernels)
    assert made["Product"] <= set(gpu.products)
    assert len(made["Kernel"]) > 40


@pytest.mark.parametrize("key", sorted(gpu_profiles()))
def test_other_gpus_scale_what_an_sm_does(key):
    measured, scaled = find_gpu("h200"), with_kernel_rates(find_gpu(key))
    slower = (66.9 / 132) / (scaled.peak_tflops["float32"] / scaled.sm_count)
    for kind, rates in scaled.kernels.items():
        assert rates.block_us == pytest.approx(measured.kernels[kind].block_us * slower)
        assert rates.floor_us == measured.kernels[kind].floor_us


# Calls -----------------------------------------------------------------------------------------------------


def test_a_large_product_is_bound_by_compute_and_a_stream_by_memory():
    model = DeviceModel(find_gpu("h200"), TARGET)
    make = Maker()
    product = make("aten.mm.default", T(4096, 4096, dtype="bfloat16"), T(4096, 4096, dtype="bfloat16"), out=T(4096, 4096, dtype="bfloat16"))  # fmt: skip
    time = model.time(product, work_of(product, TARGET), Traffic(3 * 2**25, 0))
    assert time.roof == "compute"
    assert time.roofline_us == pytest.approx(2 * 4096**3 / 989.4e12 * 1e6)
    assert time.us > time.roofline_us
    stream = make("aten.relu.default", T(2**28), out=T(2**28))
    time = model.time(stream, work_of(stream, TARGET), Traffic(2**30, 2**30))
    assert time.roof == "memory"
    assert time.roofline_us == pytest.approx(2**31 / 4.8e12 * 1e6)
    assert time.us > time.roofline_us


def test_float32_convolutions_run_in_tf32_and_products_do_not():
    make = Maker()
    model = DeviceModel(find_gpu("h200"), TARGET)
    product = make("aten.mm.default", T(1024, 1024), T(1024, 1024), out=T(1024, 1024))
    convolution = make("aten.convolution.default", T(64, 256, 56, 56), T(256, 256, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, out=T(64, 256, 56, 56))  # fmt: skip
    none = Traffic(0, 0)
    assert model.time(product, work_of(product, TARGET), none).roofline_us == pytest.approx(
        2 * 1024**3 / 66.9e12 * 1e6
    )
    macs = 256 * 256 * 9 * 64 * 56 * 56
    assert model.time(convolution, work_of(convolution, TARGET), none).roofline_us == pytest.approx(
        2 * macs / 494.7e12 * 1e6
    )


def test_torch_s_switches_choose_between_float32_and_tf32():
    make = Maker()
    gpu = find_gpu("h200")
    product = make("aten.mm.default", T(1024, 1024), T(1024, 1024), out=T(1024, 1024))
    convolution = make("aten.convolution.default", T(64, 256, 56, 56), T(256, 256, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, out=T(64, 256, 56, 56))  # fmt: skip
    chosen = pricing("h200", "default").target(
        TraceInfo(torch="2.11.0", float32_matmul="high", float32_convolution="highest")
    )
    assert (chosen.tf32_products, chosen.tf32_convolutions) == (True, False)
    for node, us in (
        (product, 2 * 1024**3 / 494.7e12 * 1e6),
        (convolution, 2 * 256 * 256 * 9 * 64 * 56 * 56 / 66.9e12 * 1e6),
    ):
        time = DeviceModel(gpu, chosen).time(node, work_of(node, chosen), Traffic(0, 0))
        assert time.roofline_us == pytest.approx(us)
    plain = DeviceModel(gpu, TARGET).time(product, work_of(product, TARGET), Traffic(0, 0))
    assert DeviceModel(gpu, chosen).time(product, work_of(product, chosen), Traffic(0, 0)).us < plain.us / 2
    slow = DeviceModel(gpu, chosen).time(convolution, work_of(convolution, chosen), Traffic(0, 0))
    assert (
        slow.us
        > 2 * DeviceModel(gpu, TARGET).time(convolution, work_of(convolution, TARGET), Traffic(0, 0)).us
    )


@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation", "kind", "depth"),
    [
        (3, 1, 1, 1, "conv_transposed_3d", 27 * 64),
        (3, 1, 0, 1, "conv_full_3d", 27 * 64),
        (5, 1, 0, 1, "conv_full_3d_deep", 125 * 64),  # 125 x 48 channels, filled up to 64
        (3, 2, 1, 1, "conv_transposed_3d_strided", 27 * 64 // 8),  # an eighth of the taps meets a pixel
        (5, 1, 0, 2, "conv_full_3d_deep", 125 * 64 * 8),  # dilated and gathered: eight times as slow
        (3, 1, 0, 2, "conv_full_3d", 27 * 64),
    ],
)
def test_gradients_of_volumes_by_what_cudnn_makes_of_them(window, stride, padding, dilation, kind, depth):
    make = Maker()
    side = (16 - 1) * stride - 2 * padding + dilation * (window - 1) + 1
    node = make(
        "aten.convolution.default", T(2, 48, 16, 16, 16), T(48, 24, window, window, window), None, (stride,) * 3,
        (padding,) * 3, (dilation,) * 3, True, (0, 0, 0), 1, out=T(2, 24, side, side, side),
    )  # fmt: skip
    (main,) = (x for x in launches_of(node, work_of(node, TARGET), TARGET) if isinstance(x, Product))
    assert (main.kind, main.dtype, main.m, main.n, main.k) == (kind, "tf32", 2 * side**3, 24, depth)


@pytest.mark.parametrize(
    ("op", "passes"), [("mul_.Scalar", 1 + 3), ("sqrt_", 1 + 3 + 3), ("div_.Scalar", 1 + 3 + 3)]
)
def test_a_chunk_of_a_list_takes_its_lists_its_walk_and_divisions(op, passes):
    make = Maker()
    tensors = (T(65536), T(100))
    name, _, overload = op.partition(".")
    node = make(
        f"aten._foreach_{name}.{overload or 'default'}", tensors, *([2.0] if overload else []), out=()
    )
    (launch,) = launches_of(node, work_of(node, TARGET), TARGET)
    assert (launch.kind, launch.blocks, launch.steps) == ("multi_tensor", 1 + 1, passes)


def test_numbers_are_stacked_by_one_kernel():
    make = Maker()
    node = make("aten.stack.default", (T(), T(), T()), 0, out=T(3))
    (launch,) = launches_of(node, work_of(node, TARGET), TARGET)
    assert launch.nbytes == 3 * 4 + 3 * 4


@pytest.mark.parametrize(
    ("dim", "kind"), [(0, "cat_vectorized"), (1, "cat_vectorized"), (2, "cat"), (-1, "cat")]
)
def test_a_stack_is_a_cat_of_tensors_with_one_dimension_more(dim, kind):
    """Of float32 [64, 64]: from ``dim`` on an input has 4096, 64 or 1 elements, 16 KiB, 256 or 4 bytes."""
    make = Maker()
    shape = [64, 64]
    shape.insert(dim % 3, 2)
    node = make("aten.stack.default", (T(64, 64), T(64, 64)), dim, out=T(*shape))
    (launch,) = launches_of(node, work_of(node, TARGET), TARGET)
    assert launch.kind == kind


@pytest.mark.parametrize(("addend", "kind"), [(T(4, 16), "memcpy"), (T(16), "vectorized")])
def test_addbmm_moves_its_addend_as_the_rule_says(addend, kind):
    make = Maker()
    node = make("aten.addbmm.default", addend, T(2, 4, 8), T(2, 8, 16), out=T(4, 16))
    work = work_of(node, TARGET)
    first = launches_of(node, work, TARGET)[0]
    assert (work.memcpys, first.kind == "memcpy") == (int(kind == "memcpy"), kind == "memcpy")


def test_no_launch_takes_no_time_and_unknown_launches_have_none():
    make = Maker()
    model = DeviceModel(find_gpu("h200"), TARGET)
    free = make("aten.empty.memory_format", (4,), out=T(4))
    assert model.time(free, work_of(free, TARGET), Traffic(0, 0)).us == 0
    assert model.time(free, Work(kernels=None), Traffic(0, 0)) is None


def test_work_that_is_no_call_is_one_stream_or_a_share_of_the_peak():
    gpu = find_gpu("h200")
    tensor = TensorMeta((2**28,), (1,), "float32", "cuda:0", -1, 2**30, 0, -1)
    stream = Work(kernels=1, reads=(Access(tensor, 2**30),), kind="elementwise")
    rates = gpu.kernels["vectorized"]
    assert device_time(stream, 2**30, gpu).us == pytest.approx(
        rates.floor_us + rates.hbm * 2**30 / (gpu.bandwidth_tb_s * 1e6)
    )
    product = Work(kernels=1, matmul_flops=10**13, kind="matmul", math_dtype="bfloat16")
    assert device_time(product, 0, gpu).us == pytest.approx(1e13 / (989.4e12 * gpu.matmul_efficiency) * 1e6)
    assert device_time(Work(kernels=None), 0, gpu) is None


@pytest.mark.parametrize(
    ("batch", "length", "dim", "causal", "forward_us", "backward_us"),
    [  # Kernels timed on an H200, bf16, 16 heads: the fused one; with the two around it.
        (8, 1024, 64, True, 57.7, 156.7 + 17.95 + 15.1),
        (8, 2048, 64, True, 186.1, 477.1 + 34.9 + 28.5),
        (8, 4096, 64, True, 634.9, 1646.2 + 71.4 + 57.5),
        (4, 2048, 64, False, 160.0, 388.3 + 18.2 + 15.0),
        (8, 2048, 128, True, 262.1, 699.3 + 68.2 + 55.7),
        (4, 2048, 128, False, 217.4, 597.9 + 34.1 + 29.4),
    ],
)
def test_cudnn_attention_takes_what_was_timed(batch, length, dim, causal, forward_us, backward_us):
    def half():
        return T(batch, 16, length, dim, dtype="bfloat16")

    def sums():
        return T(batch, 16, length, 1, dtype="float32")

    make = Maker()
    make(
        "aten._scaled_dot_product_cudnn_attention.default",
        half(), half(), half(), None, True, 0.0, causal, False, out=(half(), sums()),
    )  # fmt: skip
    make(
        "aten._scaled_dot_product_cudnn_attention_backward.default",
        half(), half(), half(), half(), half(), sums(), T(dtype="int64"), T(dtype="int64"), None, None, None,
        length, length, 0.0, causal, out=(half(), half(), half()),
    )  # fmt: skip
    rates = Rates(find_gpu("h200"))
    for node, measured_us in zip(make.graph, (forward_us, backward_us), strict=True):
        listed = launches_of(node, work_of(node, TARGET), TARGET)
        assert sum(rates.launch_us(launch, 0.0)[0] for launch in listed) == pytest.approx(
            measured_us, rel=0.2
        )


@pytest.mark.parametrize(
    ("rows", "depth", "words", "measured_us"),
    [
        (512, 768, 50257, 423.9),
        (1024, 768, 50257, 843.0),
        (4096, 768, 50257, 3368.1),
    ],
)
def test_products_of_odd_rows_load_element_by_element(rows, depth, words, measured_us):
    """A vocabulary's logits as an H200 took them: ``cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1``."""
    make = Maker()
    bf16 = {"dtype": "bfloat16"}
    make(
        "aten.mm.default",
        T(rows, depth, **bf16),
        T(depth, words, stride=(1, depth), **bf16),
        out=T(rows, words, **bf16),
    )
    (node,) = make.graph
    listed = launches_of(node, work_of(node, TARGET), TARGET)
    assert [launch.kind for launch in listed] == ["tensor_op_nt"]
    rates = Rates(find_gpu("h200"))
    assert sum(rates.launch_us(launch, 0.0)[0] for launch in listed) == pytest.approx(measured_us, rel=0.04)


@pytest.mark.parametrize(
    ("left", "right", "ends", "out", "each"),
    [
        # 4 groups of equal parts: 40 rows, 80 columns; of a ragged depth one product; a batch has no ends.
        (T(40, 32), T(4, 32, 8), T(4, dtype="int32"), T(40, 8), (10, 8, 32, 4)),
        (T(4, 16, 32), T(32, 80), T(4, dtype="int32"), T(16, 80), (16, 20, 32, 4)),
        (T(16, 64), T(64, 8), T(4, dtype="int32"), T(4, 16, 8), (16, 8, 64, 1)),
        (T(4, 16, 32), T(4, 32, 8), None, T(4, 16, 8), (16, 8, 32, 4)),
    ],
)
def test_grouped_products_by_their_ragged_side(left, right, ends, out, each):
    _, main = listed(Maker()("aten._grouped_mm.default", left, right, ends, out=out))
    assert (main.m, main.n, main.k, main.batch) == each


@pytest.mark.parametrize(
    ("name", "args", "elements"),
    [
        # Rows of 24: what the indices meet, whatever holds the values.
        ("index_fill_.int_Tensor", (0, T(2, dtype="int64"), T()), 2 * 24),
        ("index_put_.default", ([T(3, dtype="int64")], T(24)), 3 * 24),
        ("index_put_.default", ([T(5, 1, dtype="int64"), T(1, 2, dtype="int64")], T()), 5 * 2),
    ],
)
def test_a_scatter_is_as_large_as_what_it_writes(name, args, elements):
    own = T(1000, 24)
    (kernel,) = listed(Maker()(f"aten.{name}", own, *args, out=own))
    # Values and places are read and written, with an index a row.
    assert (kernel.kind, kernel.nbytes) == ("scatter", 3 * 4 * elements + 8 * elements / 24)


def test_a_number_under_a_mask_passes_over_the_tensor():
    own, mask = T(1000, 24), T(1000, dtype="bool")
    (kernel,) = listed(Maker()("aten.index_put_.default", own, [mask], T(device="cpu"), out=own))
    assert (kernel.kind, kernel.nbytes) == ("strided", 2 * 1000 * 24 * 4 + 1000)
