"""Every operator of the ONNX front end, compiled and run alone, against its definition in float64."""

import pytest

import burnish as bn
from burnish.accuracy import scaled_error
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate
from tests.frontend.test_onnx_operators import CASES, Case, build


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_operator_matches_its_definition(case: Case) -> None:
    model, feeds = build(case)
    graph = from_onnx(model)
    found = bn.compile(graph, threads=2)(**feeds)
    found = found if isinstance(found, tuple) else (found,)
    expected = evaluate(graph, feeds, "float64")
    assert [str(array.dtype) for array in found] == [graph.types[name].dtype for name in graph.outputs]
    assert scaled_error(found, [expected[name] for name in graph.outputs]) < 1e-5
