"""How cuDNN runs a recurrent net: launches and workspace of the forward and the backward pass.

The choice of an algorithm is PyTorch's (``get_algo`` in cudnn/RNN.cpp). The standard one runs, for each step, layer and
direction, a GEMM with the recurrent weights and a pointwise kernel; the products with the inputs are done for a chunk
of steps at once, so that the layers of a deep net can overlap. The backward pass does as much in reverse, then the
gradients of the weights in GEMMs over all steps. The persistent ones are one kernel for all steps of a layer.

The structure is that of 250 profiled shapes (LSTM, GRU and tanh; cuDNN 9.19 on an H200). How many chunks and how much
workspace cuDNN takes is fitted to those, not read in its source; most GEMMs that it splits in two are not foreseen.
``tests/cost/test_cudnn_rnn.py`` holds the shapes and the errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from optrace.cost.profiles import Target

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t
GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}

Algorithm = Literal["standard", "persistent", "persistent small"]

#: Bytes that cuDNN sets apart a stream; a net of several layers takes two streams, each direction its own.
STREAM_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Launches:
    """What one call launches."""

    kernels: int
    memcpys: int = 0
    memsets: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """Sizes of a recurrent net and of the sequences it runs over. ``drops``: with dropout between layers."""

    mode: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int
    directions: int
    dtype: str
    itemsize: int
    drops: bool = False
    packed: bool = False

    @property
    def stacks(self) -> int:
        """Layers of all directions."""
        return self.layers * self.directions

    def algorithm(self, target: Target, *, forward: bool) -> Algorithm:
        """``get_algo``; persistent kernels are for sequences of one length, and not for float64."""
        gated = self.mode in (LSTM, GRU)
        # PyTorch asks for the small kernels in bfloat16 too; cuDNN has none.
        if self.packed or self.dtype in ("float64", "bfloat16"):
            return "standard"
        if self.hidden <= ((192 if forward else 128) if gated else (384 if forward else 256)):
            return "persistent small"
        if self.dtype == "float16" and self._persists(target):
            return "persistent"
        return "standard"

    def _persists(self, target: Target) -> bool:
        if self.stacks > 1 or self.hidden > 1024 or self.hidden % 128 or self.inputs % 128:
            return False
        if (
            target.capability[0] < 8
            or target.capability == (8, 6)
            or target.sm_count < 98
            or self.mode == GRU
        ):
            return False
        few = self.batch < 96 or self.hidden < 896 or self.mode == LSTM
        return self.batch % 8 == 0 and self.batch <= 128 and few

    @property
    def _forward_chunks(self) -> int:
        """GEMMs with the inputs, a layer: one, but in a deep net of one direction several over fewer steps."""
        if self.directions == 2 or self.layers == 1:
            return 1
        parts = 4
        for steps in (128, 512) if self.mode in (LSTM, GRU) else (34, 512):
            parts *= 2 if self.steps >= steps else 1
        for batch in (64, 128):
            parts *= 2 if self.batch >= batch else 1
        return math.ceil(self.steps / max(1, self.steps // parts))

    @property
    def _backward_chunks(self) -> int:
        """GEMMs for the gradients of the inputs, a layer."""
        if self.directions == 2 or self.layers == 1:
            return 1
        chunk = next(
            steps
            for batch, steps in ((1, 32), (8, 16), (31, 8), (127, 4), (math.inf, 2))
            if self.batch <= batch
        )
        return math.ceil(self.steps / (chunk * (2 if self.steps >= 128 else 1)))

    def _dropouts(self, chunks: int) -> int:
        """The mask between layers, and its use a chunk, in each direction."""
        return self.directions * ((self.layers - 1) * chunks + 1) if self.drops and self.layers > 1 else 0

    def forward(self, target: Target) -> Launches:
        """Launches of the forward pass."""
        algorithm = self.algorithm(target, forward=True)
        if algorithm == "persistent":
            # Input GEMM, what resets the kernel's flags, the kernel.
            return Launches(3 if self.mode == LSTM else 4)
        if algorithm == "persistent small":
            # A GRU adds its biases apart.
            return Launches(self.stacks * (3 if self.mode == GRU else 2) + self._dropouts(1))
        chunks = self._forward_chunks
        cells = self.steps * self.stacks
        split = (
            self.directions == 2
            and self.dtype == "float32"
            and self.mode in (LSTM, GRU)
            and self.steps >= 100
        )
        # The product of a single gate has so few tiles that cuBLAS splits its sums.
        step = 3 if self.dtype == "float32" and GATES[self.mode] == 1 else 2
        return Launches(
            step * cells + self.stacks * chunks + self._dropouts(chunks),
            memsets=self.stacks if split else 0,
        )

    def backward(self, target: Target, *, weights: bool = True) -> Launches:
        """Launches of the backward pass; ``weights``: with the gradients of the weights."""
        algorithm = self.algorithm(target, forward=False)
        # Two or three GEMMs a layer (inputs, the first step's state, the other steps' states), biases.
        of_weights = self.stacks * ((3 if self.steps > 1 else 2) + 1) if weights else 0
        if algorithm == "persistent":
            return Launches(5 + of_weights, memcpys=1)
        if algorithm == "persistent small":
            split = 2 * self.stacks if self.dtype == "float32" and weights else 0
            return Launches(self.stacks * 3 + of_weights + split + self._dropouts(1))
        chunks = self._backward_chunks
        cells = self.steps * self.stacks
        both = self.directions == 2
        zeroed = self.dtype == "float32" and self.mode in (LSTM, GRU) and self.batch > 1
        return Launches(
            2 * cells
            + self.stacks * chunks
            + of_weights
            + self._dropouts(chunks)
            + (self.layers if both else 0),
            memcpys=self.layers * (2 if self.mode == LSTM else 1) if both else 0,
            memsets=cells + (self.stacks * chunks if chunks > 1 else 0) + 1 if zeroed else 0,
        )

    def workspace_bytes(self, target: Target, *, forward: bool) -> int:
        """What cuDNN asks for during a pass: the matrices in another layout, room for each stream, and activations
        of all steps."""
        wide = self.hidden * self.directions
        matrices = self.directions * sum(
            GATES[self.mode] * self.hidden * ((wide if layer else self.inputs) + self.hidden)
            for layer in range(self.layers)
        )
        rows = self.steps * self.batch
        widest = rows * max(self.inputs, wide)
        states = self.stacks * self.batch * self.hidden
        lstm = 1.5 if self.mode == LSTM else 0.0
        streams = float(self.directions * min(self.layers, 2))
        if self.directions == 1:
            times, room = 1.5 * self.layers - 1.6 + lstm + 1.7 * (self.layers == 1), 3 * widest + 5 * states
        else:
            times, room = 2 * (1.33 * self.layers + 2 + lstm), 2 * widest + 32 * states
            streams *= 0.82
        if self.algorithm(target, forward=forward) != "standard":
            times += 14
        return int((matrices + times * rows * self.hidden + room) * self.itemsize + streams * STREAM_BYTES)
