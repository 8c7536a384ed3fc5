"""Which algorithm computes a convolution: direct, Winograd, polyphase, or bfloat16 parts on a matrix unit. By analytic estimate.

Weights are transformed here, at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from burnish.graph.graph import Attribute, Graph, Node, TensorType
from burnish.ops.convolution import band, band_depth, window_extent
from burnish.ops.interpolation import POINTS
from burnish.ops.polyphase import taps_of, transform_phases
from burnish.ops.split import DEPTH, ROWS, TERMS, split_matrix, split_stem_weight, split_weight
from burnish.ops.winograd import KERNEL, transform_weight
from burnish.target import Target

# Flops reached, as a share of peak: direct convolution, tiles of a matrix unit, and Winograd's small products where the
# transformed weights stay in half of the second-level cache and where they do not.
DIRECT_EFFICIENCY, TILE_EFFICIENCY, PRODUCT_EFFICIENCY, STREAMED_EFFICIENCY = 0.8, 0.75, 0.85, 0.5
# Share of the time to move activations through the outer caches that is not hidden behind arithmetic.
DIRECT_TRAFFIC, PHASED_TRAFFIC = 0.4, 1.0
# Vector operations per element of a transformed tile in the transforms of F(m).
TRANSFORM_WORK = {2: 6.0, 4: 10.0}
VECTOR_EFFICIENCY = 0.4  # flops reached by the transforms of the polyphase algorithm, as a share of peak
PARTS_WORK = 24.0  # vector operations to make both parts of one input element
POLYPHASE_TILES = (2, 4)
STEM_CHANNELS = 4
STEM_WORK = 160.0  # the same where channels have to be interleaved
MAX_BLOCK = 1024  # pixels of a block of tiles: its results should stay in the first-level caches


@dataclass(frozen=True)
class Window:
    """The sizes of a convolution: ``size`` and ``out`` are input and output heights and widths."""

    batch: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    size: tuple[int, int]
    out: tuple[int, int]

    @property
    def flops(self) -> float:
        """Operations of the direct algorithm."""
        taps = self.kernel[0] * self.kernel[1]
        return 2.0 * taps * self.channels * self.outputs * self.batch * self.out[0] * self.out[1]

    @property
    def input_bytes(self) -> float:
        return 4.0 * self.batch * self.channels * self.size[0] * self.size[1]

    @property
    def share_read(self) -> float:
        """The share of the input that a strided window smaller than its stride reads."""
        return min(1.0, self.kernel[0] / self.strides[0]) * min(1.0, self.kernel[1] / self.strides[1])

    @property
    def output_bytes(self) -> float:
        return 4.0 * self.batch * self.outputs * self.out[0] * self.out[1]


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of one algorithm: its operator's name and attributes."""

    op: str
    attrs: dict[str, Attribute]
    seconds: float


def _direct(w: Window, target: Target) -> Estimate:
    traffic = DIRECT_TRAFFIC * (w.input_bytes + w.output_bytes) / target.cache_bandwidth
    return Estimate("conv2d", {}, w.flops / (target.flops * DIRECT_EFFICIENCY) + traffic)


