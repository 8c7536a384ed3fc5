"""Convolution algorithms: Winograd where an analytic estimate says that it wins, with its weights transformed now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from burnish.graph.graph import Graph, Node, TensorType
from burnish.ops.winograd import KERNEL, transform_weight
from burnish.target import Target

_PLAIN = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
# Flops reached, as a share of peak: direct convolution, and the products of Winograd's small matrices.
DIRECT_EFFICIENCY, PRODUCT_EFFICIENCY = 0.92, 0.8
# Vector operations per input or output element of a tile in the transforms of F(m).
TRANSFORM_WORK = {2: 6.0, 4: 10.0}


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of one way to compute a convolution. ``m`` 0: direct."""

    m: int
    seconds: float


def estimates(x: tuple[int, ...], weight: tuple[int, ...], pads: tuple[int, ...], target: Target) -> list[Estimate]:
    """Direct, F(2 x 2) and F(4 x 4): multiply-adds against the streaming of weights, plus the transforms."""
    batch, channels, height, width = x
    outputs = weight[0]
    out_h, out_w = height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2
    direct = 2 * 9 * channels * outputs * batch * out_h * out_w
    found = [Estimate(0, direct / (target.flops * DIRECT_EFFICIENCY))]
    for m in (2, 4):
        n = m + KERNEL - 1
        tiles = batch * -(-out_h // m) * -(-out_w // m)
        products = 2 * n * n * channels * outputs * tiles / (target.flops * PRODUCT_EFFICIENCY)
        streaming = 4 * n * n * channels * outputs / target.memory_bandwidth
        transforms = TRANSFORM_WORK[m] * tiles * n * n * (channels + outputs) * 2 / target.flops
        found.append(Estimate(m, max(products, streaming) + transforms))
    return found


def choose_algorithms(graph: Graph, target: Target, exact: bool) -> Graph:
    """Replaces 3 x 3 convolutions by Winograd ones where they are estimated to be faster; never when ``exact``."""
    if exact:
        return graph
    types, constants = dict(graph.types), dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        m = _best(graph, node, target)
        if m == 0:
            nodes.append(node)
            continue
        name = f"{node.inputs[1]}.winograd{m}"
        if name not in constants:
            constants[name] = transform_weight(graph.constants[node.inputs[1]], m)
            types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
        attrs: Mapping[str, int | tuple[int, ...]] = {"m": m, "pads": tuple(node.attrs.get("pads", (0, 0, 0, 0)))}  # type: ignore[arg-type]
        nodes.append(replace(node, op="winograd_conv2d", inputs=(node.inputs[0], name), attrs=attrs))
    return graph.with_nodes(nodes, types=types, constants=constants)


def _best(graph: Graph, node: Node, target: Target) -> int:
    """The Winograd tile size that wins, or 0."""
    if node.op != "conv2d" or len(node.inputs) != 2 or node.inputs[1] not in graph.constants:
        return 0
    if any(node.attrs.get(key, value) != value for key, value in _PLAIN.items()):
        return 0
    x, weight = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    fits = x.shape[1] % target.lanes == 0 and weight.shape[0] >= target.lanes and x.dtype == "float32"
    if weight.shape[2:] != (KERNEL, KERNEL) or not fits or node.inputs[0] in graph.inputs:
        return 0
    pads = tuple(int(p) for p in node.attrs.get("pads", (0, 0, 0, 0)))  # type: ignore[union-attr, arg-type]
    return min(estimates(x.shape, weight.shape, pads, target), key=lambda e: e.seconds).m

