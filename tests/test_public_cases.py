"""Public reports of wrong counts, with answers recomputed by hand. A test names the field that its report speaks of.

FLOPs are 2 x multiply-adds; ``matmul_flops`` is what reports speak of, unless said.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optrace
from optrace.cost.rules import work_of
from optrace.diagnosis.fusion import fuse
from optrace.report import Report
from tests.cost.calls import TARGET, Maker, T

#: torch says that hooks on all modules, which tell module paths, see the compiled wrapper too.
COMPILED = pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
DEVICES = pytest.mark.parametrize("device", ["cpu", "cuda"])


def reported(prepare: Callable[[Any], Callable[[], object]], device: str = "cuda") -> Report:
    """The report of what ``prepare(place)`` returns; what it does before is not recorded."""
    with optrace.trace(mode="fake", device=device) as t:
        run = prepare(t.place)
        with optrace.step():
            run()
    return t.report()


def total(report: Report, figure: str) -> float:
    """A complete sum of a figure."""
    found = report.totals[figure]
    assert found.complete, found.missing
    return found.value


def forward(model: nn.Module, *shape: int, device: str = "cuda") -> Report:
    """A forward pass without gradients on floats of ``shape``."""

    def prepare(place: Any) -> Callable[[], object]:
        placed, x = place(model), place(torch.zeros(shape))
        return torch.no_grad()(lambda: placed(x))

    return reported(prepare, device)


def multiply_adds(report: Report) -> float:
    return total(report, "matmul_flops") / 2


def parameters(report: Report) -> int:
    """Elements of all float32 parameters: each storage once."""
    return sum(storage.nbytes for storage in report.graph.storages if storage.kind == "parameter") // 4


def calls(report: Report) -> Counter[str]:
    return Counter(node.label for node in report.graph)


# -- attention -----------------------------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize(
    ("shape", "flops"),
    [
        # pytorch/pytorch#195460: two products of 64 x 64 scores and 64 dimensions, 12 heads.
        ((1, 12, 64, 64), 2 * 12 * 64 * 64 * (64 + 64)),
        # pytorch/pytorch#134804: 2 x 5 heads, 9 x 9 scores; once.
        ((2, 5, 9, 4), 2 * (2 * 5) * 9 * 9 * (4 + 4)),
    ],
)
def test_attention_is_counted_and_once(shape: tuple[int, ...], flops: int, device: str) -> None:
    def prepare(place: Any) -> Callable[[], object]:
        q = place(torch.zeros(shape))
        return lambda: F.scaled_dot_product_attention(q, q, q)

    report = reported(prepare, device)
    assert total(report, "matmul_flops") == flops
    assert flops in (12_582_912, 12_960)
    # Softmax: scale, subtract, exponential, sum, divide.
    scores = shape[0] * shape[1] * shape[2] ** 2
    assert total(report, "flops") == flops + 5 * scores
    assert (total(report, "launches") == 0) == (device == "cpu")


def test_the_length_stands_before_the_heads() -> None:
    # pytorch/pytorch PR#184348: matmul_flops of [batch, length, heads, dim].
    q = T(2, 1024, 16, 64, dtype="float16")
    node = Maker()(
        "aten._flash_attention_forward.default", q, q, q, None, None, 1024, 1024, 0.0, False, False,
        out=T(2, 1024, 16, 64, dtype="float16"),
    )  # fmt: skip
    assert work_of(node, TARGET).matmul_flops == 2 * (2 * 16) * 1024**2 * (64 + 64) == 8_589_934_592


def test_grouped_queries() -> None:
    # pytorch/pytorch PR#177188: matmul_flops by query heads; reads of keys and values by key heads.
    def prepare(place: Any) -> Callable[[], object]:
        q, k = (place(torch.zeros(1, heads, 2048, 128, dtype=torch.bfloat16)) for heads in (32, 8))
        v = place(torch.zeros(1, 8, 2048, 128, dtype=torch.bfloat16))
        return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    report = reported(prepare)
    assert total(report, "matmul_flops") == 2 * 32 * 2048**2 * (128 + 128) == 68_719_476_736
    (fused,) = (cost for cost in report.costs if cost.work.kind == "attention")
    q, k, v = (access.nbytes for access in fused.work.reads)
    assert (k, v) == (q / 4, q / 4) == (2 * 8 * 2048 * 128,) * 2


def test_packed_sequences_are_bounded_by_the_longest() -> None:
    # pytorch/pytorch PR#179500: lengths 128 and 64 need 41,943,040; a fake run knows the longest only.
    q, ends = T(192, 8, 64, dtype="bfloat16"), T(3, dtype="int32")
    node = Maker()(
        "aten._flash_attention_forward.default", q, q, q, ends, ends, 128, 128, 0.0, False, False,
        out=T(192, 8, 64, dtype="bfloat16"),
    )  # fmt: skip
    exact = sum(2 * 8 * length**2 * (64 + 64) for length in (128, 64))
    bound = 2 * 2 * 8 * 128**2 * (64 + 64)
    assert (exact, bound) == (41_943_040, 67_108_864)
    assert work_of(node, TARGET).matmul_flops == bound


def test_flash_attention_forward_and_backward() -> None:
    # Dao-AILab/flash-attention#741: five products backward for two forward.
    def prepare(place: Any) -> Callable[[], object]:
        q = place(torch.zeros(64, 16, 1024, 64, dtype=torch.bfloat16)).requires_grad_()
        return lambda: F.scaled_dot_product_attention(q, q, q).backward(torch.empty_like(q))

    report = reported(prepare)
    by_phase = Counter[str]()
    for node, cost in zip(report.graph, report.costs, strict=True):
        by_phase[node.phase] += cost.work.matmul_flops or 0
    assert by_phase["forward"] == 2 * 64 * 16 * 1024**2 * (64 + 64) == 274_877_906_944
    assert by_phase["backward"] == 2 * 64 * 16 * 1024**2 * 5 * 64 == 687_194_767_360


def test_latent_attention_with_a_causal_mask() -> None:
    # verl-project/verl PR#4959: keys of 192, values of 128; matmul_flops halves the square, as papers do; the
    # report triples the forward pass.
    q, v = (T(1, 128, 4096, dim, dtype="bfloat16") for dim in (192, 128))
    node = Maker()(
        "aten._scaled_dot_product_flash_attention.default", q, q, v, 0.0, True,
        out=T(1, 128, 4096, 128, dtype="bfloat16"),
    )  # fmt: skip
    work = work_of(node, TARGET)
    assert work.matmul_flops == 2 * 128 * 4096**2 // 2 * (192 + 128)
    assert 3 * work.matmul_flops == 2_061_584_302_080
    # flops is what is executed: the diagonal whole, and the softmax.
    assert work.flops == (2 * (192 + 128) + 5) * 128 * (4096 * 4097 // 2)


def test_multi_head_attention_on_the_fast_path() -> None:
    # sovrasov/flops-counter.pytorch#65: one fused op that other counters leave out; projections and both products.
    def prepare(place: Any) -> Callable[[], object]:
        layer, x = (
            place(nn.MultiheadAttention(512, 4, batch_first=True).eval()),
            place(torch.zeros(1, 580, 512)),
        )
        return torch.no_grad()(lambda: layer(x, x, x))

    report = reported(prepare)
    assert multiply_adds(report) == 580 * 512 * 4 * 512 + 2 * 580 * 580 * 512 == 952_647_680
    assert calls(report)["_native_multi_head_attention"] == 1


# -- convolutions --------------------------------------------------------------------------------------------


def trained(model: nn.Module, *shape: int, input_gradient: bool = True, repeats: int = 1) -> Report:
    """Forward and backward passes of a model."""

    def prepare(place: Any) -> Callable[[], object]:
        placed, x = place(model), place(torch.zeros(shape)).requires_grad_(input_gradient)

        def run() -> None:
            for _ in range(repeats):
                placed(x).sum().backward()

        return run

    return reported(prepare)


def test_a_transposed_convolution_counts_the_same_in_each_repeat() -> None:
    # pytorch/pytorch#119806: matmul_flops of the forward and the weights' gradient, a repeat.
    once = 2 * 6 * (30 * 96) * 192 * 384 * (2 * 2)
    assert once == 10_192_158_720
    for repeats in (1, 3):
        model = nn.ConvTranspose2d(192, 384, 2, 2)
        report = trained(model, 6, 192, 30, 96, input_gradient=False, repeats=repeats)
        assert total(report, "matmul_flops") == repeats * 2 * once == repeats * 20_384_317_440


@pytest.mark.parametrize(
    ("model", "shape", "flops"),
    [
        # pytorch/pytorch PR#183405: each output channel sees 8 / 4 input channels.
        (nn.Conv2d(8, 16, 3, padding=1, groups=4), (2, 8, 10, 10), 3 * 2 * 2 * 16 * 10 * 10 * (8 // 4) * 9),
        # Depthwise: one.
        (nn.Conv2d(32, 32, 3, padding=1, groups=32), (2, 32, 16, 16), 3 * 2 * 2 * 32 * 16 * 16 * 9),
    ],
)
def test_a_grouped_convolution_forward_and_backward(
    model: nn.Module, shape: tuple[int, ...], flops: int
) -> None:
    assert total(trained(model, *shape), "matmul_flops") == flops
    assert flops in (345_600, 884_736)


@pytest.mark.parametrize(
    ("model", "shape", "macs", "more"),
    [
        # facebookresearch/fvcore#78.
        (nn.ConvTranspose2d(32, 1, 3), (1, 32, 1, 1), 32 * 9, 9),
        # sovrasov/flops-counter.pytorch#149: an addition of the bias an output element.
        (nn.ConvTranspose2d(3, 1, 2, 2), (1, 3, 2, 2), 3 * 2 * 2 * 4, 4 * 4),
        # deepspeedai/DeepSpeed PR#8323.
        (nn.ConvTranspose2d(4, 6, 4, 2, 1), (2, 4, 8, 8), 2 * 64 * 4 * 6 * 16, 2 * 6 * 16 * 16),
        (nn.ConvTranspose2d(4, 4, 3, 2, groups=4), (2, 4, 8, 8), 2 * 64 * 4 * 1 * 9, 2 * 4 * 17 * 17),
        (nn.ConvTranspose2d(6, 6, 2, 2, groups=3), (2, 6, 8, 8), 2 * 64 * 6 * 2 * 4, 2 * 6 * 16 * 16),
    ],
)
def test_a_transposed_convolution(model: nn.Module, shape: tuple[int, ...], macs: int, more: int) -> None:
    report = forward(model, *shape)
    assert multiply_adds(report) == macs
    assert macs in (288, 48, 49_152, 4_608, 6_144)
    assert total(report, "flops") == 2 * macs + more


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.dropped = nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.dropped(self.bn3(self.conv3(out)))
        out += self.shortcut(x)
        return self.relu(out)


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        out += self.shortcut(x)
        return self.relu(out)


def resnet(block: type[Bottleneck] | type[Basic], depths: tuple[int, ...]) -> nn.Module:
    """ResNet as published (and as torchvision builds it)."""
    grows = 4 if block is Bottleneck else 1
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inputs = 64
    for stage, depth in enumerate(depths):
        for number in range(depth):
            layers.append(block(inputs, 64 << stage, 2 if stage and not number else 1))
            inputs = grows * (64 << stage)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*layers).eval()


def test_resnet_50() -> None:
    # Lyken17/pytorch-OpCounter#17: matmul_flops of convolutions and the classifier, nothing of batch norm mixed in.
    # johnmarktaylor91/torchlens PR#167: in-place ReLUs write their input, Identity adds no call.
    report = forward(resnet(Bottleneck, (3, 4, 6, 3)), 1, 3, 224, 224)
    assert multiply_adds(report) == 4_089_184_256
    assert parameters(report) == 25_557_032
    found = calls(report)
    assert (found["convolution"], found["relu_"], found["add_"]) == (53, 49, 16)
    assert sum(count for name, count in found.items() if "batch_norm" in name) == 53
    for node in report.graph:
        if node.label == "relu_":
            assert node.writes == (True,)
            assert node.outputs[0].storage == node.inputs[0].storage
    assert not {"identity", "alias", "clone"} & found.keys()
    named = {node.module.cls for node in report.graph if node.module}
    assert "ReLU" in named
    assert "Identity" not in named


def test_resnet_18_counts_leaves_once() -> None:
    # TylerYep/torchinfo#39: parents are sums of their children, not more.
    report = forward(resnet(Basic, (2, 2, 2, 2)), 1, 3, 224, 224)
    assert multiply_adds(report) == 1_814_073_344


# -- linear layers, recurrent nets, embeddings ---------------------------------------------------------------


def test_the_parts_of_a_perceptron() -> None:
    # facebookresearch/fvcore#108: 668,672 multiply-adds are 1,337,344 FLOPs; flops adds biases and activations.
    report = forward(
        nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        1,
        784,
    )
    macs = 784 * 512 + 512 * 512 + 512 * 10
    assert (macs, multiply_adds(report)) == (668_672, macs)
    assert total(report, "matmul_flops") == 1_337_344
    assert total(report, "flops") == 1_337_344 + (512 + 512 + 10) + (512 + 512)


def test_a_batched_product_with_an_addend() -> None:
    # facebookresearch/fvcore#117.
    def prepare(place: Any) -> Callable[[], object]:
        a, x, y = (place(torch.zeros(2, *shape)) for shape in ((3, 5), (3, 4), (4, 5)))
        return lambda: torch.baddbmm(a, x, y)

    report = reported(prepare)
    assert total(report, "matmul_flops") == 2 * 2 * 3 * 4 * 5 == 240
    assert total(report, "flops") == 240 + 2 * 3 * 5


@COMPILED
def test_a_compiled_module_counts_as_often_as_it_runs() -> None:
    # pytorch/pytorch#124196: 20 forward and backward passes, all of them in the module's own calls.
    def prepare(place: Any) -> Callable[[], object]:
        layer = place(nn.Linear(3, 3))
        compiled = torch.compile(layer, backend="eager")
        x = place(torch.zeros(3, 3)).requires_grad_()

        def run() -> None:
            for _ in range(20):
                compiled(x).sum().backward()

        return run

    report = reported(prepare)
    assert total(report, "matmul_flops") == 20 * 3 * (2 * 3 * 3 * 3) == 3_240
    inside = sum(
        cost.work.matmul_flops or 0
        for node, cost in zip(report.graph, report.costs, strict=True)
        if node.module is not None and node.module.cls in ("Linear", "OptimizedModule")
    )
    assert inside == 3_240


@COMPILED
def test_a_compiled_model_on_one_row() -> None:
    # pytorch/pytorch#128199.
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 32), nn.LayerNorm(32))
    report = forward(torch.compile(model, backend="eager"), 32)
    assert total(report, "matmul_flops") == 2 * 32 * 64 + 2 * 64 * 32 == 8_192


@COMPILED
def test_a_wrapper_and_an_identity_add_nothing() -> None:
    # sovrasov/flops-counter.pytorch#110.
    model = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Identity())
    report = forward(torch.compile(model, backend="eager"), 1, 1000)
    assert multiply_adds(report) == 1000 * 1000
    assert total(report, "flops") == 2 * 1000 * 1000


@pytest.mark.parametrize(
    ("layer", "rows", "macs", "numel"),
    [
        # Lyken17/pytorch-OpCounter#217 and #71: exact integers.
        (nn.Linear(10, 11), 1, 110, 10 * 11 + 11),
        (nn.Linear(8153, 7533, bias=False, device="meta"), 1, 8153 * 7533, 61_416_549),
    ],
)
def test_parameters_of_a_layer(layer: nn.Linear, rows: int, macs: int, numel: int) -> None:
    if layer.weight.is_meta:
        layer = layer.to_empty(device="cpu")
    report = forward(layer, rows, layer.in_features)
    assert multiply_adds(report) == macs
    assert parameters(report) == numel


@DEVICES
@pytest.mark.parametrize(("length", "macs"), [(100, 377_036_800), (10, 37_703_680)])
def test_an_lstm_counts_by_length(length: int, macs: int, device: str) -> None:
    # TylerYep/torchinfo#32: on CPU a layer is one fused op, on CUDA the whole net is.
    def prepare(place: Any) -> Callable[[], object]:
        table, net, head = (
            place(layer) for layer in (nn.Embedding(20, 300), nn.LSTM(300, 512, 2), nn.Linear(512, 20))
        )
        words = place(torch.zeros(length, 1, dtype=torch.long))
        return torch.no_grad()(lambda: head(net(table(words))[0]))

    report = reported(prepare, device)
    layers = 4 * 512 * (300 + 512), 4 * 512 * (512 + 512)
    assert multiply_adds(report) == length * (sum(layers) + 512 * 20) == macs
    # Besides: 21 a hidden unit and step, and the bias of the last layer.
    assert total(report, "flops") == 2 * macs + length * (2 * 512 * 21 + 20)


@pytest.mark.parametrize(("shape", "rows"), [((5, 10, 3), 50), ((5, 100, 100, 3), 50_000)])
def test_rows_in_front_of_a_linear_layer_count(shape: tuple[int, ...], rows: int) -> None:
    # TylerYep/torchinfo#77.
    assert multiply_adds(forward(nn.Linear(3, 8), *shape)) == rows * 3 * 8
    assert rows * 3 * 8 in (1_200, 1_200_000)


def test_a_shared_activation_stands_below_each_of_its_parents() -> None:
    # TylerYep/torchinfo PR#396: 120 parameters, six relu calls, two in each block.
    class Block(nn.Module):
        def __init__(self, activation: nn.Module) -> None:
            super().__init__()
            self.first, self.second, self.activation = nn.Linear(4, 4), nn.Linear(4, 4), activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.activation(self.second(self.activation(self.first(x))))

    shared = nn.ReLU()
    report = forward(nn.Sequential(*(Block(shared) for _ in range(3))), 1, 4)
    assert parameters(report) == 3 * 2 * (4 * 4 + 4) == 120
    assert (calls(report)["addmm"], calls(report)["relu"]) == (6, 6)
    paths = Counter(node.module.path for node in report.graph if node.module and node.label == "relu")
    assert paths == {f"Sequential.{number}.activation": 2 for number in range(3)}


def test_one_layer_called_three_times() -> None:
    # deepspeedai/DeepSpeed#7256: matmul_flops of every call, parameters once.
    def prepare(place: Any) -> Callable[[], object]:
        layer, x = place(nn.Linear(100, 100)), place(torch.zeros(3, 100))
        return torch.no_grad()(lambda: [layer(chunk) for chunk in x.chunk(3)])

    report = reported(prepare)
    assert total(report, "matmul_flops") == 3 * 2 * 100 * 100 == 60_000
    assert parameters(report) == 100 * 100 + 100


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_is_a_gather_tied_or_not(tied: bool) -> None:
    # huggingface/trl PR#6709: flops 0 for the embedding; tying changes parameter bytes, not FLOPs.
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50257, 768)
            self.head = nn.Linear(768, 50257, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(words))

    def prepare(place: Any) -> Callable[[], object]:
        model, words = place(Head()), place(torch.zeros(1, 5, dtype=torch.long))
        return torch.no_grad()(lambda: model(words))

    report = reported(prepare)
    (gather,) = (
        cost for node, cost in zip(report.graph, report.costs, strict=True) if node.label == "embedding"
    )
    assert gather.work.flops == 0
    assert total(report, "matmul_flops") == 5 * 2 * 768 * 50257 == 5 * 77_194_752
    assert parameters(report) == (1 if tied else 2) * 50257 * 768


@pytest.mark.parametrize("steps", [1, 4])
def test_flops_a_step_do_not_grow_with_the_steps(steps: int) -> None:
    # pytorch/pytorch#145947.
    with optrace.trace(mode="fake") as t:
        model = t.place(nn.Linear(64, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.zeros(16, 64, device="cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    # Forward, and the weights' gradient.
    assert total(t.report(), "matmul_flops") == steps * 2 * (2 * 16 * 64 * 32)


def test_a_difference_costs_what_a_sum_costs() -> None:
    # pytorch/pytorch#82951: flops and tensor_bytes.
    def figures(op: Callable[[Any, Any], Any]) -> tuple[float, float, float]:
        def prepare(place: Any) -> Callable[[], object]:
            a, b = place(torch.zeros(2, 3)), place(torch.zeros(2, 3))
            return lambda: op(a, b)

        report = reported(prepare)
        return tuple(total(report, name) for name in ("flops", "tensor_bytes", "launches"))  # type: ignore[return-value]  # three names

    assert figures(torch.add) == figures(torch.sub) == (2 * 3, 3 * 6 * 4, 1)


# -- whole models of transformers ----------------------------------------------------------------------------


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the model comes from transformers")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_opt_125m_the_same_in_each_of_three_passes(transformers: Any, attention: str) -> None:
    # deepspeedai/DeepSpeed#7413: matmul_flops of dense attention; a fused causal mask halves the square.
    config = transformers.OPTConfig(attn_implementation=attention)
    tokens, square = 32 * 1024, 32 * 1024**2
    layer = 2 * tokens * (4 * 768 * 768 + 2 * 768 * 3072)
    dense = 2 * square * (768 + 768)
    head = 2 * tokens * 768 * config.vocab_size
    assert 12 * (layer + dense) + head == 9_333_500_805_120

    def prepare(place: Any) -> Callable[[], object]:
        model = place(transformers.OPTForCausalLM(config).eval())
        ids = place(torch.zeros(32, 1024, dtype=torch.long))
        return torch.no_grad()(lambda: [model(input_ids=ids) for _ in range(3)])

    fused = dense // 2 if attention == "sdpa" else dense
    assert total(reported(prepare), "matmul_flops") == 3 * (12 * (layer + fused) + head)


def test_clip_vision_tower(transformers: Any) -> None:
    # MrYxJ/calculate-flops.pytorch#36: attention's products are not left out.
    config = transformers.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336,
        patch_size=14, projection_dim=768,
    )  # fmt: skip

    def prepare(place: Any) -> Callable[[], object]:
        model = place(transformers.CLIPVisionModel(config).eval())
        x = place(torch.zeros(1, 3, 336, 336))
        return torch.no_grad()(lambda: model(pixel_values=x))

    report = reported(prepare)
    length = 24 * 24 + 1
    attention = 24 * 2 * length**2 * 1024
    assert attention == 16_364_126_208
    layers = 24 * length * (4 * 1024 * 1024 + 2 * 1024 * 4096)
    patches = 24 * 24 * 1024 * 3 * 14 * 14
    assert multiply_adds(report) == patches + layers + attention == 190_959_108_096
    fused = sum(cost.work.matmul_flops or 0 for cost in report.costs if cost.work.kind == "attention")
    assert fused == 2 * attention


def test_bert_with_a_mask_of_ones_takes_the_path_without_a_mask(transformers: Any) -> None:
    # pytorch/pytorch#126738: the calls of the real run, where a mask of ones is no mask.
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )

    def prepare(place: Any) -> Callable[[], object]:
        model = place(transformers.BertModel(config).eval())
        ids = place(torch.zeros(2, 8, dtype=torch.long))
        return torch.no_grad()(lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids)))

    (attention,) = (node for node in reported(prepare).graph if "scaled_dot_product" in node.op)
    assert attention.arg("attn_bias") is None


# -- a GPU that is not there ---------------------------------------------------------------------------------


def test_a_product_squared_and_summed_backward() -> None:
    # pytorch/pytorch#92627: aborts on plain fake tensors.
    kept: list[torch.Tensor] = []

    def prepare(place: Any) -> Callable[[], object]:
        x, p = place(torch.zeros(8, 4)), place(torch.zeros(4, 2)).requires_grad_()
        kept.append(p)
        return lambda: (x @ p).square().sum().backward()

    report = reported(prepare)
    assert kept[0].grad is not None
    assert kept[0].grad.shape == (4, 2)
    assert total(report, "matmul_flops") == 2 * 8 * 4 * 2 + 2 * 4 * 8 * 2 == 256


def test_a_copy_to_a_gpu_without_an_index() -> None:
    # pytorch/pytorch#157869: memcpys, and the tensor's device.
    def prepare(_place: Any) -> Callable[[], object]:
        x = torch.randn(1, 1, device="cpu")
        return lambda: x.to("cuda")

    report = reported(prepare)
    (copy,) = report.graph
    assert copy.outputs[0].device == "cuda:0"
    assert (total(report, "memcpys"), total(report, "kernels")) == (1, 0)


def test_converting_and_moving_a_module_keeps_a_tie() -> None:
    # pytorch/pytorch PR#184976.
    with optrace.trace(mode="fake"):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        model.half().to("cuda")
        assert model[0].weight is model[1].weight
        assert (model[0].weight.dtype, str(model[0].weight.device)) == (torch.float16, "cuda:0")


def test_a_foreach_over_a_large_model_moves_bytes_and_takes_none() -> None:
    # pytorch/pytorch#123461: three reads and a write of every element in tensor_bytes, memory of the process flat.
    shapes = [(4096, 4096)] * 4 + [(11008, 4096)] * 3
    grew = 0

    def prepare(_place: Any) -> Callable[[], object]:
        a, b, c = ([torch.empty(s, device="cuda") for _ in range(32) for s in shapes] for _ in range(3))

        def run() -> None:
            nonlocal grew
            gc.collect()
            before = resident_bytes()
            torch._foreach_addcdiv_(a, b, c, [0.5] * len(a))
            grew = resident_bytes() - before

        return run

    report = reported(prepare)
    elements = 32 * (4 * 4096 * 4096 + 3 * 11008 * 4096)
    assert total(report, "tensor_bytes") == (3 + 1) * 4 * elements
    assert abs(grew) < 100 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_pinning_launches_nothing_and_keeps_the_values() -> None:
    # pytorch/pytorch#123252.
    def prepare(_place: Any) -> Callable[[], object]:
        x = torch.arange(3, device="cpu")

        def run() -> None:
            assert x.pin_memory().tolist() == [0, 1, 2]

        return run

    assert total(reported(prepare), "launches") == 0
    with optrace.trace(mode="fake"):
        loader = DataLoader(TensorDataset(torch.arange(4, device="cpu")), batch_size=2, pin_memory=True)
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3]]


# -- edges and calls -----------------------------------------------------------------------------------------


def test_both_uses_of_a_result_are_edges_from_it() -> None:
    # google-ai-edge/model-explorer#669: edges from the one output, with its shape.
    def prepare(place: Any) -> Callable[[], object]:
        a, b = place(torch.zeros(2, 3)), place(torch.zeros(4, 3))

        def run() -> None:
            y = torch.cat((a, b))
            y.sin()
            y.cos()

        return run

    graph = reported(prepare).graph
    assert [node.label for node in graph] == ["cat", "sin", "cos"]
    (y,) = graph.outputs(0)
    assert [(edge.src, edge.dst, edge.tensor, edge.kind) for edge in graph.edges] == [
        (0, 1, y, "data"),
        (0, 2, y, "data"),
    ]
    assert graph.tensor(y).shape == (6, 3)


def test_every_use_of_a_tensor_by_later_modules_is_an_edge() -> None:
    # mert-kurttutan/torchview#44, #73: side outputs, kept in a list by no module and fused at the end.
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
            self.sides = nn.ModuleList(nn.Conv2d(4, 1, 1) for _ in range(3))
            self.fuse = nn.Conv2d(3, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outs, first = [], None
            for stage, side in zip(self.stages, self.sides, strict=True):
                x = stage(x)
                first = x if first is None else first
                outs.append(side(x + first))
            return self.fuse(torch.cat(outs, 1))

    report = forward(Detector(), 1, 4, 8, 8)
    graph = report.graph
    edges = {(edge.src, edge.dst) for edge in graph.edges}
    labels = [node.label for node in graph]
    convolutions = [number for number, label in enumerate(labels) if label == "convolution"]
    additions = [number for number, label in enumerate(labels) if label == "add"]
    stages, sides, fuse = convolutions[0:6:2], convolutions[1:6:2], convolutions[6]
    cat = labels.index("cat")
    # The first stage's result goes to each addition, and to the second stage.
    expected = {(stages[0], addition) for addition in additions} | {(stages[0], stages[1])}
    expected |= {(stages[1], additions[1]), (stages[1], stages[2]), (stages[2], additions[2])}
    expected |= set(zip(additions, sides, strict=True)) | {(side, cat) for side in sides} | {(cat, fuse)}
    assert edges == expected
    assert {number for edge in edges for number in edge} == set(range(len(graph)))


# -- what fusion would save ----------------------------------------------------------------------------------


def test_geglu_in_two_kernels() -> None:
    # huggingface/blog PR#3408: launches and tensor_bytes, in eager and of the fusion cure: two reads and a write.
    def prepare(place: Any) -> Callable[[], object]:
        g, u = (place(torch.zeros(8192, 3072, dtype=torch.bfloat16)) for _ in range(2))
        return lambda: F.gelu(g) * u

    report = reported(prepare)
    each = 2 * 8192 * 3072
    assert total(report, "launches") == 2
    assert total(report, "tensor_bytes") == (2 + 3) * each == 251_658_240
    (fused,) = fuse(report.priced).steps
    assert (fused.work.launches, fused.work.tensor_bytes) == (1, 3 * each)
    assert 3 * each == 150_994_944


@pytest.mark.parametrize(("dtype", "launches"), [(torch.float32, 9), (torch.bfloat16, 10)])
def test_gemmas_rms_norm_in_ops(dtype: torch.dtype, launches: int) -> None:
    # sgl-project/sglang PR#32261: to float, square, mean, add, rsqrt, multiply, 1 + weight, multiply, back; a weight
    # in half precision is converted too. ``launches`` in eager, and 1 of the fusion cure.
    def prepare(place: Any) -> Callable[[], object]:
        x, weight = place(torch.zeros(64, 512, dtype=torch.bfloat16)), place(torch.zeros(512, dtype=dtype))

        def run() -> torch.Tensor:
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            return (y * (1.0 + weight.float())).type_as(x)

        return run

    report = reported(prepare)
    assert total(report, "launches") == launches
    (fused,) = fuse(report.priced).steps
    assert fused.work.launches == 1
