"""Single ops by kind of kernel: what calibration times on the device. A table of shapes, dtypes and layouts, a few
hundred in all, from launch-bound to the size of a large layer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

Call = Callable[[], object]
Tensor = torch.Tensor
aten: Any = torch.ops.aten

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
_NAMES = {F32: "fp32", BF16: "bf16", F16: "fp16"}

#: What a tensor may have at most, bytes: two of a case fit a GPU of 8 GB beside others.
MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """``build`` makes the operands on the GPU and returns the op to time."""

    name: str
    build: Callable[[], Call]


def device_cases() -> list[DeviceCase]:
    """All of them, in an order that mixes the kinds: a run that is cut short has seen some of each."""
    groups = (
        _streams, _layouts, _rows, _middles, _images, _volumes, _gathers, _lists, _sorts, _gemms, _batched, _vectors,
        _convolutions, _attention,
    )  # fmt: skip
    found = [case for group in groups for case in group()]
    random.Random(1).shuffle(found)
    return found


def _normal(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def _positions(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, device="cuda")


def _case(name: str, function: Callable[..., object], make: Callable[..., tuple[Any, ...]]) -> DeviceCase:
    """``make`` takes no arguments but defaults, which hold what a loop had in hand."""
    return DeviceCase(name, lambda: partial(function, *make()))


# Elementwise kernels and copies: sizes from one block to far past any L2.

_SIZES = tuple(1 << power for power in (12, 16, 19, 21, 23, 25))
_FEW_SIZES = (1 << 13, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)


def _streams() -> Iterator[DeviceCase]:
    one: dict[str, Callable[[Tensor], object]] = {
        "relu": torch.relu, "scale": lambda x: x * 2.0, "zero_": lambda x: x.zero_(), "clone": torch.clone,
        "cast": lambda x: x.to(BF16 if x.dtype == F32 else F32), "gelu": F.gelu, "tanh": torch.tanh, "silu": F.silu,
        "pow": lambda x: x**3, "gt": lambda x: x > 0, "dropout": lambda x: torch.native_dropout(x, 0.1, True),
        "exp": torch.exp, "half": lambda x: x.to(F16), "rand": torch.randn_like,
    }  # fmt: skip
    two: dict[str, Callable[[Tensor, Tensor], object]] = {
        "add": torch.add, "add_": lambda x, y: x.add_(y), "gelu_backward": aten.gelu_backward,
        "relu_backward": lambda x, y: aten.threshold_backward(x, y, 0),
    }  # fmt: skip
    for number, ((name, op), dtype) in enumerate(product(one.items(), (F32, BF16))):
        for size in (_SIZES if number % 2 else _FEW_SIZES)[:: 1 if number < 4 else 2]:
            yield _case(f"{name}_{size}_{_NAMES[dtype]}", op, partial(_operands, 1, size, dtype))
    for (name, binary), dtype in product(two.items(), (F32, BF16)):
        for size in _SIZES if name == "add" else _FEW_SIZES[1::2]:
            yield _case(f"{name}_{size}_{_NAMES[dtype]}", binary, partial(_operands, 2, size, dtype))
    for size in _FEW_SIZES:
        yield _case(f"addcmul_{size}", torch.addcmul, partial(_operands, 3, size, F32))
        yield _case(f"mixed_{size}", torch.add, lambda n=size: (_normal(n), _normal(n, dtype=BF16)))
        yield _case(f"where_{size}", torch.where, lambda n=size: (_normal(n) > 0, _normal(n), _normal(n)))


def _operands(count: int, size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(_normal(size, dtype=dtype) for _ in range(count))


def _layouts() -> Iterator[DeviceCase]:
    """Broadcasts, strides, transposing copies, concatenations, windows."""
    for size, dtype in product(_FEW_SIZES[1:], (F32, BF16)):
        normal = partial(_normal, dtype=dtype)
        tag = f"{size}_{_NAMES[dtype]}"
        side = 1 << (size.bit_length() // 2)
        rows = max(1, size // 512)
        images = max(1, size // 65536)
        table: dict[str, tuple[Callable[..., object], Callable[..., tuple[Any, ...]]]] = {
            "bias_last": (torch.add, lambda n=normal, s=size: (n(s // 1024, 1024), n(1024))),
            "bias_channel": (torch.add, lambda n=normal, s=size: (n(s // 4096, 64, 8, 8), n(64, 1, 1))),
            "row_scale": (torch.mul, lambda n=normal, r=rows: (n(r, 512), n(r, 1))),
            "every_second": (lambda x: x[:, ::2] + 1.0, lambda n=normal, r=rows: (n(r, 1024),)),
            "unaligned": (lambda x: x[1:] * 2.0, lambda n=normal, s=size: (n(s + 1),)),
            "transpose": (lambda x: x.t().contiguous(), lambda n=normal, s=size, d=side: (n(d, s // d),)),
            "times_transposed": (
                lambda x, y: x * y.t(),
                lambda n=normal, s=size: (n(64, s // 64), n(s // 64, 64)),
            ),
            "heads": (
                lambda x: x.transpose(1, 2).contiguous(),
                lambda n=normal, r=rows: (n(max(1, r // 256), min(256, r), 8, 64),),
            ),
            "channels_last": (
                lambda x: x.contiguous(memory_format=torch.channels_last),
                lambda n=normal, i=images: (n(i, 64, 32, 32),),
            ),
            "cat_0": (
                lambda x, y: torch.cat([x, y]),
                lambda n=normal, s=size: (n(s // 64, 32), n(s // 64, 32)),
            ),
            "cat_1": (lambda x, y: torch.cat([x, y], 1), lambda n=normal, r=rows: (n(r, 256), n(r, 256))),
            "cat_odd": (lambda x, y: torch.cat([x, y], 1), lambda n=normal, r=rows: (n(r, 255), n(r, 257))),
            "cat_strided": (
                lambda x, y: torch.cat([x.transpose(1, 2), y], 1),
                lambda n=normal, r=rows: (n(max(1, r // 64), 64, 256), n(max(1, r // 64), 256, 64)),
            ),
        }
        for name, (op, make) in table.items():
            yield _case(f"{name}_{tag}", op, make)
    for size in _FEW_SIZES[1:]:
        rows = size // 512
        one: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {
            "flip": (lambda x: x.flip(1), (rows, 512)),
            "roll": (lambda x: torch.roll(x, (3, 3), (1, 2)), (max(1, size // 98304), 32, 32, 96)),
            "triu": (lambda x: x.triu(1), (max(1, size // 256), 256)),
            "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), (max(1, size // 65536), 64, 32, 32)),
            "cumsum": (lambda x: x.cumsum(-1), (max(1, size // 1024), 1024)),
            "cumsum_0": (lambda x: x.cumsum(0), (256, size // 256)),
        }
        for name, (op, shape) in one.items():
            yield _case(f"{name}_{size}", op, lambda s=shape: (_normal(*s),))


# Rows: reductions, norms, softmax.

_ROWS = (
    (1, 65536), (8, 4096), (64, 768), (64, 16384), (512, 1024), (512, 131072), (4096, 256), (4096, 1024), (4096, 4096),
    (32768, 64), (32768, 768), (262144, 64), (262144, 196),
)  # fmt: skip


def _rows() -> Iterator[DeviceCase]:
    one: dict[str, Callable[[Tensor], object]] = {
        "sum_1": lambda x: x.sum(1), "sum_0": lambda x: x.sum(0), "sum": torch.sum, "mean_1": lambda x: x.mean(1),
        "amax_1": lambda x: x.amax(1), "max_1": lambda x: x.max(1), "max_0": lambda x: x.max(0), "var_1": lambda x: x.var(1),
        "var_0": lambda x: x.var(0), "norm": torch.linalg.vector_norm, "softmax_1": lambda x: x.softmax(1),
        "softmax_0": lambda x: x.softmax(0), "log_softmax_1": lambda x: x.log_softmax(1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]), "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
        "softmax_backward": lambda x: aten._softmax_backward_data(x, x, 1, x.dtype),
        "softmax_backward_0": lambda x: aten._softmax_backward_data(x, x, 0, x.dtype),
    }  # fmt: skip
    for number, ((rows, columns), (name, op)) in enumerate(product(_ROWS, one.items())):
        if name == "var_0" and rows == 1:
            continue  # of one value there is none
        dtype = BF16 if number % 3 == 0 else F32
        yield _case(
            f"{name}_{rows}x{columns}_{_NAMES[dtype]}",
            op,
            lambda r=rows, c=columns, t=dtype: (_normal(r, c, dtype=t),),
        )
    for (rows, columns), dtype in product(_ROWS[1:], (F32, BF16)):
        tag = f"{rows}x{columns}_{_NAMES[dtype]}"
        normal = partial(_normal, dtype=dtype)
        if dtype == F32 or rows > 64:
            yield _case(
                f"layer_norm_scaled_{tag}",
                lambda x, w, b: F.layer_norm(x, w.shape, w, b),
                lambda n=normal, r=rows, c=columns: (n(r, c), n(c), n(c)),
            )
            yield _case(
                f"layer_norm_backward_{tag}",
                lambda x, w, b, m: aten.native_layer_norm_backward(x, x, w.shape, m, m, w, b, [True] * 3),
                lambda n=normal, r=rows, c=columns: (n(r, c), n(c), n(c), _normal(r, 1)),
            )
        if dtype == F32:
            yield _case(
                f"nll_{tag}",
                lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100),
                lambda r=rows, c=columns: (_normal(r, c), _positions(c, r)),
            )


def _middles() -> Iterator[DeviceCase]:
    """Reductions over the middle or the outer dimensions."""
    ops: dict[str, Callable[[Tensor], object]] = {
        "sum_mid": lambda x: x.sum(1), "max_mid": lambda x: x.max(1), "softmax_mid": lambda x: x.softmax(1),
        "sum_02": lambda x: x.sum((0, 2)), "mean_last": lambda x: x.mean(2), "argmin_mid": lambda x: x.argmin(1),
    }  # fmt: skip
    for shape in ((1, 256, 3136), (16, 64, 196), (16, 256, 3136), (128, 64, 49), (128, 256, 784)):
        for name, op in ops.items():
            yield _case(f"{name}_{'x'.join(map(str, shape))}", op, lambda s=shape: (_normal(*s),))


# Images and volumes: norms, pools, resampling.

_IMAGES = ((1, 64, 56), (8, 16, 112), (8, 256, 14), (32, 64, 56), (32, 256, 28), (32, 1024, 7), (128, 64, 28))


def _images() -> Iterator[DeviceCase]:
    for number, ((batch, channels, side), dtype) in enumerate(product(_IMAGES, (F32, BF16))):
        tag = f"{batch}x{channels}x{side}_{_NAMES[dtype]}"

        def operands(
            shape: tuple[int, ...] = (batch, channels, side, side),
            dtype: torch.dtype = dtype,
            last: bool = False,
        ) -> tuple[Tensor, ...]:
            x = _normal(*shape, dtype=dtype)
            if last:
                x = x.contiguous(memory_format=torch.channels_last)
            ones = torch.ones(shape[1], device="cuda")
            return x, ones, ones.to(dtype)

        ops: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
            "batch_norm": lambda x, w, _: F.batch_norm(x, None, None, w, w, True),
            "batch_norm_eval": lambda x, w, _: F.batch_norm(x, w, w, w, w, False),
            "native_batch_norm": lambda x, w, _: aten.native_batch_norm(x, w, w, w, w, True, 0.1, 1e-5),
            "batch_norm_backward": lambda x, w, _: aten.native_batch_norm_backward(
                x, x, w, w, w, w, w, True, 1e-5, [True] * 3
            ),
            "group_norm": lambda x, _, w: F.group_norm(x, 8, w, w),
            "instance_norm": lambda x, *_: F.instance_norm(x),
            "average_pool": lambda x, *_: F.avg_pool2d(x, 2),
            "average_pool_3": lambda x, *_: F.avg_pool2d(x, 3, 1, 1),
            "adaptive_pool": lambda x, *_: F.adaptive_avg_pool2d(x, 7),
            "global_pool": lambda x, *_: x.mean((2, 3)),
            "max_pool": lambda x, *_: F.max_pool2d(x, 2),
            "max_pool_3": lambda x, *_: F.max_pool2d(x, 3, 2, 1),
            "average_pool_backward": lambda x, *_: aten.avg_pool2d_backward(
                F.avg_pool2d(x, 2), x, [2, 2], [2, 2], [0, 0], False, True, None
            ),
            "bilinear": lambda x, *_: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "nearest": lambda x, *_: F.interpolate(x, scale_factor=2),
        }  # fmt: skip
        for place, (name, op) in enumerate(ops.items()):
            if dtype == F32 or (place + number) % 3 == 0:
                yield _case(f"{name}_{tag}", op, operands)
        if dtype == F32:
            for name in ("batch_norm", "native_batch_norm", "batch_norm_backward"):
                yield _case(f"{name}_last_{tag}", ops[name], partial(operands, last=True))
            yield _case(f"max_pool_backward_{tag}", _pooled_backward, operands)
            yield _case(f"cudnn_norm_backward_{tag}", _normed_backward, operands)


def _pooled_backward(x: Tensor, *_: Tensor) -> object:
    y, places = F.max_pool2d(x, 2, return_indices=True)
    return aten.max_pool2d_with_indices_backward(y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)


def _normed_backward(x: Tensor, w: Tensor, *_: Tensor) -> object:
    y, mean, var, reserve = aten.cudnn_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
    return aten.cudnn_batch_norm_backward(x, y, w, None, None, mean, var, 1e-5, reserve)


def _volumes() -> Iterator[DeviceCase]:
    for batch, channels, depth, side in ((4, 16, 16, 32), (8, 64, 16, 32), (16, 32, 16, 32), (2, 64, 24, 48)):
        ops: dict[str, Callable[[Tensor], object]] = {
            "max_pool_3d": lambda x: F.max_pool3d(x, 2),
            "average_pool_3d": lambda x: F.avg_pool3d(x, 2),
            "adaptive_pool_3d": lambda x: F.adaptive_avg_pool3d(x, 4),
            "group_norm_3d": lambda x: F.group_norm(x, 8),
        }
        for name, op in ops.items():
            yield _case(
                f"{name}_{batch}x{channels}x{depth}x{side}",
                op,
                lambda s=(batch, channels, depth, side, side): (_normal(*s),),
            )


# Gathers and scatters.


def _gathers() -> Iterator[DeviceCase]:
    table = (
        (1000, 64, 64),
        (1000, 1024, 1024),
        (50000, 256, 1024),
        (50000, 1024, 16384),
        (400000, 64, 16384),
    )
    for rows, columns, picks in table:
        tag = f"{rows}x{columns}_{picks}"
        weights = partial(_normal, rows, columns)
        chosen, rows_of = partial(_positions, rows, picks), partial(_positions, rows, picks, columns)
        values = partial(_normal, picks, columns)
        yield _case(f"embedding_{tag}", torch.embedding, lambda w=weights, i=chosen: (w(), i()))
        yield _case(
            f"embedding_bf16_{tag}", torch.embedding, lambda w=weights, i=chosen: (w(dtype=BF16), i())
        )
        yield _case(f"index_{tag}", lambda w, i: w[i], lambda w=weights, i=chosen: (w(), i()))
        yield _case(f"gather_{tag}", lambda w, i: w.gather(0, i), lambda w=weights, i=rows_of: (w(), i()))
        yield _case(
            f"index_select_{tag}", lambda w, i: w.index_select(0, i), lambda w=weights, i=chosen: (w(), i())
        )
        for name, op in {
            "index_add": lambda w, i, v: w.index_add_(0, i, v),
            "index_put": lambda w, i, v: w.index_put_((i,), v),
            "index_put_sum": lambda w, i, v: w.index_put_((i,), v, accumulate=True),
        }.items():
            yield _case(f"{name}_{tag}", op, lambda w=weights, i=chosen, v=values: (w(), i(), v()))
        yield _case(
            f"scatter_add_{tag}",
            lambda w, i, v: w.scatter_add_(0, i, v),
            lambda w=weights, i=rows_of, v=values: (w(), i(), v()),
        )
        yield _case(
            f"scatter_{tag}",
            lambda w, i, v: w.scatter_(0, i, v),
            lambda w=weights, i=rows_of, v=values: (w(), i(), v()),
        )
        yield _case(
            f"embedding_backward_{tag}",
            lambda v, i, n=rows: aten.embedding_dense_backward(v, i, n, -1, False),
            lambda i=chosen, v=values: (v(), i()),
        )
        yield _case(
            f"bags_{tag}",
            aten._embedding_bag,
            lambda w=weights, i=chosen, p=picks: (w(), i(), torch.arange(0, p, 4, device="cuda")),
        )


# Lists of tensors, sorts.


def _lists() -> Iterator[DeviceCase]:
    ops: dict[str, tuple[int, Callable[..., object]]] = {
        "add": (2, torch._foreach_add_),
        "mul": (1, lambda x: torch._foreach_mul_(x, 0.9)),
        "lerp": (2, lambda x, y: torch._foreach_lerp_(x, y, 0.1)),
        "addcdiv": (3, torch._foreach_addcdiv_),
        "norm": (1, torch._foreach_norm),
    }
    for count, size in ((4, 1024), (4, 1 << 22), (50, 1024), (50, 65536), (50, 1 << 19), (200, 16384)):
        for name, (operands, op) in ops.items():
            yield _case(
                f"list_{name}_{count}x{size}",
                op,
                lambda c=count, s=size, k=operands: tuple([_normal(s) for _ in range(c)] for _ in range(k)),
            )
        yield _case(
            f"list_adamw_{count}x{size}",
            _fused_adamw,
            lambda c=count, s=size: (
                *([_normal(s) for _ in range(c)] for _ in range(3)),
                [torch.ones(s, device="cuda") for _ in range(c)],
                [torch.ones((), device="cuda") for _ in range(c)],
            ),
        )


def _fused_adamw(*lists: list[Tensor]) -> None:
    parameters, gradients, means, squares, steps = lists
    torch._fused_adamw_(
        parameters, gradients, means, squares, [], steps,
        lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def _sorts() -> Iterator[DeviceCase]:
    for rows, columns in ((1, 1000), (1, 32000), (64, 1000), (1024, 64), (4096, 1024), (16, 100000)):
        yield _case(
            f"sort_{rows}x{columns}", lambda x: x.sort(-1), lambda r=rows, c=columns: (_normal(r, c),)
        )
        yield _case(
            f"topk_{rows}x{columns}", lambda x: x.topk(5, -1), lambda r=rows, c=columns: (_normal(r, c),)
        )


# Products. Sides of layers that models have, in each layout.

_GEMMS = (
    (1, 1024, 1024), (1, 4096, 4096), (4, 1024, 1024), (8, 4096, 1024), (16, 768, 3072), (16, 4096, 4096),
    (32, 1000, 2048), (49, 512, 512), (64, 256, 64), (64, 64, 1024), (100, 40, 5120), (128, 128, 128), (128, 768, 768),
    (196, 1024, 256), (256, 1024, 4096), (512, 512, 512), (512, 2048, 512), (768, 768, 16384), (1024, 1024, 1024),
    (1024, 4096, 1024), (1576, 768, 768), (2048, 512, 64), (2048, 2048, 2048), (3136, 64, 256), (4096, 96, 384),
    (4096, 1024, 4096), (4096, 4096, 1024), (8192, 512, 2048), (12544, 128, 512), (25088, 384, 96), (65536, 64, 64),
)  # fmt: skip
_HALF_GEMMS = (*_GEMMS, (4096, 4096, 4096), (8192, 4096, 4096), (8192, 8192, 8192))


def _gemms() -> Iterator[DeviceCase]:
    layouts = ("nn", "nt", "tn", "bias", "tt")
    for dtype, sides in ((F32, _GEMMS), (BF16, _HALF_GEMMS), (F16, _HALF_GEMMS[::4])):
        for number, (m, n, k) in enumerate(sides):
            # Every product in two layouts of five, all five in turn.
            for layout in (layouts[number % 5], layouts[(number + 2) % 5]):
                yield DeviceCase(
                    f"gemm_{layout}_{m}x{n}x{k}_{_NAMES[dtype]}", partial(_gemm, m, n, k, dtype, layout)
                )
    for number, (m, n, k) in enumerate(_GEMMS[2::3]):
        yield DeviceCase(f"gemm_odd_{m}x{n}x{k}", partial(_gemm, m, n + 1, k + 1, BF16, layouts[number % 3]))
    for m, n, k in ((16, 4096, 4096), (256, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)):
        yield DeviceCase(f"gemm_fp8_{m}x{n}x{k}", partial(_gemm_fp8, m, n, k))


def _gemm(m: int, n: int, k: int, dtype: torch.dtype, layout: str) -> Call:
    left = _normal(k, m, dtype=dtype).t() if layout in ("tn", "tt") else _normal(m, k, dtype=dtype)
    right = _normal(n, k, dtype=dtype).t() if layout in ("nt", "tt", "bias") else _normal(k, n, dtype=dtype)
    if layout == "bias":
        return partial(torch.addmm, _normal(n, dtype=dtype), left, right)
    return partial(torch.mm, left, right)


def _gemm_fp8(m: int, n: int, k: int) -> Call:
    left = _normal(m, k).to(torch.float8_e4m3fn)
    right = _normal(n, k).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device="cuda")
    return partial(torch._scaled_mm, left, right, scale_a=scale, scale_b=scale, out_dtype=BF16)


def _batched() -> Iterator[DeviceCase]:
    sides = (
        (8, 64, 64, 64), (12, 197, 197, 64), (16, 512, 512, 64), (32, 128, 128, 80), (48, 16, 1024, 128), (96, 1, 512, 64),
        (128, 49, 49, 32), (128, 256, 64, 256), (192, 197, 64, 197), (512, 64, 64, 64), (64, 1024, 1024, 64),
    )  # fmt: skip
    for (batch, m, n, k), dtype, turned in product(sides, (F32, BF16), (False, True)):

        def operands(
            b: int = batch, m: int = m, n: int = n, k: int = k, t: torch.dtype = dtype, turned: bool = turned
        ) -> tuple[Tensor, Tensor]:
            right = _normal(b, n, k, dtype=t).transpose(1, 2) if turned else _normal(b, k, n, dtype=t)
            return _normal(b, m, k, dtype=t), right

        yield _case(
            f"bmm_{batch}x{m}x{n}x{k}_{'nt' if turned else 'nn'}_{_NAMES[dtype]}", torch.bmm, operands
        )


def _vectors() -> Iterator[DeviceCase]:
    for size in (1 << 16, 1 << 20, 1 << 24):
        yield _case(f"dot_{size}", torch.dot, partial(_operands, 2, size, F32))
        yield _case(f"mv_{size}", torch.mv, lambda n=size: (_normal(1024, n // 1024), _normal(n // 1024)))
        yield _case(f"mv_wide_{size}", torch.mv, lambda n=size: (_normal(n // 256, 256), _normal(256)))
        yield _case(f"mm_1_{size}", torch.mm, lambda n=size: (_normal(256, n // 256), _normal(n // 256, 1)))


# Convolutions: (batch, in, out, side, window, stride, groups).

_CONVOLUTIONS = (
    (1, 3, 64, 224, 7, 2, 1), (32, 3, 64, 224, 7, 2, 1), (16, 3, 768, 224, 16, 16, 1), (8, 3, 32, 224, 3, 2, 1),
    (1, 64, 64, 56, 3, 1, 1), (32, 64, 64, 56, 3, 1, 1), (32, 128, 128, 28, 3, 1, 1), (32, 256, 512, 14, 3, 2, 1),
    (8, 512, 512, 7, 3, 1, 1), (64, 512, 512, 7, 3, 1, 1), (1, 256, 256, 14, 3, 1, 1), (4, 64, 128, 128, 3, 1, 1),
    (4, 16, 16, 64, 3, 1, 1), (8, 32, 64, 112, 5, 1, 1), (1, 256, 64, 56, 1, 1, 1), (32, 64, 256, 56, 1, 1, 1),
    (32, 1024, 256, 14, 1, 1, 1), (32, 256, 512, 28, 1, 2, 1), (8, 960, 160, 7, 1, 1, 1), (128, 24, 144, 28, 1, 1, 1),
    (16, 512, 2048, 1, 1, 1, 1), (32, 64, 64, 56, 3, 1, 64), (8, 240, 240, 28, 5, 1, 240), (32, 384, 384, 14, 7, 1, 384),
    (32, 144, 144, 56, 3, 2, 144), (32, 128, 128, 28, 3, 1, 32), (8, 256, 256, 14, 3, 1, 4),
)  # fmt: skip


def _convolutions() -> Iterator[DeviceCase]:
    for number, sides in enumerate(_CONVOLUTIONS):
        tag = "x".join(map(str, sides))
        for dtype in (F32, BF16):
            yield DeviceCase(f"conv_{tag}_{_NAMES[dtype]}", partial(_convolution, *sides, dtype=dtype))
            if number % 2 == (dtype == BF16):
                yield DeviceCase(
                    f"conv_last_{tag}_{_NAMES[dtype]}", partial(_convolution, *sides, dtype=dtype, last=True)
                )
            if number % 3 or dtype == F32:
                yield DeviceCase(
                    f"conv_back_{tag}_{_NAMES[dtype]}", partial(_convolution, *sides, dtype=dtype, back=True)
                )
    for batch, inputs, outputs, side, window, stride in (
        (1, 64, 64, 28, 2, 2), (8, 256, 128, 14, 2, 2), (16, 512, 256, 7, 4, 2), (8, 64, 32, 64, 4, 2), (4, 128, 64, 32, 3, 1),
    ):  # fmt: skip
        for dtype in (F32, BF16):
            yield DeviceCase(
                f"conv_turned_{batch}x{inputs}x{outputs}x{side}x{window}_{_NAMES[dtype]}",
                partial(
                    _convolution, batch, inputs, outputs, side, window, stride, 1, dtype=dtype, turned=True
                ),
            )
    for batch, inputs, outputs, side, window in (
        (4, 3, 32, 32, 3),
        (4, 32, 64, 16, 3),
        (8, 64, 64, 16, 3),
        (8, 64, 32, 16, 1),
    ):
        for turned in (False, True):
            yield DeviceCase(
                f"conv_3d_{batch}x{inputs}x{outputs}x{side}x{window}{'_turned' if turned else ''}",
                partial(_convolution, batch, inputs, outputs, side, window, 1, 1, turned=turned, dims=3),
            )


def _convolution(
    batch: int, inputs: int, outputs: int, side: int, window: int, stride: int, groups: int, *,
    dtype: torch.dtype = F32, last: bool = False, turned: bool = False, back: bool = False, dims: int = 2,
) -> Call:  # fmt: skip
    weights = (inputs, outputs // groups) if turned else (outputs, inputs // groups)
    x, w = (
        _normal(batch, inputs, *(side,) * dims, dtype=dtype),
        _normal(*weights, *(window,) * dims, dtype=dtype),
    )
    if last:
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    padding = window // 2 if window in (3, 5, 7) else 0
    rest = ([stride] * dims, [padding] * dims, [1] * dims, turned, [0] * dims, groups)
    if not back:
        return partial(aten.convolution, x, w, None, *rest)
    gradient = aten.convolution(x, w, None, *rest)
    return partial(aten.convolution_backward, gradient, x, w, None, *rest, [True, True, False])


# Attention by backend: (batch, heads, queries, keys, head).


def _attention() -> Iterator[DeviceCase]:
    shapes = (
        (1, 8, 128, 128, 64), (2, 12, 197, 197, 64), (8, 12, 512, 512, 64), (16, 16, 256, 256, 64), (2, 16, 2048, 2048, 128),
        (1, 32, 1024, 1024, 128), (16, 3, 197, 197, 64), (32, 8, 64, 64, 32),
    )  # fmt: skip
    for number, shape in enumerate(shapes):
        tag = "x".join(map(str, shape))
        for dtype in (BF16, F16) if number % 2 else (BF16,):
            yield DeviceCase(f"flash_{tag}_{_NAMES[dtype]}", partial(_attend, "flash", shape, dtype))
            yield DeviceCase(f"flash_back_{tag}_{_NAMES[dtype]}", partial(_attend_back, shape, dtype))
        yield DeviceCase(f"flash_causal_{tag}", partial(_attend, "flash", shape, BF16, True))
        yield DeviceCase(f"cudnn_{tag}", partial(_attend, "cudnn", shape, BF16))
        for dtype in (F32, BF16):
            yield DeviceCase(f"efficient_{tag}_{_NAMES[dtype]}", partial(_attend, "efficient", shape, dtype))
    for batch, heads, keys, head in (
        (1, 12, 512, 64),
        (8, 16, 1024, 64),
        (32, 12, 512, 64),
        (4, 32, 2048, 128),
    ):
        for dtype, backend in ((BF16, "flash"), (F32, "efficient")):
            yield DeviceCase(
                f"decode_{backend}_{batch}x{heads}x{keys}x{head}",
                partial(_attend, backend, (batch, heads, 1, keys, head), dtype),
            )
    for batch, heads, length in ((1, 8, 256), (4, 8, 512), (8, 8, 1024), (2, 4, 1024)):
        yield DeviceCase(
            f"efficient_wide_{batch}x{heads}x{length}",
            partial(_attend, "efficient", (batch, heads, length, length, 256), F32),
        )


def _attend(
    backend: str, shape: tuple[int, int, int, int, int], dtype: torch.dtype, causal: bool = False
) -> Call:
    batch, heads, queries, keys, head = shape
    query = _normal(batch, heads, queries, head, dtype=dtype)
    key, value = (_normal(batch, heads, keys, head, dtype=dtype) for _ in range(2))
    if backend == "flash":
        return partial(aten._scaled_dot_product_flash_attention, query, key, value, 0.0, causal)
    if backend == "cudnn":
        return partial(aten._scaled_dot_product_cudnn_attention, query, key, value, None, False, 0.0, causal)
    return partial(aten._scaled_dot_product_efficient_attention, query, key, value, None, False, 0.0, causal)


def _attend_back(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> Call:
    batch, heads, queries, keys, head = shape
    query = _normal(batch, heads, queries, head, dtype=dtype)
    key, value = (_normal(batch, heads, keys, head, dtype=dtype) for _ in range(2))
    out, logsumexp, first_q, first_k, longest_q, longest_k, seed, offset, _ = (
        aten._scaled_dot_product_flash_attention(query, key, value)
    )
    return partial(
        aten._scaled_dot_product_flash_attention_backward,
        out, query, key, value, out, logsumexp, first_q, first_k, longest_q, longest_k, 0.0, False, seed, offset,
    )  # fmt: skip
