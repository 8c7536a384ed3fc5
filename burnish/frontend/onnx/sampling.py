"""Translators of ONNX operators that read images between their elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.loops.expr import FLOATS

MOST_SAMPLES = 1 << 10  # along one dimension of one place of a box: more see no more of an image
MOST_WEIGHTS = 1 << 26  # of one dimension's resampling, before those of one element are added
_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before opset 20


def _grid_sample(c: OnnxContext, n: OnnxNode) -> str:
    mode = n.attr("mode", "linear")
    return c.add(
        "grid_sample", *n.inputs, mode=_GRID_MODES.get(mode, mode), padding=n.attr("padding_mode", "zeros"),
        align_corners=bool(n.attr("align_corners", 0)),
    )  # fmt: skip


def _affine_grid(c: OnnxContext, n: OnnxNode) -> str:
    """The places that a grid of an image's size has after an affine map: one matrix product."""
    theta, size = n.inputs[0], c.ints(n.inputs[1], "size")
    rank = len(size) - 2
    if rank not in (2, 3) or c.shape(theta) != (size[0], rank, rank + 1):
        c.invalid("theta and size", f"shape {list(c.shape(theta))}, {list(size)}", "[N, 2, 3] and 4, [N, 3, 4] and 5")
    if min(size) < 1:
        c.invalid("input 'size'", list(size), "1 or more")
    c.require_room((*size[2:], rank + 1), "float64")
    lines = []
    for extent in size[2:]:
        if n.attr("align_corners", 0):
            lines.append(np.linspace(-1, 1, extent) if extent > 1 else np.zeros(1))
        else:
            lines.append((np.arange(extent) * 2 + 1) / extent - 1)
    grids = np.meshgrid(*lines, indexing="ij")
    places = np.stack([*reversed(grids), np.ones_like(grids[0])], -1).reshape(-1, rank + 1)
    base = c.constant(places, c.dtype(theta))
    return c.reshape(c.add("matmul", base, theta, transpose_b=True), (size[0], *size[2:], rank))


def _roi_align(c: OnnxContext, n: OnnxNode) -> str:
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    mode = n.attr("coordinate_transformation_mode", default)
    if mode not in ("half_pixel", "output_half_pixel"):
        c.invalid("attribute 'coordinate_transformation_mode'", mode, "half_pixel, output_half_pixel")
    ratio, x, boxes = n.attr("sampling_ratio", 0), n.inputs[0], n.inputs[1]
    size = (n.attr("output_height", 1), n.attr("output_width", 1))
    if not 0 <= ratio <= MOST_SAMPLES:
        c.invalid("attribute 'sampling_ratio'", ratio, f"0 to {MOST_SAMPLES}")
    if c.rank(x) != 4 or c.rank(boxes) != 2 or c.shape(boxes)[1] != 4 or c.shape(n.inputs[2]) != c.shape(boxes)[:1]:
        shapes = ", ".join(str(list(c.shape(name))) for name in n.inputs)
        c.invalid("inputs", f"shapes {shapes}", "[N, C, H, W], [boxes, 4] and [boxes]")
    if min(size) < 1:
        c.invalid("attributes 'output_height' and 'output_width'", size, "1 or more")
    c.require_range(n.inputs[2], "batch_indices", 0, c.shape(x)[0], "positions in the batch")
    return c.add(
        "roi_align", *n.inputs, size=size, mode=n.attr("mode", "avg"), sampling_ratio=ratio,
        spatial_scale=n.attr("spatial_scale", 1.0),
        half_pixel=mode == "half_pixel",
    )  # fmt: skip


