"""Which algorithm computes a convolution: direct, Winograd, or bfloat16 parts on a matrix unit. By analytic estimate.

Weights are transformed here, at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.graph.graph import Attribute, Graph, Node, TensorType
from burnish.ops.convolution import window_extent
from burnish.ops.split import DEPTH, ROWS, TERMS, split_matrix, split_weight
from burnish.ops.winograd import KERNEL, transform_weight
from burnish.target import Target

# Flops reached, as a share of peak: direct convolution, Winograd's small products, tiles of a matrix unit.
DIRECT_EFFICIENCY, PRODUCT_EFFICIENCY, TILE_EFFICIENCY = 0.92, 0.8, 0.65
# Vector operations per element of a transformed tile in the transforms of F(m).
TRANSFORM_WORK = {2: 6.0, 4: 10.0}
PARTS_WORK = 24.0  # vector operations to make both parts of one input element
MAX_BLOCK = 1024  # pixels of a block of tiles: its results should stay in the first-level caches


@dataclass(frozen=True)
class Window:
    """The sizes of a convolution. ``rows``: output rows of a block of the split algorithm."""

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
        return 2.0 * self.kernel[0] * self.kernel[1] * self.channels * self.outputs * self.batch * self.out[0] * self.out[1]


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of one algorithm: its operator's name and attributes."""

    op: str
    attrs: dict[str, Attribute]
    seconds: float


def _direct(w: Window, target: Target) -> Estimate:
    return Estimate("conv2d", {}, w.flops / (target.flops * DIRECT_EFFICIENCY))


def _winograd(w: Window, m: int, target: Target) -> Estimate:
    """Multiply-adds against the streaming of n * n / 9 times the weights, plus the transforms."""
    n = m + KERNEL - 1
    tiles = w.batch * -(-w.out[0] // m) * -(-w.out[1] // m)
    products = 2 * n * n * w.channels * w.outputs * tiles / (target.flops * PRODUCT_EFFICIENCY)
    streaming = 4 * n * n * w.channels * w.outputs / target.memory_bandwidth
    transforms = TRANSFORM_WORK[m] * tiles * n * n * (w.channels + w.outputs) * 2 / target.flops
    return Estimate("winograd_conv2d", {"m": m}, max(products, streaming) + transforms)


def _split(w: Window, target: Target) -> Estimate:
    """Whole tiles of channels and pixels, plus the making of parts, against the streaming of weights."""
    pitch = w.out[1] + (w.kernel[1] - 1) // w.strides[1]
    rows, pixels = split_rows(w.out[0], pitch, -(-w.outputs // (2 * ROWS)), target)
    depth = -(-w.channels // DEPTH) * DEPTH
    outputs = -(-w.outputs // ROWS) * ROWS
    products = 2 * TERMS * w.kernel[0] * w.kernel[1] * depth * outputs * w.batch * pixels
    streaming = 4 * w.kernel[0] * w.kernel[1] * depth * outputs / target.memory_bandwidth
    parts = PARTS_WORK * 2 * depth * w.batch * w.size[0] * w.size[1] / target.flops
    seconds = max(products / (target.matrix_flops * TILE_EFFICIENCY), streaming) + parts
    return Estimate("split_conv2d", {"rows": rows}, seconds)


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
    found = [_direct(w, target)]
    whole = w.channels % target.lanes == 0 and w.outputs >= target.lanes
    if whole and w.kernel == (KERNEL, KERNEL) and w.strides == (1, 1):
        found += [_winograd(w, m, target) for m in (2, 4)]
    if target.has("amx-bf16") and w.channels >= target.lanes // 2 and w.outputs >= target.lanes:
        found.append(_split(w, target))
    return [replace(e, attrs={**e.attrs, **_window_attrs(e.op, w, pads)}) for e in found]


def _window_attrs(op: str, w: Window, pads: tuple[int, ...]) -> dict[str, Attribute]:
    return {"winograd_conv2d": {"pads": pads}, "split_conv2d": {"pads": pads, "strides": w.strides, "outputs": w.outputs}}.get(op, {})


def choose_algorithms(graph: Graph, target: Target, exact: bool) -> Graph:
    """Replaces convolutions by the algorithm that is estimated to be fastest; all stay direct when ``exact``."""
    if exact:
        return graph
    types, constants = dict(graph.types), dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        if _splits_matmul(graph, node, target):
            source = node.inputs[1]
            name = f"{source}.split_matmul"
            if name not in constants:
                constants[name] = split_matrix(graph.constants[source])
                types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
            columns = graph.types[source].shape[1]
            nodes.append(replace(node, op="split_matmul", inputs=(node.inputs[0], name), attrs={"columns": columns}))
            continue
        best = _best(graph, node, target)
        if best is None or best.op == "conv2d":
            nodes.append(node)
            continue
        source = node.inputs[1]
        name = f"{source}.{best.op}{best.attrs.get('m', '')}"
        if name not in constants:
            weight = graph.constants[source]
            made = transform_weight(weight, int(best.attrs["m"])) if "m" in best.attrs else split_weight(weight)  # type: ignore[call-overload]
            constants[name], types[name] = made, TensorType(made.shape, str(made.dtype))
        nodes.append(replace(node, op=best.op, inputs=(node.inputs[0], name), attrs=best.attrs))
    return graph.with_nodes(nodes, types=types, constants=constants)


def _best(graph: Graph, node: Node, target: Target) -> Estimate | None:
    """The fastest algorithm for a dense convolution with constant weights; None for any other node."""
    if node.op != "conv2d" or len(node.inputs) != 2 or node.inputs[1] not in graph.constants:
        return None
    x, weight = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    if node.attrs.get("groups", 1) != 1 or node.attrs.get("dilations", (1, 1)) != (1, 1) or x.dtype != "float32":
        return None
    pads = _ints(node.attrs.get("pads", (0, 0, 0, 0)))
    strides = _ints(node.attrs.get("strides", (1, 1)))
    batch, channels, height, width = x.shape
    outputs, _, kernel_h, kernel_w = weight.shape
    out = (
        window_extent(height, kernel_h, strides[0], pads[0], pads[2], 1),
        window_extent(width, kernel_w, strides[1], pads[1], pads[3], 1),
    )
    w = Window(batch, channels, outputs, (kernel_h, kernel_w), (strides[0], strides[1]), (height, width), out)
    return min(estimates(w, pads, target), key=lambda e: e.seconds)


def _splits_matmul(graph: Graph, node: Node, target: Target) -> bool:
    """Whether a product with a constant matrix is faster in bfloat16 parts: from half a tile of rows on."""
    if node.op != "matmul" or node.inputs[1] not in graph.constants or not target.has("amx-bf16"):
        return False
    a, b = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    if node.inputs[0] in graph.constants or len(b.shape) != 2 or len(a.shape) < 2 or any(node.attrs.values()):
        return False
    rows = a.size // max(1, a.shape[-1])
    return a.dtype == "float32" and rows > ROWS // 2 and b.shape[0] >= DEPTH and b.shape[1] >= ROWS


def _ints(value: Attribute) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]
