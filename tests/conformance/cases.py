"""One backend test of the standard: its model and data, what Burnish computes of it, and whether that is right."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.data
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase as StandardCase
from onnx.backend.test.loader import load_model_tests

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
DataSets = list[tuple[list[Any], list[Any]]]  # inputs and expected outputs
HALF_RTOL = {"bfloat16": 2.0**-6, "float16": 2.0**-9}  # two units: of bfloat16 as the standard's own runner has it
DATA = Path(onnx.backend.test.data.__path__[0])
BY_CHANCE = re.compile("bernoulli|random|multinomial")  # of which the standard says that values are for information
OUTCOMES = ("right", "refused", "wrong", "crash", "hang")


@dataclass(frozen=True)
class Outcome:
    """What came of a case: one of ``OUTCOMES``, and the error's text if it is not "right"."""

    name: str
    kind: str
    reason: str = ""


@cache
def standard_cases() -> Mapping[str, StandardCase]:
    """All of the standard's tests by name; those of whole networks too, as far as the package holds their models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    assert len(found) > 2000
    return {case.name: case for case in found}


def check(case: StandardCase, definitions: bool = False, known: bool = False) -> Outcome:
    """Compiles the case's model, calls it with every data set, and compares. Refusals are those that name a reason.

    ``definitions`` evaluates the imported graph by its operators' definitions instead, which is faster. ``known`` gives
    the values that must be known when a model is compiled as constants, as exporters do.
    """
    model, data_sets = _load(case)
    try:
        while True:
            try:
                run = _runner(model, _open_shapes(model, data_sets[0][0]), definitions)
                break
            except UnsupportedOperator as error:
                asked = re.search("found '(.*)', computed at run time", str(error))
                names = [value.name for value in _inputs(model)]
                if not known or asked is None or asked[1] not in names:
                    raise
                model, data_sets = _with_constant(model, data_sets, names.index(asked[1]))
    except ModelError as error:
        return Outcome(case.name, "refused", str(error))
    for inputs, wanted in data_sets:
        results = run(*inputs)
        if BY_CHANCE.search(case.name):
            results = [np.asarray(r) * 0 for r in results]
            wanted = [np.asarray(w) * 0 for w in wanted]
        wrong = _difference(results, wanted, case.rtol, case.atol)
        if wrong:
            return Outcome(case.name, "wrong", wrong)
    return Outcome(case.name, "right")


def _runner(
    model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], definitions: bool
) -> Callable[..., Sequence[Any]]:
    """What computes the model's outputs from its inputs, in order."""
    if definitions:
        graph = from_onnx(model, shapes)

        def evaluated(*arrays: Any) -> Sequence[Any]:
            found = evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))
            return [found[name] for name in graph.outputs]

        return evaluated
    module = bn.compile(model, rewrite=False, shapes=shapes or None)

    def called(*arrays: Any) -> Sequence[Any]:
        found = module(*arrays)
        return found if isinstance(found, tuple) else [found]

    return called


def _with_constant(model: onnx.ModelProto, data_sets: DataSets, position: int) -> tuple[onnx.ModelProto, DataSets]:
    """The model with one input, an initializer now, and the data of the others."""
    value = _inputs(model)[position]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(data_sets[0][0][position], value.name))
    return model, [([*given[:position], *given[position + 1 :]], wanted) for given, wanted in data_sets]


def _load(case: StandardCase) -> tuple[onnx.ModelProto, DataSets]:
    if case.model is not None:
        sets = [([_value(v) for v in given], [_value(v) for v in wanted]) for given, wanted in case.data_sets]
        return case.model, sets
    if case.model_dir is None:
        return _light(case)
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for part in sorted(folder.glob("test_data_set_*")):
        given = [_read(part / f"input_{i}.pb", value) for i, value in enumerate(_inputs(model))]
        sets.append((given, [_read(part / f"output_{i}.pb", v) for i, v in enumerate(model.graph.output)]))
    return model, sets


def _light(case: StandardCase) -> tuple[onnx.ModelProto, DataSets]:
    """A network with weights that are made in it; its input is ones scaled as the standard's runner has them."""
    path = DATA / "light" / Path(case.url).name
    model = onnx.load(path)
    given = []
    for value in _inputs(model):
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        size = int(np.prod(shape))
        given.append((np.arange(size).reshape(shape) / size).astype(np.float32))
    wanted = path.with_name(path.stem + "_output_0.pb")
    return model, [(given, [numpy_helper.to_array(onnx.TensorProto.FromString(wanted.read_bytes()))])]


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that callers give: those that no initializer has."""
    known = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in known]


def _read(path: Path, value: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    match value.type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _value(value: Any) -> Any:
    """An array; a list for a sequence; what is no tensor, as it is."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [_value(v) for v in value]
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _open_shapes(model: onnx.ModelProto, inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that the model leaves open: those of the data."""
    shapes = {}
    for value, array in zip(_inputs(model), inputs, strict=True):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not isinstance(array, np.ndarray):
            continue
        if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = array.shape
    return shapes


def _difference(found: Sequence[Any], wanted: Sequence[Any], rtol: float, atol: float) -> str:
    """What is wrong about the outputs, or "": dtype, shape and values, as the standard's own runner compares them."""
    if len(found) != len(wanted):
        return f"found {len(found)} outputs; allowed: {len(wanted)}"
    for position, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(want, list):
            wrong = _difference(got, want, rtol, atol) if isinstance(got, list | tuple) else f"found {type(got)}"
            if wrong:
                return f"output {position}: {wrong}"
            continue
        if want is None or got is None:
            if got is not want:
                return f"output {position}: found {got}; allowed: {want}"
            continue
        got, want = np.asarray(got), np.asarray(want)
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f"output {position}: found {got.dtype} {got.shape}; allowed: {want.dtype} {want.shape}"
        if want.dtype.kind == "O":  # texts
            if not np.array_equal(got, want):
                return f"output {position}: found {got.tolist()}; allowed: {want.tolist()}"
            continue
        bound = max(rtol, HALF_RTOL.get(want.dtype.name, 0.0))
        if want.dtype.kind in "fV" or want.dtype.name == "bfloat16":
            got, want = got.astype(np.float64), want.astype(np.float64)
        try:
            np.testing.assert_allclose(got, want, rtol=bound, atol=atol)
        except AssertionError as error:
            return f"output {position}: {' '.join(str(error).split())[:400]}"
    return ""
