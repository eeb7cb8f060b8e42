"""Device time by the roofline: arithmetic on the page."""

import pytest

from optrace.cost.device import KIND_SHARES, device_time
from optrace.cost.profiles import find_gpu
from optrace.cost.work import Access, Work
from optrace.graph import TensorMeta

GPU = find_gpu("h200")


def work(kind, flops, *, dtype="bfloat16", kernels=1, nbytes=0):
    tensor = TensorMeta((nbytes,), (1,), "uint8", "cuda:0", 0, nbytes, 0, 0)
    reads = (Access(tensor, nbytes),) if nbytes else ()
    return Work(kernels=kernels, flops=flops, matmul_flops=flops, kind=kind, math_dtype=dtype, reads=reads)


def test_a_large_product_takes_its_arithmetic():
    time = device_time(work("matmul", 2 * 4000**3), 0, GPU)
    assert time.roof == "compute"
    assert time.roofline_us == pytest.approx(2 * 4000**3 / 989.4e12 * 1e6)
    shares = KIND_SHARES["matmul"]
    assert time.us == pytest.approx(
        GPU.kernel_floor_us * shares.floor + time.roofline_us / (GPU.matmul_efficiency * shares.math)
    )


def test_a_kind_reaches_its_share_of_the_bandwidth():
    stream, reduction = (
        device_time(work(k, 1, nbytes=10**9), 10**9, GPU) for k in ("elementwise", "reduction")
    )
    shares = KIND_SHARES["reduction"]
    assert (reduction.us - GPU.kernel_floor_us * shares.floor) * shares.bandwidth == pytest.approx(
        stream.us - GPU.kernel_floor_us
    )


def test_a_stream_takes_its_bytes():
    time = device_time(work("elementwise", 10**6, nbytes=10**9), 10**9, GPU)
    assert time.roof == "memory"
    assert time.roofline_us == pytest.approx(10**9 / 4.8e12 * 1e6)
    assert time.us == pytest.approx(GPU.kernel_floor_us + time.roofline_us / GPU.bandwidth_efficiency)


def test_bytes_that_stay_in_l2_take_l2_time():
    time = device_time(work("elementwise", 1, nbytes=7 * 10**6), 0, GPU)
    assert time.us == pytest.approx(GPU.kernel_floor_us + 7 / GPU.l2_bandwidth_tb_s)


def test_float32_convolutions_run_in_tf32_and_products_do_not():
    product = device_time(work("matmul", 10**12, dtype="float32"), 0, GPU)
    convolution = device_time(work("convolution", 10**12, dtype="float32"), 0, GPU)
    assert product.roofline_us == pytest.approx(10**12 / 66.9e12 * 1e6)
    assert convolution.roofline_us == pytest.approx(10**12 / 494.7e12 * 1e6)


def test_no_launch_takes_no_time_and_unknown_launches_have_none():
    assert device_time(work("none", 0, kernels=0), 0, GPU).us == 0
    assert device_time(work("other", None, kernels=None), 0, GPU) is None
