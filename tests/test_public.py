"""The public face: exactly these names, each with an example in its docstring that runs."""

from __future__ import annotations

import doctest
from operator import attrgetter
from types import ModuleType

import numpy as np
import pytest

import burnish as bn
from tests.marks import slow

ROOMS = ["boost", "errors", "gnn", "nd", "serve", "sym", "torch", "train"]
CALLABLES = [
    "Adam", "AdamW", "CompiledModel", "CosineDecay", "CrossEntropy", "Graph", "Huber", "LinearDecay", "MixedPrecision",
    "Module", "Plan", "PlanObjective", "RewriteObjective", "SGD", "Squared", "StepDecay", "Target", "Train", "Tune",
    "WarmUp", "compile", "compile_paged", "export_c", "fit", "gradients", "load", "plan", "quantize",
]  # fmt: skip
METHODS = ["gnn.Graph.of"]  # of rooms, with an example


def test_the_face_is_exactly_this() -> None:
    assert dir(bn) == sorted(bn.__all__) == sorted(CALLABLES + ROOMS)
    with pytest.raises(AttributeError, match="has no attribute 'driver_of'; it has Adam"):
        bn.driver_of  # noqa: B018


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_are_attributes_that_list_what_they_have(name: str) -> None:
    room = getattr(bn, name)
    assert isinstance(room, ModuleType) and room.__doc__
    assert name == "errors" or sorted(room.__all__) == dir(room)


@pytest.mark.parametrize("name", ["nd", "sym"])
def test_arrays_and_symbols_show_no_operators_of_passes(name: str) -> None:
    shown = dir(getattr(bn, name))
    assert {"relu", "softmax", "conv2d"} <= {*shown}
    assert not {"winograd_weight", "byte_words", "split_stem", "Any", "np", "InputError"} & {*shown}


@pytest.mark.parametrize("name", slow(CALLABLES + METHODS, "Tune"))
def test_examples_of_docstrings_run(name: str) -> None:
    found = attrgetter(name)(bn)
    (own,) = doctest.DocTestFinder(recurse=False).find(found, name, globs={"bn": bn, "np": np})
    assert own.examples, f"{name} has no example"
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(own)
    assert not failed.failed


def test_what_is_shown_of_results_is_one_line() -> None:
    x, w = bn.sym.variable("x"), bn.sym.constant(np.ones((6, 4), "f4"), "w")
    graph = bn.sym.graph(bn.sym.matmul(x, w), {"x": (2, 6)})
    assert repr(graph).startswith("Graph(x: float32[2, 6] -> ") and repr(graph).endswith(
        "nodes, 96 bytes of constants)"
    )
    rows = np.arange(48, dtype="f4").reshape(8, 6)
    fitted = bn.fit(graph, (rows, np.zeros(8, "i8")), bn.Train(), epochs=1)
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    shown = [
        bn.plan(graph, devices="host:2", seconds=0.1, pipelines=False), fitted, fitted.report,
        bn.boost.Dataset.of(rows, rows[:, 0]), bn.gnn.Graph.of(edges, rows[:3], np.zeros(3, "i4")),
        bn.gnn.network("gcn", 6, 2),
    ]  # fmt: skip
    for result in shown:
        assert repr(result).startswith(f"{type(result).__name__}(") and len(repr(result)) < 200
        assert "array(" not in repr(result) and "\n" not in repr(result)