def _winograd(w: Window, m: int, target: Target) -> Estimate:
    """Multiply-adds, the streaming of n * n / 9 times the weights, which they do not hide, and the transforms."""
    n = m + KERNEL - 1
    tiles = w.batch * -(-w.out[0] // m) * -(-w.out[1] // m)
    weight_bytes = 4 * n * n * w.channels * w.outputs
    efficiency = PRODUCT_EFFICIENCY if weight_bytes <= target.l2_bytes // 2 else STREAMED_EFFICIENCY
    products = 2 * n * n * w.channels * w.outputs * tiles / (target.flops * efficiency)
    streaming = weight_bytes / target.memory_bandwidth
    transforms = TRANSFORM_WORK[m] * tiles * n * n * (w.channels + w.outputs) * 2 / target.flops
    traffic = PHASED_TRAFFIC * (w.input_bytes + w.output_bytes) / target.cache_bandwidth
    return Estimate("winograd_conv2d", {"m": m}, products + streaming + transforms + traffic)


def _polyphase(w: Window, m: int, target: Target) -> Estimate:
    """Multiply-adds and both transforms; the rows between two bands are transformed twice."""
    stride = w.strides[1]
    points = m + taps_of(w.kernel[1], stride) - 1
    tiles = w.batch * w.out[0] * -(-w.out[1] // m)
    products = 2 * points * stride * w.kernel[0] * w.channels * w.outputs * tiles
    columns = points * stride
    data = 2 * w.channels * w.strides[0] * tiles * columns * -(-columns // target.lanes) * target.lanes
    outputs = 2 * points * m * w.outputs * tiles
    traffic = DIRECT_TRAFFIC * (w.input_bytes + w.output_bytes) / target.cache_bandwidth
    seconds = products / (target.flops * DIRECT_EFFICIENCY) + (data + outputs) / (target.flops * VECTOR_EFFICIENCY)
    return Estimate("polyphase_conv2d", {"m": m, "kernel_w": w.kernel[1]}, seconds + traffic)


def _split(w: Window, target: Target) -> Estimate:
    """Whole tiles of channels and pixels, plus the making of parts, against the streaming of weights."""
    pitch = w.out[1] + (w.kernel[1] - 1) // w.strides[1]
    rows, pixels = split_rows(w.out[0], pitch, -(-w.outputs // (2 * ROWS)), target)
    depth = -(-w.channels // DEPTH) * DEPTH
    outputs = -(-w.outputs // ROWS) * ROWS
    products = 2 * TERMS * w.kernel[0] * w.kernel[1] * depth * outputs * w.batch * pixels
    streaming = 4 * w.kernel[0] * w.kernel[1] * depth * outputs / target.memory_bandwidth
    parts = PARTS_WORK * 2 * depth * w.batch * w.size[0] * w.size[1] * w.share_read / target.flops
    traffic = PHASED_TRAFFIC * (2 * w.share_read * w.input_bytes + 1.7 * w.output_bytes) / target.cache_bandwidth
    seconds = max(products / (target.matrix_flops * TILE_EFFICIENCY), streaming) + parts + traffic
    return Estimate("split_conv2d", {"rows": rows, "outputs": w.outputs}, seconds)


def _stem(w: Window, target: Target) -> Estimate:
    """As :func:`_split`, with a row of the window in place of the channels."""
    depth = -(-w.kernel[1] * w.channels // DEPTH) * DEPTH
    pixels = w.out[0] * -(-w.out[1] // ROWS) * ROWS
    products = 2 * TERMS * w.kernel[0] * depth * -(-w.outputs // ROWS) * ROWS * w.batch * pixels
    parts = STEM_WORK * 2 * w.channels * w.batch * w.size[0] * w.size[1] / target.flops
    seconds = products / (target.matrix_flops * TILE_EFFICIENCY) + parts
    return Estimate("split_stem", {"outputs": w.outputs, "kernel_w": w.kernel[1]}, seconds)


def split_rows(out_h: int, pitch: int, groups: int, target: Target) -> tuple[int, int]:
    """(output rows of a block, pixels computed in all): least waste among blocks that keep every core busy."""
    best: tuple[float, int, int] | None = None
    for rows in range(1, out_h + 1):
        if rows > 1 and rows * pitch > MAX_BLOCK:
            break
        blocks = -(-out_h // rows)
        pixels = blocks * -(-rows * pitch // (2 * ROWS)) * 2 * ROWS
        work = blocks * groups
        imbalance = -(-work // target.cores) * target.cores / work
        key = (pixels * imbalance, -rows, pixels)
        if best is None or key < best:
            best = key
    assert best is not None
    return -best[1], best[2]


def estimates(w: Window, pads: tuple[int, ...], target: Target) -> list[Estimate]:
    """The algorithms that can compute a convolution on ``target``, and what they should take."""
    place: dict[str, Attribute] = {"pads": pads, "strides": w.strides}
    found = [_direct(w, target)]
    if w.outputs < target.lanes:
        return found
    if w.channels % target.lanes == 0 and w.kernel == (KERNEL, KERNEL) and w.strides == (1, 1):
        winograd = [_winograd(w, m, target) for m in (2, 4)]
        found += [replace(e, attrs={**e.attrs, "pads": pads}) for e in winograd]
    for m in POLYPHASE_TILES:
        if m + taps_of(w.kernel[1], w.strides[1]) - 1 in POINTS and w.kernel[1] > w.strides[1]:
            polyphase = _polyphase(w, m, target)
            found.append(replace(polyphase, attrs={**polyphase.attrs, **place}))
    if target.has("amx-bf16") and w.channels >= target.lanes // 2:
        split = _split(w, target)
        found.append(replace(split, attrs={**split.attrs, **place}))
    if target.has("amx-bf16") and w.channels <= STEM_CHANNELS:
        stem = _stem(w, target)
        found.append(replace(stem, attrs={**stem.attrs, **place}))
    return found


def choose_algorithms(graph: Graph, target: Target, exact: bool) -> Graph:
    """Replaces convolutions and products by the algorithm estimated to be fastest; ``exact`` keeps all as they are."""
    if exact:
        return graph
    types, constants = dict(graph.types), dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        block = _band_block(graph, node, target)
        if block:
            nodes.append(_banded(graph, node, block, types, constants))
            continue
        best = _best(graph, node, target)
        if best is None:
            nodes.append(node)
            continue
        source = node.inputs[1]
        name = f"{source}.{best.op}{best.attrs.get('m', '')}"
        if name not in constants:
            constants[name] = _transformed(graph.constants[source], best)
            types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
        nodes.append(replace(node, op=best.op, inputs=(node.inputs[0], name), attrs=best.attrs))
    return graph.with_nodes(nodes, types=types, constants=constants)


def _transformed(weight: np.ndarray, chosen: Estimate) -> np.ndarray:
    """The weight as the chosen algorithm reads it."""
    if chosen.op == "polyphase_conv2d":
        m, strides = chosen.attrs["m"], _ints(chosen.attrs["strides"])
        assert isinstance(m, int)
        return transform_phases(weight, m, strides[1])
    if chosen.op == "winograd_conv2d":
        m = chosen.attrs["m"]
        assert isinstance(m, int)
        return transform_weight(weight, m)
    makers = {"split_conv2d": split_weight, "split_stem": split_stem_weight, "split_matmul": split_matrix}
    return makers[chosen.op](weight)


def _best(graph: Graph, node: Node, target: Target) -> Estimate | None:
    """The fastest algorithm for a node with constant weights; None where that is the one it has."""
    if len(node.inputs) != 2 or node.inputs[1] not in graph.constants or graph.types[node.inputs[0]].dtype != "float32":
        return None
    if node.op == "matmul":
        columns = graph.types[node.inputs[1]].shape[-1]
        return Estimate("split_matmul", {"columns": columns}, 0.0) if _splits_matmul(graph, node, target) else None
    if node.op != "conv2d" or node.attrs.get("groups", 1) != 1 or node.attrs.get("dilations", (1, 1)) != (1, 1):
        return None
    pads = _ints(node.attrs.get("pads", (0, 0, 0, 0)))
    best = min(estimates(_window(graph, node, pads), pads, target), key=lambda e: e.seconds)
    return best if best.op != "conv2d" else None


def _window(graph: Graph, node: Node, pads: tuple[int, ...]) -> Window:
    strides = _ints(node.attrs.get("strides", (1, 1)))
    batch, channels, height, width = graph.types[node.inputs[0]].shape
    outputs, _, kernel_h, kernel_w = graph.types[node.inputs[1]].shape
    out = (
        window_extent(height, kernel_h, strides[0], pads[0], pads[2], 1),
        window_extent(width, kernel_w, strides[1], pads[1], pads[3], 1),
    )
    return Window(batch, channels, outputs, (kernel_h, kernel_w), (strides[0], strides[1]), (height, width), out)


def _band_block(graph: Graph, node: Node, target: Target) -> int:
    """Output channels of a block of a banded convolution, where groups do not fit vectors; 0 for other nodes.

    Groups of whole vectors need no bands, and where several groups fit a vector, shuffles are cheaper than zeros.
    """
    groups = node.attrs.get("groups", 1)
    if node.op != "conv2d" or groups == 1 or len(node.inputs) != 2 or node.inputs[1] not in graph.constants:
        return 0
    assert isinstance(groups, int)
    outputs, depth = graph.types[node.inputs[1]].shape[:2]
    per_group = outputs // groups
    if graph.types[node.inputs[0]].dtype != "float32" or per_group % target.lanes == 0 or outputs < target.lanes:
        return 0
    if target.lanes % (4 * per_group) == 0:
        return 0

    def work(block: int) -> tuple[int, int]:
        return -(-outputs // block) * block * band_depth(outputs, depth, groups, block), -block

    return min((target.lanes, 2 * target.lanes, 4 * target.lanes), key=work)


def _banded(
    graph: Graph, node: Node, block: int, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> Node:
    """``node`` as a banded convolution; its weight is added to ``types`` and ``constants``."""
    weight, groups = graph.constants[node.inputs[1]], node.attrs["groups"]
    assert isinstance(groups, int)
    name = f"{node.inputs[1]}.band{groups}.{block}"
    if name not in constants:
        constants[name] = band(weight, groups, block)
        types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
    attrs = {key: value for key, value in node.attrs.items() if key != "groups"}
    attrs.update(outputs=len(weight) // groups, depth=weight.shape[1], block=block)
    return replace(node, op="banded_conv2d", inputs=(node.inputs[0], name), attrs=attrs)


def _splits_matmul(graph: Graph, node: Node, target: Target) -> bool:
    """Whether a product with a constant matrix is faster in bfloat16 parts: from half a tile of rows on."""
    a, b = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    plain = len(b.shape) == 2 and len(a.shape) >= 2 and not any(node.attrs.values())
    if not plain or node.inputs[0] in graph.constants or not target.has("amx-bf16"):
        return False
    rows = a.size // max(1, a.shape[-1])
    if sum(extent > 1 for extent in a.shape[:-1]) > 2:  # blocks of rows would cross the ends of several axes
        return False
    return rows > ROWS // 2 and b.shape[0] >= DEPTH and b.shape[1] >= ROWS


def _ints(value: Attribute) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]
