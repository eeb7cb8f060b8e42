"""How cuDNN runs one convolution pass: as an implicit product, with copies to and from the layout it wants.

cuDNN's heuristics are not published. This is a model of them, read off the kernel names, grids and launches of
torch 2.11 (cuDNN 9, CUDA 13) on an H200, where float32 convolutions may use TF32 (PyTorch's default). Tensor-core
kernels want channels last, so an NCHW tensor is copied before (``nchwToNhwc``; the weights too, unless they are
1 x 1, whose two layouts are the same bytes) and the result after (``nhwcToNchw``), except where an Ampere-style
kernel writes NCHW itself. Hopper's kernels are persistent; like cuBLAS's, they draw tiles from a counter once
there are more than two a CTA, which costs a memset, or share tiles out along k behind a one-CTA set-up kernel.

With channels last in and out nothing is copied.

Which engine cuDNN picks is the guessed part: ``optrace accuracy RECORD --op aten.convolution`` (and
``aten.convolution_backward``) says for how many calls of a record the launches are right. Split-K of 1 x 1
convolutions over one pixel (squeeze and excite) is not modelled: no predictor was found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optrace.cost.profiles import Target

#: Multiply-adds an SM up to which a convolution is small: few channels run directly, without tensor cores, and
#: more channels by Ampere-style kernels, which write NCHW.
_SMALL_MACS_PER_SM, _MIDDLING_MACS_PER_SM = 2_000_000, 16_000_000
#: Multiply-adds an SM between which 64 channels, two slices of k, go to Hopper's kernels.
_HOPPER_MACS_PER_SM = 9_000_000, 16_000_000
#: Multiply-adds an SM from which a 1 x 1 convolution gets Hopper's persistent product with its tile counter, and
#: from which small images are worth merging into one channels-last matrix.
_COUNTED_MACS_PER_SM, _MERGED_MACS_PER_SM, _HALF_MERGED_MACS_PER_SM = 15_000_000, 3_500_000, 3_000_000
#: Pixels from which those of few channels are worth copying for a 1 x 1 weight gradient.
_MANY_PIXELS = 16_384
#: Pixels from which a data gradient's are merged for less.
_MERGED_GRADIENT_PIXELS = 512
#: Depth from which few tiles are split along k; that of a single image, and a tile of it.
_SPLIT_MIN_K, _ONE_IMAGE_MIN_K, _K_PER_TILE = 1280, 448, 28
#: Channels up to which an image counts as one: photographs, and what follows them.
_FEW_CHANNELS, _DIRECT_CHANNELS, _SHALLOW_CHANNELS, _DEEP_CHANNELS = 8, 32, 64, 2048
#: Outputs up to which half precision leaves patches of an image where they lie.
_FEW_PATCH_OUTPUTS = 512
#: Overlapping windows from this width on, or taps x channels, make an image worth copying.
_WIDE_WINDOW, _DIRECT_DEPTH = 7, 160
#: Clusters of CTAs leave this share of the SMs usable.
_CLUSTERED_SHARE = 120 / 132
#: Tiles of pixels and output channels of Hopper's kernels, and the depth of the pipeline that each fills.
_HOPPER_TILES, _TILE_FILL = ((256, 64), (128, 128), (64, 128), (64, 64)), 64
#: Pixels between which a 3 x 3 weight gradient is made by Winograd's algorithm, and multiply-adds an SM up to which it is.
_WINOGRAD_PIXELS, _WINOGRAD_MACS_PER_SM = (1024, 16384), 16_000_000
#: It makes 6 x 6 points of 4 x 4 pixels, and of 3 x 3 weights.
WINOGRAD_POINTS, WINOGRAD_TILE = 36, 16
#: Pixels from which a set-up kernel shares out the tiles of a weight gradient along them, and half precision reduces parts.
_SHARED_PIXELS, _HALF_SHARED_PIXELS = 2048, 20_000


@dataclass(frozen=True, slots=True)
class ConvPass:
    """One pass of a convolution as a product: ``pixels`` x ``outputs``, over ``inputs`` x ``window``, a group.

    ``pixels`` are positions over the batch; ``plane`` the positions of one image. ``overlaps``: neighbouring
    windows share pixels. ``strided``: some positions are skipped. ``reach``: pixels that a window spans,
    dilation included. ``channels_last``: tensors lie so already. ``transposed``: the data gradient's product (also the forward pass of a transposed convolution).
    ``skipped``: the product of the strides. ``dilated``: taps lie apart. ``unpadded``: windows stay inside the image.
    """

    pixels: int
    plane: int
    inputs: int
    outputs: int
    window: tuple[int, ...]
    groups: int
    dtype: str
    channels_last: bool
    strided: bool
    overlaps: bool
    reach: int
    transposed: bool = False
    skipped: int = 1
    dilated: bool = False
    unpadded: bool = False

    @property
    def taps(self) -> int:
        return math.prod(self.window)

    @property
    def depth(self) -> int:
        return self.inputs * self.taps

    @property
    def macs(self) -> int:
        return self.groups * self.pixels * self.outputs * self.depth

    @property
    def is_half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")

    @property
    def padded(self) -> bool:
        """Channels that do not fill a 16-byte vector: the copies start from zero-filled buffers."""
        return self.inputs % (8 if self.is_half else 4) != 0

    @property
    def pointwise(self) -> bool:
        """1 x 1 and dense: a plain product of each image with the weights."""
        return self.taps == 1 and not self.strided

    def tiles(self, pixels: int, outputs: int) -> int:
        """Tiles of this shape that cover the result, pixels of all images in one row."""
        return math.ceil(self.pixels / pixels) * math.ceil(self.outputs / outputs)

    def tiles_by_image(self, pixels: int, outputs: int) -> int:
        """The same where each image is a product of its own."""
        images = self.pixels // max(1, self.plane)
        return images * math.ceil(self.plane / pixels) * math.ceil(self.outputs / outputs)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What one pass launches. The flags say which tensors are copied to another layout around it;
    ``sums_images``: each image has a float32 result of its own, and they are added up; ``splits``: parts of the channels
    have, and a second kernel reduces them; ``winograd``: both operands and the result are transformed."""

    kernels: int = 1
    memsets: int = 0
    copies_data: bool = False
    copies_weights: bool = False
    copies_result: bool = False
    sums_images: bool = False
    splits: bool = False
    winograd: bool = False

    @property
    def launches(self) -> int:
        return self.kernels + self.memsets


