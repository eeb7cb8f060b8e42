"""Record once, price for several GPUs: counts stay, times and what bounds the run change."""

import torch
from torch import nn

import optrace
from optrace.rendering import read_report

with optrace.trace(mode="fake") as t:
    model = t.place(nn.TransformerEncoderLayer(512, 8, batch_first=True).bfloat16())
    x = t.place(torch.randn(8, 256, 512, dtype=torch.bfloat16))
    model(x).sum().backward()
optrace.render(t.report(), "layer.json")

for gpu in ("h200", "h100", "a100-80gb", "l4"):
    report = read_report("layer.json", gpu=gpu)
    print(f"{report.pricing.gpu.name:28} ~{report.timeline.wall_us:7.0f} us  {report.verdict.bottleneck}")
