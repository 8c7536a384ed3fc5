"""Every translated operator, imported alone, against the ONNX reference implementation."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from burnish.frontend.onnx import control, from_onnx, sequences
from burnish.frontend.onnx.domains import key_of
from burnish.frontend.onnx.model import TRANSLATORS
from burnish.graph.evaluate import evaluate
from burnish.graph.passes import optimize
from burnish.graph.verify import verify
from tests.conformance.cases import standard_cases
from tests.frontend.test_onnx_contrib import BY_CHANCE, PEER_CASES


@dataclass(frozen=True)
class F:
    """A random float32 input of a shape; ``low`` and ``high`` bound its values."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.uniform(self.low, self.high, self.shape).astype(np.float32)


@dataclass(frozen=True)
class I:  # noqa: E742
    """A random int64 input with values in [low, high)."""

    shape: tuple[int, ...]
    low: int = 0
    high: int = 3

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.integers(self.low, self.high, self.shape)


@dataclass(frozen=True)
class B:
    """A random bool input."""

    shape: tuple[int, ...]

    def draw(self, random: np.random.Generator) -> np.ndarray:
        return random.integers(0, 2, self.shape).astype(bool)


@dataclass(frozen=True)
class C:
    """An initializer with these values; a list of ints is int64, of floats float32."""

    value: Any

    def draw(self, random: np.random.Generator) -> np.ndarray:
        array = np.array(self.value)
        return array.astype(np.float32) if array.dtype == np.float64 else array


@dataclass(frozen=True)
class Case:
    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

    def __str__(self) -> str:
        words = [f"{k}={v}" for k, v in self.attrs.items() if not isinstance(v, onnx.TensorProto)]
        return "-".join([f"{self.op}{self.opset}", *words]).replace(" ", "")


def case(op: str, *inputs: Any, opset: int = 17, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, inputs, attrs, opset, outputs)


X = F((2, 3, 4))
IMAGE = F((1, 4, 7, 8))
UNARY = [
    "Relu", "Abs", "Neg", "Sign", "Exp", "Tanh", "Erf", "Sin", "Cos", "Floor", "Ceil", "Round", "Sigmoid", "Softplus",
    "Softsign", "HardSwish", "Identity", "Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "Selu", "HardSigmoid", "Tan",
    "Sinh", "Cosh", "Dropout", "IsNaN", "IsInf", "Flatten", "Size", "Shape",
]  # fmt: skip
BINARY = [
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Less", "Greater", "Equal", "LessOrEqual",
    "GreaterOrEqual",
]  # fmt: skip
POSITIVE = F((2, 5), 0.5, 3.0)
LSTM = (F((4, 2, 3)), F((1, 20, 3)), F((1, 20, 5)), F((1, 40)))
GRU = (F((4, 2, 3)), F((1, 15, 3)), F((1, 15, 5)), F((1, 30)))
RNN = (F((4, 2, 3)), F((1, 5, 3)), F((1, 5, 5)), F((1, 10)))


def both(*inputs: F) -> tuple[F, ...]:
    """Recurrent inputs for two directions."""
    return (inputs[0], *(F((2, *f.shape[1:])) for f in inputs[1:]))


def fill(value: float | int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], np.int64 if isinstance(value, int) else np.float32))


