"""A small convolutional net on CIFAR-sized images, batch norm, SGD with momentum: nothing stops a capture."""

import torch
import torch.nn.functional as F
from torch import nn


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


net = nn.Sequential(
    block(3, 64),
    block(64, 128, 2),
    block(128, 128),
    block(128, 256, 2),
    block(256, 256),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 10),
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
images, labels = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(0, 10, (256,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(net(images), labels).backward()
    optimizer.step()