def plan(convolution: ConvPass, target: Target) -> PassPlan:
    """The kernels that cuDNN is expected to launch for a forward (or transposed) pass."""
    if convolution.channels_last:
        return _in_place(convolution, target)
    if convolution.groups > 1:
        return _grouped(convolution)
    if convolution.transposed:
        drawn = convolution.reach <= _WIDE_WINDOW
        return _copied(convolution, memsets=drawn + 2 * convolution.padded)
    if convolution.pointwise:
        return _pointwise(convolution, target)
    if runs_directly(convolution, target):
        return PassPlan()
    if writes_channels_first(convolution, target):
        return _copied(convolution, result=False, memsets=int(_splits(convolution, target)))
    padding = 2 if convolution.padded and convolution.is_half else 0
    set_up, counters = _sharing(convolution, target)
    return _copied(convolution, set_up=set_up, memsets=padding + counters)


def plan_data_gradient(convolution: ConvPass, target: Target) -> PassPlan:
    """The gradient of the data: ``convolution`` with inputs and outputs swapped. A strided one falls apart into
    a product for each phase of the stride, so that its tiles are always drawn from a counter. That of a transposed
    convolution is a plain one."""
    if not convolution.transposed:
        return plan(convolution, target)
    if convolution.channels_last:
        return _in_place(convolution, target)
    if convolution.pointwise:
        return _pointwise(convolution, target)
    set_up, counters = (0, 1) if convolution.strided else _sharing(convolution, target)
    return _copied(convolution, set_up=set_up, memsets=counters)


def plan_weight_gradient(convolution: ConvPass, target: Target) -> PassPlan:
    """The gradient of the weights: a product of outputs x (inputs x window) over all pixels.

    1 x 1: a product an image where the tensors lie, and a sum over images; one product if an image is a pixel. Else both
    tensors are copied to channels last, and the gradient back from there; few tiles are shared out along the pixels by a
    set-up kernel, fewer still are split and reduced. An image's three channels, and results of so few, are padded to a vector
    in zero-filled copies. Little work with 3 x 3 windows goes by Winograd's algorithm: both tensors transformed where they
    lie, their product, the result transformed back.
    """
    if convolution.channels_last:
        return PassPlan(kernels=2)
    if convolution.pointwise:
        made = _pointwise_weight_gradient(convolution, target)
        if made is not None:
            return made
    if convolution.inputs <= _FEW_CHANNELS:
        direct = not convolution.is_half and convolution.depth <= _DIRECT_CHANNELS
        return PassPlan(memsets=1) if direct and convolution.strided else _padded_weight_gradient()
    if _by_winograd(convolution, target):
        return PassPlan(kernels=4, winograd=True)
    result = convolution.taps > 1
    tiles = math.ceil(convolution.outputs / 128) * math.ceil(convolution.depth / 128)
    if convolution.is_half:
        split = result and tiles <= target.sm_count // 8 and convolution.pixels >= _HALF_SHARED_PIXELS
        shared = 2 if split else 0
    elif tiles <= target.sm_count // 6 or (not result and tiles <= target.sm_count // 3):
        shared = 2 if tiles <= target.sm_count // 7 else int(convolution.pixels >= _SHARED_PIXELS)
    else:
        shared = int(result and convolution.pixels >= _SHARED_PIXELS)
    return PassPlan(kernels=3 + result + shared, copies_data=True, copies_weights=True, copies_result=result)


