"""The public face: exactly these names, each with an example in its docstring that runs."""

from __future__ import annotations

import doctest
from operator import attrgetter
from types import ModuleType

import numpy as np
import pytest

import burnish as bn

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


@pytest.mark.parametrize("name", CALLABLES + METHODS)
def test_examples_of_docstrings_run(name: str) -> None:
    found = attrgetter(name)(bn)
    (own,) = doctest.DocTestFinder(recurse=False).find(found, name, globs={"bn": bn, "np": np})
    assert own.examples, f"{name} has no example"
    failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(own)
    assert not failed.failed