CASES = [
    *(case(op, X) for op in UNARY),
    *(case(op, X, F((3, 1))) for op in BINARY),
    *(case(op, POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")),
    *(case(op, B((2, 3)), B((3,))) for op in ("And", "Or", "Xor")),
    case("Not", B((2, 3))),
    case("Sum", X, X, F((4,))),
    case("Elu", X, alpha=0.3), case("Celu", X, alpha=2.0), case("Selu", X, alpha=1.5, gamma=0.5),
    case("LeakyRelu", X, alpha=0.2), case("HardSigmoid", X, alpha=0.4, beta=0.3),
    case("Clip", X, opset=10, min=-0.5, max=1.0), case("Clip", X, opset=10), case("Clip", X, C(-0.5), C(1.0)),
    case("Clip", X, None, C(1.0)), case("Clip", X, F((), -1.0, 0.0), C(1.0)),
    case("Clip", I((2, 3), -5, 5), C(-2), C(2)),
    case("PRelu", X, F((3, 1))), case("Where", B((2, 1, 4)), X, F((1, 3, 1))),
    case("Pow", POSITIVE, C(2.0)), case("Pow", POSITIVE, F((5,))), case("Pow", POSITIVE, C(3)),
    case("Pow", POSITIVE, C(0.5)),
    case("Mod", I((2, 3), -7, 7), C([2, -3, 5])), case("Mod", X, F((4,), 0.5, 1.5), fmod=1),
    case("Div", I((2, 3), -9, 9), C([2, -3, 5])), case("Div", X, C(3.0)),
    case("Gelu", X, opset=20), case("Gelu", X, opset=20, approximate="tanh"), case("Mish", X, opset=18),
    case("Cast", F((2, 3), -5.0, 5.0), to=TensorProto.INT32), case("Cast", B((2, 3)), to=TensorProto.FLOAT),
    case("Cast", F((2, 3)), to=TensorProto.BOOL), case("Cast", F((2, 3)), to=TensorProto.DOUBLE),
    case("CastLike", F((2, 3), -5.0, 5.0), C([1])), case("IsInf", X, detect_negative=0),
    # movement
    case("Reshape", X, C([0, -1])), case("Reshape", X, C([4, -1, 3])), case("Flatten", X, axis=-1),
    case("Flatten", X, axis=0),
    case("Squeeze", F((1, 3, 1)), opset=11, axes=[0]), case("Squeeze", F((1, 3, 1)), C([-1])),
    case("Squeeze", F((1, 3, 1))),
    case("Unsqueeze", X, opset=11, axes=[0, 3]), case("Unsqueeze", X, C([-1, 1])),
    case("Transpose", X), case("Transpose", X, perm=[1, 0, 2]), case("Concat", X, F((2, 2, 4)), axis=1),
    case("Concat", X, X, axis=-1), case("Split", X, outputs=2, opset=11, axis=2),
    case("Split", X, C([1, 2]), outputs=2, axis=1),
    case("Split", F((5, 2)), outputs=3, opset=18, num_outputs=3),
    case("Slice", X, opset=9, starts=[0, 1], ends=[2, 1000], axes=[0, 2]), case("Slice", X, C([1]), C([3]), C([-1])),
    case("Slice", X, C([-1, 3]), C([-100, -100]), C([1, 2]), C([-1, -2])), case("Slice", X, C([1, 0]), C([2, 2])),
    case("Slice", X, C([2]), C([2]), C([1])), case("Slice", X, C([0]), C([2**63 - 1]), C([1]), C([2])),
    case("Gather", F((5, 3)), I((2, 2), -5, 5)), case("Gather", X, I((2,), 0, 3), axis=1),
    case("Gather", X, C(1), axis=-1),
    case("Gather", X, C([2, 0]), axis=2),
    case("GatherElements", F((3, 3)), I((2, 3), -3, 3), axis=0),
    case("GatherElements", F((3, 3)), I((3, 2), 0, 3), axis=1),
    case("GatherND", F((3, 4, 2)), I((5, 2), 0, 3)), case("GatherND", F((2, 4, 3)), I((2, 5, 1), 0, 4), batch_dims=1),
    case("Pad", X, opset=10, pads=[0, 1, 2, 1, 0, 0], value=0.5), case("Pad", X, C([0, 1, 2, 1, 0, 0])),
    case("Pad", X, C([0, 1, 2, 1, 0, 0]), C(1.5)), case("Pad", X, C([0, 1, 2, 0, 0, 1]), mode="reflect"),
    case("Pad", X, C([0, 1, 2, 0, 0, 1]), mode="edge"), case("Pad", X, C([1, 2]), None, C([2]), opset=18),
    case("Expand", F((3, 1)), C([2, 1, 4])), case("Tile", F((2, 3)), C([2, 2])), case("Shape", X, start=1, end=-1),
    case("Constant", value=numpy_helper.from_array(np.arange(3.0))), case("Constant", value_ints=[1, 2]),
    case("Constant", value_float=0.5), case("ConstantOfShape", C([2, 3]), value=fill(7)),
    case("ConstantOfShape", C([2])),
    case("Range", C(1), C(9), C(3)), case("NonZero", C([0, 3, 0, 1])), case("EyeLike", F((3, 4)), k=1),
    case("OneHot", I((2, 3), -4, 4), C(4), C([2.0, 5.0])), case("OneHot", I((3,)), C(3), C([0, 1]), axis=0),
    case("DepthToSpace", F((1, 8, 2, 3)), blocksize=2),
    case("DepthToSpace", F((1, 8, 2, 3)), blocksize=2, mode="CRD"),
    case("SpaceToDepth", F((1, 2, 4, 6)), blocksize=2), case("Trilu", F((3, 4))),
    case("Trilu", F((3, 4)), C(-1), upper=0),
    # products
    case("MatMul", X, F((4, 5))), case("MatMul", F((2, 1, 3, 4)), F((5, 4, 2))), case("MatMul", F((4,)), F((4, 3))),
    case("MatMul", X, C(np.linspace(-1, 1, 8).reshape(4, 2))),
    case("Gemm", F((2, 3)), F((3, 4)), F((4,))),
    case("Gemm", F((3, 2)), F((4, 3)), F((2, 1)), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", F((2, 3)), C(np.linspace(-1, 1, 12).reshape(4, 3)), C([1.0, 2.0, 3.0, 4.0]), transB=1),
    case("Gemm", F((2, 3)), F((3, 4))),
    *(case("Einsum", F(a), F(b), equation=e) for e, a, b in [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
        ("i,j->ij", (3,), (4,)),
        ("ij,jk", (2, 3), (3, 4)), ("ijk,j->ki", (2, 3, 4), (3,)), ("ab,ab->", (2, 3), (2, 3)),
    ]),
    case("Einsum", F((3, 4)), equation="ij->j"), case("Einsum", F((3, 4)), equation="ij->ji"),
    # windows
    case("Conv", IMAGE, F((6, 4, 3, 3)), F((6,)), pads=[1, 0, 1, 2], strides=[2, 1]),
    case("Conv", IMAGE, F((6, 2, 3, 2)), group=2, dilations=[2, 1]), case("Conv", IMAGE, F((4, 1, 3, 3)), group=4),
    case("Conv", IMAGE, F((2, 4, 3, 3)), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", IMAGE, F((2, 4, 2, 2)), auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, F((2, 4, 2, 2)), auto_pad="VALID"),
    case("Conv", F((2, 3, 9)), F((4, 3, 3)), F((4,)), pads=[1, 1], strides=[2]),
    case("ConvTranspose", F((1, 3, 4, 5)), F((3, 2, 3, 3)), F((2,)),
         strides=[2, 2], pads=[1, 0, 1, 1], output_padding=[1, 0]),
    case("ConvTranspose", F((1, 4, 4, 5)), F((4, 1, 2, 3)), group=2),
    case("ConvTranspose", F((1, 3, 5)), F((3, 2, 4)), strides=[2]),
    case("ConvTranspose", F((1, 3, 4, 5)), F((3, 2, 3, 3)), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", F((1, 1, 3, 3)), F((1, 2, 3, 3)), strides=[3, 2], output_shape=[10, 8]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", F((1, 2, 9)), kernel_shape=[3]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]), case("MaxPool", IMAGE, kernel_shape=[7, 8]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", IMAGE, kernel_shape=[7, 8]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19),
    case("GlobalAveragePool", IMAGE), case("GlobalMaxPool", IMAGE), case("GlobalAveragePool", F((2, 3, 5))),
    case("Resize", IMAGE, None, C([1.0, 1.0, 2.0, 2.0])),
    case("Resize", IMAGE, None, C([1.0, 1.0, 2.0, 2.0]), coordinate_transformation_mode="asymmetric",
         nearest_mode="floor"),
    case("Resize", IMAGE, None, None, C([1, 4, 14, 20]), mode="linear"),
    case("Resize", IMAGE, None, None, C([1, 4, 5, 3]), mode="linear", coordinate_transformation_mode="align_corners"),
    case("Resize", IMAGE, None, C([1.0, 1.0, 0.6, 1.5]), mode="linear",
         coordinate_transformation_mode="pytorch_half_pixel"),
    case("Resize", IMAGE, None, None, C([14, 4]), axes=[2, 3], opset=18),
    # reductions and normalizations
    *(case(op, F((2, 3, 4), 0.5, 2.0), axes=[1], keepdims=0) for op in (
        "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSumExp", "ReduceLogSum",
    )),
    case("ReduceSum", X, C([0, -1])), case("ReduceSum", X, C([1]), keepdims=0), case("ReduceMean", X),
    case("ReduceMax", X, C([2]), opset=18),
    case("ReduceSum", X, noop_with_empty_axes=1), case("ReduceMean", X, axes=[-1, 0], opset=11),
    case("TopK", X, C([2]), outputs=2), case("TopK", X, C([3]), outputs=2, axis=1, largest=0),
    case("TopK", X, outputs=2, opset=9, k=2, axis=0),
    case("ArgMax", X, axis=1), case("ArgMin", X, axis=-1, keepdims=0), case("CumSum", X, C(1)),
    case("CumSum", X, C(-1), exclusive=1, reverse=1),
    case("Softmax", X), case("Softmax", X, axis=1), case("Softmax", X, opset=11),
    case("Softmax", X, opset=11, axis=2),
    case("Softmax", F((2, 5, 1, 1)), opset=9), case("LogSoftmax", X, axis=0), case("LogSoftmax", X, opset=11),
    case("Hardmax", X, axis=1),
    case("BatchNormalization", IMAGE, F((4,)), F((4,)), F((4,)), F((4,), 0.5, 2.0), epsilon=0.01),
    case("BatchNormalization", IMAGE, *(C(np.linspace(a, b, 4)) for a, b in ((0.5, 2), (-1, 1), (-1, 2), (0.5, 1)))),
    case("InstanceNormalization", IMAGE, F((4,)), F((4,))),
    case("GroupNormalization", IMAGE, F((4,)), F((4,)), num_groups=2, opset=21),
    case("LayerNormalization", X, F((4,)), F((4,))), case("LayerNormalization", X, F((3, 4)), axis=1, epsilon=1e-3),
    case("RMSNormalization", X, F((4,)), opset=23), case("LpNormalization", X),
    case("RMSNormalization", X, F((3, 1)), opset=23), case("RMSNormalization", X, F((1, 1)), opset=23),
    case("LayerNormalization", X, F((3, 1)), F((2, 1, 4))), case("LayerNormalization", X, F((1,)), F((1, 1, 4))),
    case("BatchNormalization", F((5,)), F((1,)), F((1,)), F((1,)), F((1,), 0.5, 2.0)),
    case("Gemm", F((2, 3)), F((3, 1)), F((2, 1))), case("Gemm", F((2, 3)), F((3, 4)), F((1,))),
    case("LpNormalization", X, p=1, axis=1),
    case("LRN", F((1, 7, 2, 3)), size=3, alpha=0.2, beta=0.6), case("LRN", F((1, 7, 2, 3)), size=5, bias=2.0),
    # recurrent
    case("LSTM", *LSTM, hidden_size=5, outputs=3), case("LSTM", *LSTM[:3], hidden_size=5, outputs=3),
    case("LSTM", *LSTM, None, F((1, 2, 5)), F((1, 2, 5)), hidden_size=5, outputs=3),
    case("GRU", *GRU, hidden_size=5, outputs=2), case("GRU", *GRU, hidden_size=5, outputs=2, linear_before_reset=1),
    case("RNN", *RNN, hidden_size=5, outputs=2), case("RNN", *RNN, None, F((1, 2, 5)), hidden_size=5, outputs=2),
]  # fmt: skip


def build(c: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The one-node model, and its feeds."""
    random = np.random.default_rng(zlib.crc32(str(c).encode()))
    names, feeds, initializers, inputs = [], {}, [], []
    for i, source in enumerate(c.inputs):
        names.append("" if source is None else f"x{i}")
        if source is None:
            continue
        array = source.draw(random)
        if isinstance(source, C):
            initializers.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            feeds[f"x{i}"] = array
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"x{i}", dtype, array.shape))
    outputs = [f"y{i}" for i in range(c.outputs)]
    node = helper.make_node(c.op, names, outputs, name="node", **c.attrs)
    values = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "test", inputs, values, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", c.opset)]), feeds


def flat_softmax(x: np.ndarray) -> np.ndarray:
    """Over all dimensions from 1 on: the form before opset 13."""
    rows = np.exp(x.reshape(len(x), -1))
    return (rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape)


def lrn(size: int, alpha: float, beta: float, bias: float) -> Callable[[np.ndarray], np.ndarray]:
    def run(x: np.ndarray) -> np.ndarray:
        before, after = (size - 1) // 2, size // 2
        windows = [(x[:, max(c - before, 0) : c + after + 1] ** 2).sum(axis=1) for c in range(x.shape[1])]
        return (x / (bias + alpha / size * np.stack(windows, axis=1)) ** beta).astype(np.float32)

    return run


def grouped_transpose(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Two groups, stride 1, no padding: every input element adds its multiple of the kernel to the output."""
    _, channels, height, width = x.shape
    y = np.zeros((1, 2, height + w.shape[2] - 1, width + w.shape[3] - 1), np.float32)
    for c, i, j in np.ndindex(channels, height, width):
        y[0, c // 2, i : i + w.shape[2], j : j + w.shape[3]] += x[0, c, i, j] * w[c, 0]
    return y


# Forms that the reference implementation of onnx 1.23 computes wrongly (onnxruntime agrees with these).
CORRECTED: Mapping[str, Callable[..., np.ndarray]] = {
    "Softmax11": flat_softmax,
    "Softmax9": flat_softmax,
    "LogSoftmax11": lambda x: np.log(flat_softmax(x)),
    "LpNormalization17-p=1-axis=1": lambda x: x / np.abs(x).sum(axis=1, keepdims=True),
    "LRN17-size=3-alpha=0.2-beta=0.6": lrn(3, 0.2, 0.6, 1.0),
    "LRN17-size=5-bias=2.0": lrn(5, 1e-4, 0.75, 2.0),
    "ConvTranspose17-group=2": grouped_transpose,
}


@pytest.mark.parametrize("c", CASES, ids=str)
def test_operator_matches_the_reference(c: Case) -> None:
    model, feeds = build(c)
    corrected = CORRECTED.get(str(c))
    expected = [corrected(*feeds.values())] if corrected else ReferenceEvaluator(model).run(None, feeds)
    graph = from_onnx(model)
    verify(graph)
    for g in (graph, optimize(graph)):
        verify(g)
        found = evaluate(g, feeds)
        for name, want in zip(g.outputs, expected, strict=True):
            want = np.asarray(want)
            assert found[name].shape == want.shape
            assert found[name].dtype == want.dtype
            np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=2e-5)


def test_every_translator_has_a_case() -> None:
    """Here, among the standard's own tests, against onnxruntime, or in test_onnx.py (Upsample)."""
    standard = {
        key_of(node.domain, node.op_type)
        for case in standard_cases().values()
        if case.model is not None
        for node in case.model.graph.node
    }
    elsewhere = standard | {key_of(domain, op) for domain, op in PEER_CASES} | {"Upsample"} | BY_CHANCE
    others = control.TRANSLATORS.keys() | sequences.TRANSLATORS.keys()  # test_onnx_flow.py
    assert TRANSLATORS.keys() - others - {c.op for c in CASES} <= elsewhere
