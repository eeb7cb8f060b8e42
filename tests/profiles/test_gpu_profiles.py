"""GPU profiles: names find the right one, rates are dense and hang together, every number has a source."""

from __future__ import annotations

import msgspec
import pytest

from optrace.cost.profiles import (
    GpuProfile,
    UnknownProfileError,
    find_gpu,
    gpu_profiles,
    with_kernel_rates,
)

PROFILES = list(gpu_profiles().values())
every_profile = pytest.mark.parametrize("gpu", PROFILES, ids=lambda gpu: gpu.key)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100 SXM", "h100"),
        ("h100-sxm5-80gb", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("h100_pcie", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("H200 SXM", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("a100", "a100-80gb"),
        ("a100-40", "a100-40gb"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("rtx-3090", "rtx3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI300X", "mi300x"),
    ],
)
def test_a_name_finds_its_profile(name: str, key: str) -> None:
    assert find_gpu(name).key == key


@pytest.mark.parametrize(
    "name", ["L40", "GB200", "MI300A", "H20", "A10", "RTX 4080", "Tesla V100", "", "gpu"]
)
def test_another_gpu_is_not_taken_for_one_of_these(name: str) -> None:
    with pytest.raises(UnknownProfileError, match=r"no GPU profile fits .* \(one of a100-40gb, .*rtx4090\)"):
        find_gpu(name)


@every_profile
def test_no_spelling_belongs_to_two_profiles(gpu: GpuProfile) -> None:
    for spelling in (gpu.key, gpu.name, *gpu.aliases):
        assert find_gpu(spelling) is gpu


@every_profile
def test_rates_are_dense(gpu: GpuProfile) -> None:
    """A sparse rate is twice the dense one, so it would break the ladder of factors of two between dtypes."""
    rate = gpu.peak_tflops
    assert rate["float16"] == rate["bfloat16"]
    assert rate["bfloat16"] / rate["tf32"] == pytest.approx(2, rel=0.05)
    eight_bit = {key: rate[key] / rate["bfloat16"] for key in ("float8", "int8") if key in rate}
    # GeForce runs 8-bit integers at four times its bf16 rate, because bf16 has to accumulate in fp32 there.
    wanted = {"int8": 4.0} if "GeForce" in gpu.name else {}
    assert eight_bit == {key: pytest.approx(wanted.get(key, 2.0), rel=0.02) for key in eight_bit}
    assert rate["float64"] <= rate.get("float64_matmul", rate["float64"]) <= rate["float32"]
    assert rate["float32"] <= rate["tf32"]
    assert ("float8" in rate) == (gpu.capability >= (8, 9))


@every_profile
def test_numbers_are_of_the_right_order(gpu: GpuProfile) -> None:
    assert 10 < gpu.ridge_point("bfloat16") < 500
    assert gpu.l2_bandwidth_tb_s > gpu.bandwidth_tb_s
    assert 0.5 <= gpu.bandwidth_efficiency <= 1
    assert 0.5 <= gpu.matmul_efficiency <= 1
    assert 1 <= gpu.kernel_floor_us <= 5
    assert gpu.l2_bytes < gpu.memory_bytes / 20
    assert 50 <= gpu.sm_count <= 400


@every_profile
def test_every_number_has_a_source_and_estimates_say_so(gpu: GpuProfile) -> None:
    assert any(word in gpu.source for word in ("datasheet", "data sheet", "whitepaper", "Brief"))
    assert "dense" in gpu.source
    assert gpu.measured or "estimates" in gpu.note


def test_the_gpus_of_the_documentation_are_there() -> None:
    assert set(gpu_profiles()) == {
        "a100-40gb",
        "a100-80gb",
        "a100-80gb-pcie",
        "b200",
        "h100",
        "h100-pcie",
        "h200",
        "l4",
        "l40s",
        "mi300x",
        "rtx3090",
        "rtx4090",
    }


def test_amd_says_whose_op_stream_is_traced() -> None:
    assert "CUDA's, not ROCm's" in find_gpu("mi300x").note


def test_a_profile_that_was_saved_before_a_kind_was_told_apart_takes_the_measured_one() -> None:
    whole = find_gpu("h200")
    rows = msgspec.structs.replace(whole.kernels["rows"], hbm=9.0)
    saved = msgspec.structs.replace(whole, kernels={"rows": rows})
    filled = with_kernel_rates(saved)
    assert filled.kernels["rows"].hbm == 9.0
    assert filled.kernels["attention_dot"] == whole.kernels["attention_dot"]
    assert with_kernel_rates(whole) is whole


@every_profile
def test_a_complex_multiply_add_takes_four_real_ones(gpu: GpuProfile) -> None:
    for real, made_of in (("float32", "complex64"), ("float64", "complex128")):
        assert gpu.peak_flops(made_of, matmul=True) == gpu.peak_flops(real, matmul=True) / 4
        assert gpu.peak_flops(made_of, matmul=False) == gpu.peak_flops(real, matmul=False)
