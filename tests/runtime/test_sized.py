"""Symbol binding and per-size plans: what a module of symbolic shapes accepts, remembers and keeps in its artifact."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.driver.compilation import assemble, compile_kernels
from burnish.driver.loading import load
from burnish.errors import InputError, VerificationError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import Dim, SymbolicSize, dim
from burnish.machines.target import host
from burnish.memory.lifetimes import Interval
from burnish.runtime.executable import TensorSpec
from burnish.runtime.module import Module
from burnish.runtime.sized import KEPT, bind, plan_at, rounded_up


def chain(rows: Any) -> Graph:
    """Three products with values of different widths between, so that the arena depends on the rows."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (rows, 24))
    for i, (depth, columns) in enumerate([(24, 48), (48, 16), (16, 32)]):
        x = b.add("matmul", x, b.constant(random.standard_normal((depth, columns)).astype(np.float32), f"w{i}"))
        x = b.add("tanh", x)
    return b.build(x)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    folder = tmp_path_factory.mktemp("kernels")
    return Module(assemble(compile_kernels(chain(dim("rows", 1, 64, hint=20)), host(), cache_dir=folder)), threads=1)


def test_dimensions_are_bound_from_the_shapes_of_inputs() -> None:
    n, m = dim("n", 1, 9), dim("m", 2, 40, multiple=2)
    specs = [TensorSpec("x", (n * m, 3), "float32"), TensorSpec("y", (n, m + 1), "float32")]
    assert bind(specs, [(24, 3), (4, 7)]) == {"n": 4, "m": 3}
    with pytest.raises(InputError, match=r"input 'x' has shape \[25, 3\]; allowed with n 4, m 3: \[24, 3\]"):
        bind(specs, [(25, 3), (4, 7)])
    with pytest.raises(InputError, match=r"input 'y', axis 1: found 8; allowed: \(m\*2 \+ 1\), m from 1 to 20"):
        bind(specs, [(24, 3), (4, 8)])
    with pytest.raises(InputError, match="input 'y', axis 0: found 10; allowed: n from 1 to 9"):
        bind(specs, [(24, 3), (10, 7)])
    with pytest.raises(InputError, match="inputs differ in n: 'y' has 4, 'z' has 5; allowed: the same number"):
        bind([*specs, TensorSpec("z", (n,), "float32")], [(24, 3), (4, 7), (5,)])


def test_a_module_refuses_shapes_that_do_not_fit(module: Module) -> None:
    with pytest.raises(InputError, match="input 'x', axis 0: found 65; allowed: rows from 1 to 64"):
        module(np.zeros((65, 24), np.float32))
    with pytest.raises(InputError, match=r"input 'x' is float32\[3, 25\], allowed: float32\[rows, 24\]"):
        module(np.zeros((3, 25), np.float32))
    with pytest.raises(InputError, match=r"output 'tanh.* is float32\[4, 32\], allowed: float32\[5, 32\]"):
        module.run_into([np.zeros((5, 24), np.float32)], [np.zeros((4, 32), np.float32)])
    assert str(module.inputs[0]) == "x: float32[rows, 24]"


def test_the_arena_is_planned_for_sizes_rounded_up_and_the_last_few_are_kept(module: Module) -> None:
    made = module.executable
    assert [str(b.nbytes) for b in made.buffers] == ["rows*192", "rows*64"]
    assert made.arena_bytes == plan_at(made, {"rows": 20}).arena_bytes == module.memory["arena"]
    assert [rounded_up(n, 100) for n in (1, 15, 17, 20, 33, 65, 99)] == [1, 15, 18, 20, 36, 72, 100]
    twin = copy.copy(module)
    for rows in (64, 1, 33, *range(2, 2 + KEPT), 64):
        twin(np.zeros((rows, 24), np.float32))
        assert twin._now.arena_bytes == plan_at(made, {"rows": rounded_up(rows, 64)}).arena_bytes
        assert len(twin._seen) <= KEPT
    first = twin._seen[(64, 24),]
    twin(np.zeros((64, 24), np.float32))
    assert twin._seen[(64, 24),] is first


def test_answers_do_not_depend_on_the_sizes_before(module: Module) -> None:
    random = np.random.default_rng(3)
    tables = [random.standard_normal((rows, 24)).astype(np.float32) for rows in random.integers(1, 65, 30)]
    alone = [copy.copy(module)(x) for x in tables]
    assert all(np.array_equal(module(x), y) for x, y in zip(tables, alone, strict=True))
    assert [row.kernel for row in module.profile(tables[0], repeat=1)] == [c.kernel for c in module.executable.calls]


def test_an_artifact_keeps_dimensions_and_lifetimes(module: Module, tmp_path: Path) -> None:
    module.save(tmp_path / "m.bn")
    again = load(tmp_path / "m.bn", threads=1)
    assert again.executable.dims == (Dim("rows", 1, 64, 20),)
    assert again.executable.inputs == module.executable.inputs and again.executable.buffers == module.executable.buffers
    for rows in (1, 20, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)
        assert np.array_equal(again(x), module(x))


def test_parts_that_do_not_fit_together_are_refused(module: Module) -> None:
    made, rows, other = module.executable, dim("rows", 1, 64, hint=20), dim("other", 1, 8)
    assert isinstance(rows, SymbolicSize) and isinstance(other, SymbolicSize)
    spec = made.inputs[0]
    with pytest.raises(VerificationError, match="no input has an extent that is a multiple of dimension 'rows' alone"):
        replace(made, inputs=(replace(spec, shape=(rows // 2, 24)),))
    with pytest.raises(VerificationError, match="an output has any number of other, but no input has"):
        replace(made, outputs=(replace(made.outputs[0], shape=(other, 32)),))
    with pytest.raises(VerificationError, match="buffer 'b' has other\\*8 bytes"):
        replace(made, buffers=(*made.buffers, Interval("b", other * 8, 0, 1)))
    with pytest.raises(VerificationError, match="in-place pairs name no buffers"):
        replace(made, in_place=(("no", "body"),))
    with pytest.raises(VerificationError, match="which does not exist"):
        replace(made, buffers=made.buffers[:1])
