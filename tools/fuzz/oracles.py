"""Right answers and how far each element may be from them, by random rounding in float64.

A value is expected where the interpreter and the standard's own implementation agree. The tolerance of an element is
what noise of a few units of rounding, put on everything that a node rounds, does to it (Monte Carlo arithmetic: Parker,
"Monte Carlo Arithmetic", 1997): large where differences cancel, and beyond bounds beside a discontinuity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from burnish.errors import BurnishError
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate, evaluate_node
from burnish.graph.graph import Graph
from burnish.loops.expr import FLOATS, INTS
from tools.fuzz.standard import NotComputable, walk, walk_both

SAMPLES = 3  # of random rounding
MANY_SAMPLES = 64  # before anything is called wrong: three of them miss one in eight discontinuities that are in reach
NOISE = {"float64": 2.0**-50, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # of a rounding, relative
ATTRIBUTE = 2.0**-22  # relative: attributes and their defaults are float32 to some oracles, also in float64 models
# Operators that the standard computes in float32 also where all is float64 (``stash_type``), and what that may lose.
_IN_FLOAT32 = frozenset({"GroupNormalization", "LayerNormalization", "RMSNormalization"})
_FLOAT32_ERROR = 2.0**-16
_ROUNDED = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
)
SLACK = 8.0  # times the largest deviation seen
# Operators whose results are exact: they move values, select among them, or change signs.
EXACT = frozenset("""
identity relu abs neg sign floor ceil round isnan isinf logical_not clip minimum maximum equal not_equal less less_equal
greater greater_equal logical_and logical_or logical_xor where reshape transpose concat slice gather gather_elements
gather_nd pad expand tile one_hot depth_to_space space_to_depth trilu argmax argmin reduce_max reduce_min max_pool2d
cast
""".split())  # noqa: SIM905 - a table  # fmt: skip


@dataclass(frozen=True, eq=False)
class Expected:
    """An output: the interpreter's value in its own dtype and in float64, the standard's, and a tolerance.

    ``stable`` is False where noise changes an integer or what is finite: nothing is expected there. ``single``: the
    standard's value is by onnx's evaluator alone. Where that is not sound, the interpreter's stands for it.
    """

    native: np.ndarray
    wide: np.ndarray
    standard: np.ndarray
    tolerance: np.ndarray
    stable: np.ndarray
    single: bool = False


@dataclass(frozen=True)
class Difference:
    """Elements of an output that differ: how many, and the first one."""

    output: int
    count: int
    size: int
    place: tuple[int, ...]
    found: str
    wanted: str

    def __str__(self) -> str:
        where = f"{self.count} of {self.size} elements, first at {list(self.place)}"
        return f"output {self.output}: {where}: {self.found}, want {self.wanted}"


def expect(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    seed: int = 0,
    samples: int = SAMPLES,
    relative: float = 0.0,
) -> list[Expected]:
    """Expected value of every output. Raises NotComputable, and what the frontend raises.

    ``relative``: every node may err by so much of its largest element, as :func:`judge` allows outputs to.
    """
    graph = from_onnx(model)
    native = evaluate(graph, feeds)
    wide = evaluate(graph, feeds, "float64")
    random = np.random.default_rng(seed)
    noisy = [_noisy_outputs(graph, feeds, random, relative * (n % 2)) for n in range(samples)]
    if samples > SAMPLES:
        noisy += _of_constants(model, feeds, random, samples)
    names = [value.name for value in model.graph.output]
    standard, single = walk_both(model, feeds)
    found = [
        _expected(native[own], wide[own], [sample[number] for sample in noisy], standard[name])
        for number, (own, name) in enumerate(zip(graph.outputs, names, strict=True))
    ]
    return [
        replace(e, single=name in single, standard=e.standard if single.get(name, True) else e.native)
        for e, name in zip(found, names, strict=True)
    ]


def _noisy_outputs(
    graph: Graph, feeds: Mapping[str, np.ndarray], random: np.random.Generator, relative: float = 0.0
) -> list[np.ndarray]:
    values = evaluate_noisily(graph, feeds, random, relative)
    return [values[name] for name in graph.outputs]


def _of_constants(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], random: np.random.Generator, samples: int
) -> list[list[np.ndarray]]:
    """Noisy outputs of the model with its floating-point constants as inputs, so that what is computed of them alone is
    rounded, too; none where some operator needs one as a constant.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    own = dict(feeds)
    listed = {value.name for value in made.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_type not in _ROUNDED:
            continue
        made.graph.initializer.remove(tensor)
        if tensor.name not in listed:
            made.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        own.setdefault(tensor.name, numpy_helper.to_array(tensor))
    try:
        graph = from_onnx(made)
    except BurnishError:
        return []
    return [_noisy_outputs(graph, own, random) for _ in range(samples)]


def evaluate_noisily(
    graph: Graph, feeds: Mapping[str, np.ndarray], random: np.random.Generator, relative: float = 0.0
) -> dict[str, np.ndarray]:
    """Values of the outputs in float64, where every node that rounds reads and writes noisy values, and errs by
    ``relative`` of its largest element. Raises NotComputable for a cast whose result the standard does not define.
    """
    values = {**feeds, **graph.constants}
    for node in graph.nodes:
        types = [graph.types[name] for name in node.inputs]
        arrays = [values[name] for name in node.inputs]
        rounds = node.op not in EXACT
        if rounds:
            arrays = [_noisy(a, t.dtype, random) for a, t in zip(arrays, types, strict=True)]
        for name, array in zip(node.outputs, evaluate_node(node, arrays, types, "float64"), strict=True):
            dtype = graph.types[name].dtype
            narrowed = node.op == "cast" and dtype in FLOATS
            if node.op == "cast" and dtype in INTS and not _holds(dtype, arrays[0]):
                raise NotComputable(f"{node.name}: {dtype} does not hold all of its operand")
            values[name] = _noisy(array, dtype, random, relative * rounds) if rounds or narrowed else array
    return {name: values[name] for name in graph.outputs}


def _holds(dtype: str, array: np.ndarray) -> bool:
    """Whether an integer type has all numbers of an array, cut off towards zero."""
    info, whole = np.iinfo(dtype), np.trunc(array.astype(np.float64))
    return array.dtype.kind in "biu" or bool(((whole >= float(info.min)) & (whole <= float(info.max))).all())


def _noisy(array: np.ndarray, dtype: str, random: np.random.Generator, relative: float = 0.0) -> np.ndarray:
    if dtype not in FLOATS:
        return array
    signs = random.integers(0, 2, array.shape) * 2 - 1
    wide = array.astype(np.float64)
    scale = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    return np.asarray(wide * (1 + signs * NOISE[dtype]) + signs * (relative * scale))


def _expected(native: np.ndarray, wide: np.ndarray, noisy: Sequence[np.ndarray], standard: np.ndarray) -> Expected:
    with np.errstate(all="ignore"):
        if native.dtype.kind in "iub":
            stable = np.logical_and.reduce([wide == sample for sample in noisy])
            return Expected(native, wide, standard, np.zeros(wide.shape), stable & (native == wide))
        finite = np.isfinite(wide)
        stable = np.logical_and.reduce(
            [np.isfinite(sample) & finite | (np.isnan(sample) & np.isnan(wide)) | (sample == wide) for sample in noisy]
        )
        spread = np.max([np.where(stable & finite, np.abs(sample - wide), 0.0) for sample in noisy], axis=0)
        eps = NOISE[str(native.dtype)]
        scale = np.abs(wide[finite]).max(initial=0.0)
        typical = np.median(spread) if spread.size else 0.0
        tolerance = SLACK * (spread + typical) + 4 * eps * np.abs(np.where(finite, wide, 0.0)) + eps * scale
        info = ml_dtypes.finfo(native.dtype)
        limit, tolerance = float(info.max), tolerance + float(info.smallest_normal)
        return Expected(native, wide, standard, tolerance, stable & (~finite | (np.abs(wide) < 0.98 * limit)))


def difference(
    found: np.ndarray, wanted: Sequence[np.ndarray], e: Expected, output: int, relative: float = 0.0
) -> Difference | None:
    """Positions where ``found`` is none of ``wanted`` within the tolerance, on elements where something is expected.

    ``relative`` adds to the tolerance so much of the element, and of the largest one.
    """
    wrong = np.logical_and.reduce([e.stable, *(_apart(found, array, e, relative) for array in wanted)])
    if not wrong.any():
        return None
    place = tuple(int(v) for v in np.argwhere(wrong)[0])
    return Difference(output, int(wrong.sum()), wrong.size, place, str(found[place]), str(wanted[0][place]))


def _apart(found: np.ndarray, wanted: np.ndarray, e: Expected, relative: float) -> np.ndarray:
    """Mask of elements that differ by more than the tolerance."""
    if e.native.dtype.kind in "iub":
        return np.asarray(found != wanted)
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        scale = np.abs(b) + np.abs(b[np.isfinite(b)]).max(initial=0.0)
        near = np.abs(a - b) <= e.tolerance + relative * scale
        return np.asarray(~(same | (np.isfinite(a) & np.isfinite(b) & near)))


def judge(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    found: Sequence[np.ndarray],
    expected: Sequence[Expected],
    relative: float = 0.0,
) -> tuple[str, str]:
    """``right``, ``wrong`` (not as the interpreter), ``definition`` (the interpreter is not as the standard) or
    ``unclear`` (the standard's implementations differ, or only one has the operator), and in what.

    ``relative``: of the largest element, what faster algorithms may err by.
    """
    if len(found) != len(expected):
        return "wrong", f"{len(found)} outputs, want {len(expected)}"
    verdict = ("right", "")
    for i, (array, e) in enumerate(zip(found, expected, strict=True)):
        if (array.shape, array.dtype) != (e.native.shape, e.native.dtype):
            kind = f"{e.native.dtype}{list(e.native.shape)}"
            return "wrong", f"output {i}: {array.dtype}{list(array.shape)}, want {kind}"
        wrong = difference(array, [e.native, e.wide], e, i, relative)
        if wrong:
            return "wrong", str(wrong)
        strange = _against_standard(model, feeds, e, i)
        if strange[0] == "definition":
            return strange
        verdict = strange if verdict[0] == "right" else verdict
    return verdict


def _against_standard(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], e: Expected, output: int
) -> tuple[str, str]:
    """The interpreter against the standard: who is right where they differ is asked of onnx's own evaluator."""
    if any(node.op_type in _IN_FLOAT32 for node in model.graph.node):
        e = replace(e, tolerance=e.tolerance + _FLOAT32_ERROR * np.abs(e.wide[np.isfinite(e.wide)]).max(initial=0.0))
    strange = _differs(e.standard, [e.native, e.wide], e, output)
    if not strange:
        return "right", ""
    if e.single:
        return "unclear", f"{strange} (by onnx's evaluator alone)"
    try:
        other = walk(model, feeds, "reference")[model.graph.output[output].name]
    except NotComputable:
        # Alone it proves nothing of values that are not finite: its recurrent layers limit them and lose NaN, its
        # normalizations overflow in float16.
        both = np.isfinite(e.wide.astype(np.float64)) & np.isfinite(e.standard.astype(np.float64))
        finite = replace(e, stable=e.stable & both)
        kind = "definition" if _differs(e.standard, [e.native, e.wide], finite, output) else "unclear"
        return kind, f"{strange} (by onnxruntime alone)"
    if not _differs(other, [e.native, e.wide], e, output):
        return "right", ""
    return ("unclear" if _differs(other, [e.standard], e, output) else "definition"), strange


def _differs(standard: np.ndarray, own: Sequence[np.ndarray], e: Expected, output: int) -> str:
    """In what the standard's value of an output is none of the interpreter's; "" if it is."""
    if standard.shape != own[0].shape:
        return f"output {output}: {e.native.dtype}{list(own[0].shape)}, want {standard.dtype}{list(standard.shape)}"
    found = difference(standard, own, e, output, ATTRIBUTE)
    return str(replace(found, found=found.wanted, wanted=found.found)) if found else ""
