"""Public reports of tracing without a GPU, with their right answers."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.standin.recording import names, recorded


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_bert_with_a_mask_of_ones_takes_the_path_without_a_mask(gpu):
    # pytorch/pytorch#126738
    transformers = pytest.importorskip("transformers", reason="BERT comes from transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = transformers.BertModel(config).cuda().eval()
    ids = torch.zeros(2, 8, dtype=torch.long, device="cuda")
    with torch.no_grad():
        calls = recorded(gpu, lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids)))
    (attention,) = [c for c in calls if c.op == "aten._scaled_dot_product_efficient_attention.default"]
    assert attention.args[3] is None


def test_matmul_square_sum_backward_on_fake_cuda(gpu):
    # pytorch/pytorch#92627: aborts the process on plain fake tensors
    p = torch.randn(4, 2, device="cuda", requires_grad=True)
    x = torch.randn(8, 4, device="cuda")
    calls = recorded(gpu, lambda: (x @ p).square().sum().backward())
    assert p.grad.shape == (4, 2)
    multiply_adds = [
        c.args[0][1][0] * c.args[0][1][1] * c.args[1][1][1] for c in calls if c.op == "aten.mm.default"
    ]
    assert sum(2 * n for n in multiply_adds) == 2 * 8 * 4 * 2 + 2 * 4 * 8 * 2  # forward, gradient of p: 256


def test_to_cuda_without_an_index(gpu):
    # pytorch/pytorch#157869
    x = torch.randn(1, 1)
    (copy,) = recorded(gpu, lambda: x.to("cuda"))
    assert copy.op == "aten._to_copy.default"
    assert copy.args[0][4] == "cpu"
    assert copy.out[4] == "cuda"
    assert str(x.to("cuda").device) == "cuda:0"


def test_casting_and_moving_a_module_keeps_a_tie(gpu):
    # pytorch/pytorch PR#184976
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.half().to("cuda")
    assert model[0].weight is model[1].weight
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    assert (model[0].weight.dtype, str(model[0].weight.device)) == (torch.float16, "cuda:0")


def test_foreach_over_llama_7b_allocates_nothing(gpu):
    # pytorch/pytorch#123461
    shapes = [(4096, 4096)] * 4 + [(11008, 4096)] * 3
    a, b, c = ([torch.empty(s, device="cuda") for _ in range(32) for s in shapes] for _ in range(3))
    torch._foreach_addcdiv_(a[:1], b[:1], c[:1], [0.5])
    gc.collect()
    before = resident_bytes()
    (call,) = recorded(gpu, lambda: torch._foreach_addcdiv_(a, b, c, [0.5] * len(a)))
    assert abs(resident_bytes() - before) < 100 << 20
    assert call.op == "aten._foreach_addcdiv_.ScalarList"


def test_pinning_makes_no_kernel_and_keeps_the_values(gpu):
    # pytorch/pytorch#123252
    x = torch.arange(3)
    assert names(gpu, lambda: x.pin_memory()) == ["is_pinned", "_pin_memory"]
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert pinned.tolist() == [0, 1, 2]
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, pin_memory=True)
    assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3]]
