"""A ResNet basic block with a strided shortcut, in training mode.

    optrace samples/resnet_block.py --out graph.svg
    optrace samples/resnet_block.py --out graph.svg --train --optimizer sgd

**What the picture shows.** The trunk (conv, batch norm, relu, conv, batch norm) beside the shortcut (a strided
1x1 conv and its batch norm), joined by an in-place add and an in-place relu: both write the tensor that
they read, and the edges say so. Only the second 3x3 convolution is bound by math. All else is bound by memory, the strided
convolutions too: their math runs in TF32, and cuDNN copies their NCHW tensors into another layout and back around
it (several launches a convolution).
"""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu_(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu_(y)


model = BasicBlock(64, 128, stride=2)


def get_inputs(batch: int = 64) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 64, 56, 56),)
