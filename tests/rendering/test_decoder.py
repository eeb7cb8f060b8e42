"""A training step of a deep decoder is a picture that can be read."""

import torch
from torch import nn
from torch.nn import functional

from optrace.cost.profiles import pricing
from optrace.rendering.collapse import Folder
from optrace.rendering.options import DrawOptions
from optrace.report import report
from optrace.tracing import open_session

LAYERS = 126


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.attention, self.after = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.layers = nn.ModuleList(Layer(32) for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def test_126_layers_forward_backward_and_optimizer_are_fewer_than_60_nodes():
    with open_session("fake") as session:
        model = Decoder().cuda()
        tokens = torch.randint(0, 100, (2, 16), device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        with session.recording():
            model(tokens).backward()
            optimizer.step()
        graph = session.graph
    picture = next(Folder(report(graph, pricing("h200", "default")), DrawOptions()).pictures())
    assert len(graph) > LAYERS * 30
    assert len(picture.graph) < 60
    assert picture.phases == ("forward", "backward", "optimizer")
    boxes = {part.partition(" ")[0] for node in picture.nodes for part in (*node.group, node.label)}
    assert any("0-125" in box for box in boxes), boxes
