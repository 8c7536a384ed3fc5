"""Compiled forms of a model by the sizes of calls: which are made, which are open, which are forgotten."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.driver import by_size
from burnish.driver.by_size import KEPT_SIZES, BySize
from burnish.driver.open_inputs import OpenSpec
from burnish.errors import ModelError
from burnish.frontend.onnx.context import RuntimeValue
from burnish.loops.sizes import dims_of
from burnish.runtime.executable import TensorSpec

SPECS = (OpenSpec("x", ("n", 4), "float32"), OpenSpec("m", ("k",), "float32"), OpenSpec("mode", (), "int64"))


class Maker:
    """In the place of the compiler: notes what is asked for. ``wants`` the value of ``mode``; ``closed`` to sizes."""

    def __init__(self, wants: bool = False, closed: bool = False, nbytes: int = 1) -> None:
        self.made: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.wants, self.closed, self.nbytes = wants, closed, nbytes

    def __call__(self, shapes: Any, fix: Any) -> Any:
        if self.wants and "mode" not in fix:
            raise RuntimeValue("mode is wanted", "deep")
        if self.closed and any(dims_of(shape) for shape in shapes.values()):
            raise ModelError("closed")
        self.made.append((dict(shapes), {name: int(value) for name, value in fix.items()}))
        inputs = [TensorSpec(name, tuple(shape), "float32") for name, shape in shapes.items()]
        return SimpleNamespace(inputs=inputs, memory={"params": self.nbytes})


def given(n: int, k: int, mode: int = 0) -> list[np.ndarray]:
    return [np.zeros((n, 4), np.float32), np.zeros(k, np.float32), np.array(mode)]


def forms(maker: Maker, behind: Any = None) -> BySize:
    return BySize(SPECS, maker, lambda name: behind)


def test_sizes_that_differ_become_open_and_those_that_go_together_one() -> None:
    maker = Maker()
    kept = forms(maker)
    for n in (2, 3, 5, 200, 9):  # beyond the bounds of the first form for all sizes, once
        assert kept.find(given(n, n + 1)) is not None
    assert maker.made[0][0]["x"] == (2, 4)
    for shapes, _ in maker.made[1:]:
        assert str(shapes["x"][0]) == "n" and str(shapes["m"][0]) == "(n + 1)"
    assert len(maker.made) == 3
    kept.find(given(9, 40))
    assert len(dims_of(shape[0] for shape in maker.made[-1][0].values() if shape)) == 2
    assert kept.find(given(0, 7)) is not None and maker.made[-1][0]["x"] == (0, 4)  # an empty one alone


def test_sizes_that_the_model_does_not_take_are_looked_at_once() -> None:
    asked = []

    def make(shapes: Any, fix: Any) -> Any:
        asked.append(shapes)
        raise ModelError("does not fit")

    kept = BySize(SPECS, make, lambda name: None)
    for n in (2, 2, 3, 2):
        assert kept.find(given(n, n)) is None
    assert len(asked) == 2 and not kept.refused


def test_values_that_decide_are_constants_as_long_as_they_are_few() -> None:
    maker = Maker(wants=True)
    kept = forms(maker, {"mode"})
    for mode in (1, 2, 1, 2):
        form = kept.find(given(2, 2, mode))
        assert form is not None and form.places == (0, 1)
    assert [fix for _, fix in maker.made] == [{"mode": 1}, {"mode": 2}]
    for mode in range(by_size.MOST_VALUES + 1):
        kept.find(given(2, 2, mode))
    assert kept.find(given(2, 2, 99)) is None and "'mode' change from call to call" in kept.refused
    assert kept.known(given(2, 2, 1)) is not None
    refused = forms(Maker(wants=True), {"x", "mode"})  # of floating-point numbers
    assert refused.find(given(2, 2)) is None and refused.refused == "mode is wanted"


def test_what_was_not_used_for_the_longest_time_is_forgotten(monkeypatch: Any) -> None:
    maker = Maker(closed=True)
    kept = forms(maker)
    for n in range(1, KEPT_SIZES + 1):
        kept.find(given(n, 3))
    kept.known(given(1, 3))
    kept.find(given(KEPT_SIZES + 1, 3))
    assert kept.closed == "closed" and len([*kept.modules()]) == KEPT_SIZES
    assert kept.known(given(1, 3)) and kept.known(given(KEPT_SIZES + 1, 3)) and not kept.known(given(2, 3))
    large = forms(Maker(closed=True, nbytes=by_size.MOST_BYTES // 2))
    for n in (1, 2, 3):
        large.find(given(n, 3))
    assert not large.known(given(1, 3)) and large.known(given(2, 3)) and large.known(given(3, 3))


def test_sizes_that_the_model_does_not_take_are_tried_once() -> None:
    tried = []

    def make(shapes: Any, fix: Any) -> Any:
        tried.append(shapes["x"])
        raise ModelError("sizes that do not fit")

    kept = BySize(SPECS, make, lambda name: None)
    assert [kept.find(given(n, 3)) for n in (2, 5, 2, 5, 2)] == [None] * 5
    assert tried == [(2, 4), (5, 4)] and not kept.refused