def _pointwise_weight_gradient(convolution: ConvPass, target: Target) -> PassPlan | None:
    """That of a 1 x 1 window; None where it goes the way of wider ones."""
    if convolution.plane == 1:
        # A narrowing one of some width is added up atomically.
        return PassPlan(memsets=int(_SHALLOW_CHANNELS < convolution.outputs < convolution.inputs))
    if convolution.is_half:
        sums = convolution.plane * _itemsize(convolution) % 16 == 0
        return PassPlan(kernels=2, sums_images=True) if sums else None
    if convolution.outputs % 4:
        return _padded_weight_gradient()
    if convolution.inputs <= _DIRECT_CHANNELS and convolution.pixels >= _MANY_PIXELS:
        return PassPlan(kernels=3, memsets=1, copies_data=True, copies_weights=True)
    little = _SMALL_MACS_PER_SM if convolution.outputs > convolution.inputs else _SMALL_MACS_PER_SM // 4
    if convolution.plane % 4 == 0 or convolution.macs <= little * target.sm_count:
        return PassPlan(kernels=2, sums_images=True)
    return None


def _padded_weight_gradient() -> PassPlan:
    """Both tensors copied behind zeros, parts of the pixels reduced."""
    return PassPlan(kernels=5, memsets=2, copies_data=True, copies_weights=True, copies_result=True)


def _by_winograd(convolution: ConvPass, target: Target) -> bool:
    """Whether cuDNN makes a weight gradient by Winograd's algorithm (``winograd_nonfused``)."""
    least, most = _WINOGRAD_PIXELS
    return (
        not convolution.is_half
        and convolution.window == (3, 3)
        and convolution.groups == 1
        and not (
            convolution.strided or convolution.dilated or convolution.transposed or convolution.channels_last
        )
        and convolution.inputs > _FEW_CHANNELS
        and least <= convolution.pixels <= most
        and convolution.macs <= _WINOGRAD_MACS_PER_SM * target.sm_count
    )


def _itemsize(convolution: ConvPass) -> int:
    return 2 if convolution.is_half else 4


def _in_place(convolution: ConvPass, target: Target) -> PassPlan:
    """Tensors lie channels last already: the kernel, with what sharing its tiles takes."""
    if convolution.groups > 1 or convolution.taps == 1:
        return PassPlan()
    set_up, counters = _sharing(convolution, target)
    return PassPlan(kernels=1 + set_up, memsets=counters)


def _copied(convolution: ConvPass, *, result: bool = True, set_up: int = 0, memsets: int = 0) -> PassPlan:
    """A channels-last kernel between copies; ``set_up`` kernels before it."""
    weights = convolution.taps > 1
    return PassPlan(
        kernels=2 + set_up + weights + result,
        memsets=memsets,
        copies_data=True,
        copies_weights=weights,
        copies_result=result,
    )


def _grouped(convolution: ConvPass) -> PassPlan:
    """Few groups run one after another, each a direct kernel; many narrow ones share a kernel, which wants
    channels last where its window is more than a pixel."""
    if convolution.groups <= _FEW_CHANNELS and convolution.taps == 1:
        if convolution.inputs < 256:
            return PassPlan(kernels=convolution.groups)
        return PassPlan(3 * convolution.groups, convolution.groups, copies_data=True, copies_result=True)
    return PassPlan() if convolution.taps == 1 or convolution.inputs == 1 else _copied(convolution)


def _pointwise(convolution: ConvPass, target: Target) -> PassPlan:
    """A product of each image with the weights where it lies. Images smaller than a tile, in rows that are not
    16-byte aligned (7 x 7), are merged into one channels-last matrix once there is enough to compute."""
    each = convolution.macs / target.sm_count
    one_image = convolution.pixels == convolution.plane > 1
    if one_image and convolution.inputs >= max(_ONE_IMAGE_MIN_K, _K_PER_TILE * convolution.tiles(64, 64)):
        return PassPlan(kernels=2, splits=True)
    if 1 < convolution.plane < 64 and convolution.plane % 4 and not one_image:
        narrow = convolution.pixels <= 256 and convolution.outputs < convolution.inputs
        deep = convolution.inputs >= _DEEP_CHANNELS or narrow
        enough = _HALF_MERGED_MACS_PER_SM if convolution.is_half else _MERGED_MACS_PER_SM
        if convolution.transposed and convolution.pixels >= _MERGED_GRADIENT_PIXELS:
            enough = _SMALL_MACS_PER_SM
        return _copied(convolution) if deep or each >= enough else PassPlan()
    counted = (
        target.capability >= (9, 0)
        and not convolution.is_half
        and each >= _COUNTED_MACS_PER_SM
        and convolution.outputs >= _SHALLOW_CHANNELS
        and convolution.plane % 4 == 0
        and convolution.tiles_by_image(128, 128) > 2 * target.sm_count
        and not (convolution.transposed and convolution.outputs <= convolution.inputs)
    )
    return PassPlan(memsets=int(counted))


