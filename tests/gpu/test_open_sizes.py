"""Open extents on a GPU: each size is compiled when it comes; states and parameters go along, also through a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver.module_by_size import ModuleBySize
from burnish.errors import ArtifactError, InputError, ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.graph_file import graph_from, graph_parts
from burnish.loops.sizes import dim
from burnish.machines.target import target
from burnish.simulators.gpu.emulator import GridEmulator, emulated

GPU = emulated(target("cuda:sm_90a"))


def layers(high: int = 6) -> Graph:
    """Two layers of any number of rows."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.input("x", (dim("rows", 1, high, hint=3), 8))
    h = b.add("relu", b.add("matmul", x, b.constant(rng.standard_normal((8, 16), "f4"), "w")))
    return b.build(b.add("matmul", h, b.constant(rng.standard_normal((16, 4), "f4"), "v")))


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8), "f4")


def expected(x: np.ndarray) -> np.ndarray:
    w, v = layers().constants.values()
    return np.maximum(x @ w, 0) @ v


def test_each_size_is_compiled_once_and_parameters_are_shared(tmp_path: Path) -> None:
    module = bn.compile(layers(), target=GPU, cache_dir=tmp_path / "cache")
    assert isinstance(module, ModuleBySize) and module.compilations == 1 and module.latest.inputs[0].shape == (3, 8)
    for count in (3, 5, 3, 5):
        np.testing.assert_allclose(module(rows(count)), expected(rows(count)), rtol=1e-4, atol=1e-4)
    assert module.compilations == 2 and "2 sizes kept" in repr(module)
    a, b = module._modules
    assert a.executable.params is b.executable.params
    out = np.empty((5, 4), "f4")
    module.run_into([rows(5)], [out])
    np.testing.assert_array_equal(out, module(x=rows(5)))
    for wrong in (rows(7), rows(2)[:, :7]):
        with pytest.raises(InputError, match="x"):
            module(wrong)
    module.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn", device=GridEmulator())
    assert isinstance(again, ModuleBySize) and again.compilations == 0
    np.testing.assert_array_equal(again(rows(5)), out)
    assert again.compilations == 0
    np.testing.assert_allclose(again(rows(1)), expected(rows(1)), rtol=1e-4, atol=1e-4)
    assert again.compilations == 1
    module.close()
    assert repr(module) == "ModuleBySize(closed)"


@pytest.mark.slow
def test_states_go_along_and_are_saved(tmp_path: Path) -> None:
    recipe, y = bn.Train("mse", bn.Adam(0.01), memory_budget="1MB"), np.ones((6, 4), "f4")
    step = bn.compile(layers(), target=GPU, train=recipe, cache_dir=tmp_path / "cache")
    here = bn.compile(layers(), train=recipe, cache_dir=tmp_path / "cache")
    for count in (3, 2, 3):
        np.testing.assert_allclose(step(rows(count), y[:count]), here(rows(count), y[:count]), rtol=1e-5)
    np.testing.assert_allclose(step.state["w"], here.state["w"], rtol=1e-5)
    assert step.state["optimizer.step"] == 3
    step.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn", device=GridEmulator())
    assert isinstance(again, ModuleBySize)
    for count in (2, 1):
        np.testing.assert_allclose(again(rows(count), y[:count]), here(rows(count), y[:count]), rtol=1e-5)
    again.reset()
    assert again.state["optimizer.step"] == 0


def test_a_budget_that_does_not_do_for_the_greatest_size_is_refused(tmp_path: Path) -> None:
    recipe = bn.Train("mse", memory_budget="20KB")
    with pytest.raises(ParameterError, match="budget"):
        bn.compile(layers(1 << 12), target=GPU, train=recipe, cache_dir=tmp_path / "cache")


def test_a_graph_comes_back_from_its_file_and_damage_is_refused(tmp_path: Path) -> None:
    graph = layers()
    header, sections = graph_parts(graph)
    again = graph_from(header, sections)
    assert str(again) == str(graph) and again.dims == graph.dims
    header["types"]["w"][0] = [8, 17]
    with pytest.raises((ValueError, ArtifactError)):
        graph_from(header, sections)
