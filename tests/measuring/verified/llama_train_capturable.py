"""Two decoder layers written by hand (RMS norm, rotary, sdpa, SwiGLU), autocast, AdamW(capturable=True)."""

import torch
import torch.nn.functional as F
from torch import nn

D, H, T, B, V = 512, 8, 256, 4, 8000


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(*s, bias=False) for s in ((D, 4 * D), (D, 4 * D), (4 * D, D))
        )

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)

        def turn(t):
            return t * cos + torch.cat((-t[..., D // H // 2 :], t[..., : D // H // 2]), -1) * sin

        a = F.scaled_dot_product_attention(turn(q).to(v.dtype), turn(k).to(v.dtype), v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(B, T, D))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        angle = torch.outer(torch.arange(T).float(), 1e4 ** (-torch.arange(0, D // H, 2).float() / (D // H)))
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(x)


net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, capturable=True)
tokens = torch.randint(0, V, (B, T), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(tokens)
        loss = F.cross_entropy(logits.view(-1, V), tokens.view(-1))
    loss.backward()
    optimizer.step()
