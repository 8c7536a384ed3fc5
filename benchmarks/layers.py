"""Single layers as ONNX models: the convolutions of the TVM paper's Table 4.2 (with ReLU) and BERT-base's products."""

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

COLD_BYTES = 160 * 2**20
MOST_COPIES = 96


@dataclass(frozen=True)
class Convolution:
    """A square convolution with bias and ReLU, batch 1, float32, padding kernel // 2."""

    name: str
    size: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    groups: int = 1

    @property
    def size_out(self) -> int:
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, self.channels_in, self.size, self.size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (1, self.channels_out, self.size_out, self.size_out)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels_out, self.channels_in // self.groups, self.kernel, self.kernel)

    @property
    def flops(self) -> int:
        return 2 * self.size_out**2 * math.prod(self.weight_shape)

    def nodes(self, source: str, target: str, index: int, random: np.random.Generator) -> tuple[list, list]:
        """Nodes and weights of one layer between two named values."""
        weight, bias = f"w{index}", f"b{index}"
        scale = math.sqrt(2 / math.prod(self.weight_shape[1:]))
        convolution = helper.make_node(
            "Conv",
            [source, weight, bias],
            [f"c{index}"],
            kernel_shape=[self.kernel] * 2,
            strides=[self.stride] * 2,
            pads=[self.kernel // 2] * 4,
            group=self.groups,
        )
        weights = {weight: random.standard_normal(self.weight_shape, dtype=np.float32) * np.float32(scale)}
        weights[bias] = random.standard_normal(self.channels_out, dtype=np.float32) * np.float32(0.1)
        return [convolution, helper.make_node("Relu", [f"c{index}"], [target])], initializers(weights)


@dataclass(frozen=True)
class Product:
    """rows × depth activations times depth × columns constant weights, plus a bias, float32."""

    name: str
    rows: int
    depth: int
    columns: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.rows, self.depth)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.depth, self.columns)

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns

    def nodes(self, source: str, target: str, index: int, random: np.random.Generator) -> tuple[list, list]:
        """Nodes and weights of one layer between two named values."""
        weight, bias = f"w{index}", f"b{index}"
        weights = {
            weight: random.standard_normal(self.weight_shape, dtype=np.float32) / np.float32(math.sqrt(self.depth)),
            bias: random.standard_normal(self.columns, dtype=np.float32) * np.float32(0.1),
        }
        product = helper.make_node("MatMul", [source, weight], [f"p{index}"])
        return [product, helper.make_node("Add", [f"p{index}", bias], [target])], initializers(weights)


Layer = Convolution | Product

CONVOLUTIONS = (
    Convolution("C1", 224, 3, 64, 7, 2),
    Convolution("C2", 56, 64, 64, 3, 1),
    Convolution("C3", 56, 64, 64, 1, 1),
    Convolution("C4", 56, 64, 128, 3, 2),
    Convolution("C5", 56, 64, 128, 1, 2),
    Convolution("C6", 28, 128, 128, 3, 1),
    Convolution("C7", 28, 128, 256, 3, 2),
    Convolution("C8", 28, 128, 256, 1, 2),
    Convolution("C9", 14, 256, 256, 3, 1),
    Convolution("C10", 14, 256, 512, 3, 2),
    Convolution("C11", 14, 256, 512, 1, 2),
    Convolution("C12", 7, 512, 512, 3, 1),
)
DEPTHWISE = (
    Convolution("D1", 112, 32, 32, 3, 1, groups=32),
    Convolution("D2", 112, 64, 64, 3, 2, groups=64),
    Convolution("D3", 56, 128, 128, 3, 1, groups=128),
    Convolution("D4", 56, 128, 128, 3, 2, groups=128),
    Convolution("D5", 28, 256, 256, 3, 1, groups=256),
    Convolution("D6", 28, 256, 256, 3, 2, groups=256),
    Convolution("D7", 14, 512, 512, 3, 1, groups=512),
    Convolution("D8", 14, 512, 512, 3, 2, groups=512),
    Convolution("D9", 7, 1024, 1024, 3, 1, groups=1024),
)
PRODUCTS = (
    Product("M1", 128, 768, 768),
    Product("M2", 128, 768, 3072),
    Product("M3", 128, 3072, 768),
)
LAYERS: dict[str, Layer] = {layer.name: layer for layer in (*CONVOLUTIONS, *DEPTHWISE, *PRODUCTS)}


def initializers(weights: dict[str, np.ndarray]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in weights.items()]


def input_array(layer: Layer) -> np.ndarray:
    """A fixed input of standard normal values."""
    return np.random.default_rng(1).standard_normal(layer.input_shape, dtype=np.float32)


def model(layer: Layer, seed: int = 0, length: int = 1) -> bytes:
    """A serialized ONNX model of `length` such layers in a row, each with weights of its own, from "x" to "y"."""
    random = np.random.default_rng(seed)
    nodes, weights = [], []
    for index in range(length):
        source = "x" if index == 0 else f"x{index}"
        target = "y" if index == length - 1 else f"x{index + 1}"
        layer_nodes, layer_weights = layer.nodes(source, target, index, random)
        nodes += layer_nodes
        weights += layer_weights
    graph = helper.make_graph(
        nodes,
        layer.name,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, layer.input_shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, layer.output_shape)],
        weights,
    )
    # IR version 8 belongs to opset 17; older runtimes refuse the newest version, which is the default.
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = proto.SerializeToString()
    return serialized


def chainable(layer: Layer) -> bool:
    """Whether the layer's output can be its next copy's input."""
    return layer.input_shape == layer.output_shape


def cold_copies(layer: Layer) -> int:
    """Number of models, with weights of their own, that take turns, so that no call finds its weights in a cache.

    Enough for COLD_BYTES of weights where MOST_COPIES suffices. Layers with less than 1.7 MB of weights stay below
    that: theirs leave the caches of a core but not a large shared one.
    """
    return max(2, min(MOST_COPIES, math.ceil(COLD_BYTES / (4 * math.prod(layer.weight_shape)))))
