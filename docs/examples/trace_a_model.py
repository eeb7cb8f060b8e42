"""Trace a model, forward and backward, with no GPU, and write the picture and the page."""

import torch
from torch import nn

import optrace

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
x = torch.randn(64, 256)

with optrace.trace(gpu="h100", mode="fake") as t:
    model, x = t.place(model), t.place(x)
    model(x).square().mean().backward()

report = t.report()
print(report.verdict.sentence)
print(
    f"{report.totals['launches'].value:.0f} launches, {report.totals['hbm_bytes'].value / 1e6:.1f} MB of HBM traffic"
)
for note in optrace.render(report, "model.svg") + optrace.render(report, "model.html"):
    print(note)