def runs_directly(convolution: ConvPass, target: Target) -> bool:
    """NCHW kernels on the plain units: an image's few channels, unless large windows overlap; some more channels
    where there is little to compute, or where one pixel in several is taken."""
    if convolution.inputs <= _FEW_CHANNELS:
        if convolution.is_half:
            if not convolution.overlaps and convolution.taps > 1:
                return convolution.outputs <= _FEW_PATCH_OUTPUTS
            return min(convolution.window) < _WIDE_WINDOW
        if convolution.taps > 1 and convolution.macs <= _SMALL_MACS_PER_SM // 2 * target.sm_count:
            return True
        wide = min(convolution.window) >= _WIDE_WINDOW and convolution.outputs > _DIRECT_CHANNELS
        return convolution.taps > 1 and not (
            convolution.overlaps and (wide or convolution.depth > _DIRECT_DEPTH)
        )
    if convolution.is_half:
        return False
    if convolution.taps == 1:
        return convolution.inputs <= _SHALLOW_CHANNELS
    if convolution.outputs == _DIRECT_CHANNELS and _SHALLOW_CHANNELS < convolution.inputs < 128:
        # One tile of 128 x 32 wide, and no whole slices of k for Hopper's.
        return convolution.macs <= _MIDDLING_MACS_PER_SM * target.sm_count
    small = convolution.macs <= _SMALL_MACS_PER_SM * target.sm_count
    return small and convolution.inputs <= _DIRECT_CHANNELS


def writes_channels_first(convolution: ConvPass, target: Target) -> bool:
    """Ampere-style kernels (``nhwckrsc_nchw``): few channels in and full tiles of them out, or little work."""
    if convolution.is_half or convolution.taps == 1:
        return False
    if len(convolution.window) == 3 and convolution.inputs > _FEW_CHANNELS:
        return True
    least, most = _HOPPER_MACS_PER_SM
    if convolution.inputs == _SHALLOW_CHANNELS and least <= convolution.macs / target.sm_count <= most:
        return False
    if convolution.inputs <= _SHALLOW_CHANNELS:
        if convolution.outputs % 128 == 0 or convolution.outputs >= 128 > 2 * convolution.inputs:
            return True
        if convolution.outputs % 64 == 0 and convolution.inputs > _FEW_CHANNELS:
            return convolution.tiles(128, 64) <= 2 * target.sm_count
    elif convolution.outputs == _SHALLOW_CHANNELS and convolution.inputs > 2 * _SHALLOW_CHANNELS:
        return True
    return convolution.macs <= _SMALL_MACS_PER_SM * target.sm_count


def _splits(convolution: ConvPass, target: Target) -> bool:
    """In-place split-K behind a memset of semaphores: deep, with fewer 64 x 32 tiles than SMs."""
    return convolution.depth >= _SPLIT_MIN_K and convolution.tiles(64, 32) < target.sm_count


def _sharing(convolution: ConvPass, target: Target) -> tuple[int, int]:
    """Set-up kernels and memsets by which the CTAs of a Hopper kernel share its tiles.

    More than two tiles a CTA are drawn from a counter, zeroed by a memset. Small tiles that just fail to fit the
    CTAs at once are shared out along k, which a kernel of one CTA sets up, and so are those of a deep data gradient that
    leave half the SMs idle. There are no Hopper kernels for windows
    that reach over more than seven pixels, nor for forward passes in three dimensions.
    """
    few = convolution.inputs <= _FEW_CHANNELS or (
        convolution.outputs < _SHALLOW_CHANNELS
        and min(convolution.inputs, convolution.outputs) < _DIRECT_CHANNELS
    )
    volume = len(convolution.window) == 3 and not convolution.transposed
    if target.capability < (9, 0) or few or volume or convolution.reach > _WIDE_WINDOW:
        return 0, 0
    ctas = int(_CLUSTERED_SHARE * target.sm_count)

    def time(tile: tuple[int, int]) -> int:
        return math.ceil(convolution.tiles(*tile) / ctas) * (tile[0] * tile[1] + _TILE_FILL * sum(tile))

    small = convolution.tiles(64, 64)
    if ctas < small <= target.sm_count:
        return 1, 0
    if convolution.transposed and convolution.depth >= _SPLIT_MIN_K and small <= target.sm_count // 2:
        return 1, 0
    return 0, int(convolution.tiles(*min(_HOPPER_TILES, key=time)) > 2 * ctas)