def _deform_conv(c: OnnxContext, n: OnnxNode) -> str:
    """A product of the weight and what the windows read, for every group of channels."""
    x, weight, offset = n.inputs[:3]
    if c.rank(x) != 4:
        c.refuse("input 0", f"{c.rank(x)} dimensions", "4: [N, C, H, W]")
    outputs, depth, *kernel = c.shape(weight)
    groups = n.attr("group", 1)
    columns = c.add(
        "deformed_columns", x, offset, *([n.input(4)] if n.input(4) else []), kernel=tuple(kernel),
        strides=tuple(n.attr("strides", (1, 1))), pads=tuple(n.attr("pads", (0, 0, 0, 0))),
        dilations=tuple(n.attr("dilations", (1, 1))), offset_groups=n.attr("offset_group", 1),
    )  # fmt: skip
    batch, places = c.shape(x)[0], c.shape(columns)[3]
    flat = c.reshape(columns, (batch, groups, depth * math.prod(kernel), places))
    own = c.reshape(weight, (groups, outputs // groups, depth * math.prod(kernel)))
    y = c.reshape(c.add("matmul", own, flat), (batch, outputs, *c.shape(offset)[2:]))
    return c.add("add", y, c.reshape(n.input(3), (outputs, 1, 1))) if n.input(3) else y


# --- resize -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResizeAxis:
    """Resampling along one dimension: ``size`` elements of ``extent``, ``scale`` apart, from ``roi`` of it."""

    extent: int
    size: int
    scale: float
    coordinates: str
    roi: tuple[float, float] = (0.0, 1.0)

    def places(self) -> np.ndarray:
        """Input coordinates of the output elements (ONNX, Resize: coordinate_transformation_mode)."""
        i, n = np.arange(self.size, dtype=np.float64), self.extent
        match self.coordinates:
            case "asymmetric":
                return i / self.scale
            case "align_corners":
                return i * (n - 1) / (self.size - 1) if self.size > 1 else np.zeros(self.size)
            case "tf_crop_and_resize":
                start, end = self.roi
                if self.size == 1:
                    return np.full(1, (start + end) * (n - 1) / 2)
                return start * (n - 1) + i * (end - start) * (n - 1) / (self.size - 1)
            case "pytorch_half_pixel" if self.size == 1:
                return np.full(1, -0.5)
            case "half_pixel_symmetric":
                shift = n / 2 * (1 - self.size / (self.scale * n)) if n else 0.0
                return shift + (i + 0.5) / self.scale - 0.5
        return (i + 0.5) / self.scale - 0.5

    def outside(self) -> np.ndarray:
        """Mask of output elements that lie outside the image and are not resampled."""
        places = self.places()
        crops = self.coordinates == "tf_crop_and_resize"
        return crops & ((places < 0) | (places > self.extent - 1))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _keys(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """The cubic kernel with coefficient ``a``."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel


def sampling_matrix(line: ResizeAxis, mode: str, cubic: float, antialias: bool, exclude_outside: bool) -> np.ndarray:
    """The weights [size, extent] by which the inputs make each output."""
    kernel, reach = (_triangle, 1) if mode == "linear" else (_keys(cubic), 2)
    if not line.size:
        return np.zeros((0, line.extent))
    stretch = min(line.scale, 1.0) if antialias else 1.0
    taps = reach - math.floor(-reach / stretch) - 1 if stretch == 1 else -math.floor(-reach / stretch)
    places = line.places()
    base = np.ceil(places).astype(np.int64) - 1
    index = base[:, None] + 1 + np.arange(-taps, taps)
    weights = kernel((index - places[:, None]) * stretch)
    inside = (index >= 0) & (index < line.extent)
    if exclude_outside:
        weights = weights * inside
    if exclude_outside or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    result = np.zeros((line.size, line.extent))
    rows = np.broadcast_to(np.arange(line.size)[:, None], index.shape)
    np.add.at(result, (rows, np.clip(index, 0, line.extent - 1)), weights)
    return result


def nearest_positions(line: ResizeAxis, rounding: str) -> np.ndarray:
    """The input of each output, by ONNX's nearest_mode."""
    places = line.places()
    found = {
        "round_prefer_floor": np.ceil(places - 0.5), "round_prefer_ceil": np.floor(places + 0.5),
        "floor": np.floor(places), "ceil": np.ceil(places),
    }[rounding]  # fmt: skip
    return np.clip(found, 0, line.extent - 1).astype(np.int64)


def resampled(c: OnnxContext, x: str, lines: Mapping[int, ResizeAxis], n: OnnxNode) -> str:
    """``x`` resampled along dimensions, one after the other: by a matrix, or by positions if the mode is nearest."""
    mode, shape = n.attr("mode", "nearest").removeprefix("bi"), list(c.shape(x))
    if mode != "nearest" and c.dtype(x) not in FLOATS:
        c.refuse("input 0", f"dtype {c.dtype(x)} with mode {mode}", ", ".join(FLOATS))
    if any(line.extent == 0 and line.size for line in lines.values()):
        c.invalid("input 0", f"shape {shape}", "some elements to resample")
    y = x
    for d, line in lines.items():
        if mode == "nearest":
            positions = nearest_positions(line, n.attr("nearest_mode", "round_prefer_floor"))
            y = c.add("gather", y, c.constant(positions), axis=d)
        else:
            if line.size / min(line.scale, 1.0) * 4 > MOST_WEIGHTS:
                c.refuse("scales", line.scale, f"windows of {MOST_WEIGHTS} elements in all")
            flags = bool(n.attr("antialias", 0)), bool(n.attr("exclude_outside", 0))
            y = along(c, y, d, sampling_matrix(line, mode, n.attr("cubic_coeff_a", -0.75), *flags))
    outside = [(d, line.outside()) for d, line in lines.items() if line.outside().any()]
    for d, found in outside:
        mask = c.constant(found.reshape([-1 if k == d else 1 for k in range(len(shape))]))
        y = c.add("where", mask, c.scalar(n.attr("extrapolation_value", 0.0), y), y)
    return y


def along(c: OnnxContext, x: str, axis: int, matrix: np.ndarray) -> str:
    """``matrix`` [m, n] times ``x`` along a dimension of extent n."""
    rank = c.rank(x)
    weights = c.constant(np.ascontiguousarray(matrix.T), c.dtype(x))
    perm = [*(d for d in range(rank) if d != axis), axis]
    y = c.add("matmul", c.transpose(x, perm), weights)
    return c.transpose(y, [perm.index(d) for d in range(rank)])


def kept_aspect(policy: str, sizes: Sequence[int], extents: Sequence[int]) -> tuple[list[float], list[int]]:
    """Scales and sizes that keep the aspect ratio: the least scale that is asked for, or the greatest."""
    scales = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(sizes), [math.floor(scale * extent + 0.5) for extent in extents]


TRANSLATORS: Mapping[str, Translator] = {
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "RoiAlign": _roi_align,
    "DeformConv": _deform_conv,
}
