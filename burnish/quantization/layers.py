"""The layers of a graph that quantization is about: products and convolutions, with what surrounds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.graph.passes import optimize
from burnish.graph.rewrite import Rewrite, rewrite

LIMITS = ("relu", "clip")  # activations that a quantizer behind them makes free
SAME_SCALE = ("max_pool2d", "concat")  # whose results and operands have one scale: bytes are moved as they are
POOLS = ("max_pool2d", "avg_pool2d", "reduce_mean", "concat")


@dataclass(frozen=True)
class QuantizableLayer:
    """A convolution or product. ``result``: the tensor behind its bias and its limits, which is quantized next."""

    node: Node
    result: str
    constant: bool

    @property
    def name(self) -> str:
        """Its name in the model."""
        return self.node.name or self.node.outputs[0]

    @property
    def key(self) -> str:
        """The name of what the product itself gives, by which quantizers know the layer."""
        return self.node.outputs[0]


def prepared(graph: Graph) -> Graph:
    """The graph in canonical form, batch normalization folded, with biases of convolutions as their third operand."""
    return rewrite(optimize(graph), _with_bias)


def _with_bias(new: Rewrite, node: Node) -> Sequence[str] | None:
    """``conv2d(x, W) + b`` as a convolution with a bias."""
    if node.op != "add":
        return None
    x, bias = node.inputs
    value, before = new.value(bias), new.producer(x)
    if value is None or before is None or before.op != "conv2d" or len(before.inputs) != 2 or not new.used_once(x):
        return None
    channels = new.types[x].shape[1]
    if value.shape != (channels, 1, 1) and value.shape != (1, channels, 1, 1):
        return None
    vector = new.derived(bias, "vector", lambda found: found.reshape(-1))
    return new.replace(node, "conv2d", *before.inputs, vector, **before.attrs)


class LayeredGraph:
    """A prepared graph and its layers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers, self.consumers = graph.producers(), graph.consumers()

    @cached_property
    def layers(self) -> list[QuantizableLayer]:
        """Products of float32 numbers: with constant weights, and matrix products of two computed tensors."""
        return [*self._layers()]

    def _layers(self) -> Iterator[QuantizableLayer]:
        for node in self.graph.nodes:
            if node.op not in ("conv2d", "matmul"):
                continue
            x, w = (self.graph.types[name] for name in node.inputs[:2])
            constant = node.inputs[1] in self.graph.constants
            if x.dtype != "float32" or w.dtype != "float32" or node.inputs[0] in self.graph.constants:
                continue
            if node.op == "matmul" and (len(x.shape) < 2 or len(w.shape) < 2 or node.attrs.get("transpose_a")):
                continue
            if node.op == "conv2d" and not constant:
                continue
            if constant and node.op == "matmul" and (len(w.shape) != 2 or node.attrs.get("transpose_b")):
                continue
            yield QuantizableLayer(node, self._behind(node), constant)

    def _behind(self, node: Node) -> str:
        """The tensor behind a product's bias and limits, as far as only these read what is before them."""
        name = node.outputs[0]
        while (reader := self.only_reader(name)) is not None:
            bias = reader.op == "add" and any(n in self.graph.constants for n in reader.inputs)
            if not bias and reader.op not in LIMITS:
                break
            name = reader.outputs[0]
        return name

    def only_reader(self, name: str) -> Node | None:
        """The one node that reads a tensor that is no output."""
        readers = self.consumers[name]
        return readers[0] if len(readers) == 1 and name not in self.graph.outputs else None

    def quantized_tensors(
        self, layers: Iterable[QuantizableLayer], activations: bool, between: bool = True
    ) -> tuple[dict[str, str], frozenset[str]]:
        """The tensors that are quantized if ``layers`` are, each with the tensor whose scale it has; and the results of
        nodes that read the dequantized values.

        These are the operands of the layers; and, if ``between``, of sums of images and pools whose result is one.
        """
        found: dict[str, str] = {}
        readers: set[str] = set()
        if not activations:
            return found, frozenset()
        results = {layer.result for layer in layers}
        for layer in layers:
            readers.add(layer.key)
            for name in layer.node.inputs[: 1 if layer.constant else 2]:
                found.setdefault(name, name)
        for node in reversed(self.graph.nodes if between else ()):
            result = self._behind(node) if node.op == "add" else node.outputs[0]
            image = len(self.graph.types[node.inputs[0]].shape) == 4 if node.inputs else False
            joined = node.op == "add" and not any(n in self.graph.constants for n in node.inputs)
            if not image or not (joined or node.op in POOLS) or self.graph.types[result].dtype != "float32":
                continue
            ends = node.op in ("reduce_mean", "avg_pool2d")  # which read what is quantized, if nothing else does
            if result in found and not ends:
                for name in node.inputs:
                    if name in self.producers and name not in found:
                        found[name] = found[result] if node.op in SAME_SCALE else name
            elif not (ends and any(name in results or self._is_sum(name) for name in node.inputs)):
                continue
            elif ends:
                found.setdefault(node.inputs[0], node.inputs[0])
            if any(name in found for name in node.inputs):
                readers.add(node.outputs[0])
        return found, frozenset(readers)

    def _is_sum(self, name: str) -> bool:
        """Whether an image is a sum of two, behind limits."""
        node = self.producers.get(name)
        while node is not None and node.op in LIMITS:
            node = self.producers.get(node.inputs[0])
        return node is not None and node.op == "add"


def alone(graph: Graph, layer: QuantizableLayer) -> Graph:
    """A layer with its bias and limits, from its operands to its result."""
    nodes, wanted = [], {layer.result}
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        nodes.append(node)
        if node.outputs == layer.node.outputs:
            break
        wanted.update(node.inputs)
    read = [n for n in dict.fromkeys(layer.node.inputs) if n not in graph.constants]
    return replace(graph, inputs=tuple(read), states={}, limits={}).with_nodes(nodes[::-1], outputs=(layer.result,))


def signature(graph: Graph, layer: QuantizableLayer) -> str:
    """A text that layers of the same shapes, attributes and surroundings have in common."""
    part = alone(graph, layer)
    names: dict[str, str] = {}

    def of(name: str) -> str:
        return names.setdefault(name, f"t{len(names)}:{part.types[name]}")

    words = []
    for node in part.nodes:
        attrs = sorted(ops.OPERATORS[node.op].complete(node.attrs).items())
        words.append(f"{[*map(of, node.inputs)]} {node.op} {attrs} {[*map(of, node.outputs)]}")
    return "\n".join(words)
