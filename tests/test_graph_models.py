"""Models of graphs, compiled: the structure among the inputs is checked, re-ordered once, and chosen for by cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.array.prepared import PreparedModule
from burnish.driver.compilation import compile_kernels, make_module
from burnish.errors import ArtifactError, InputError, ModelError, ParameterError
from burnish.graph.aggregation import block_rows
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.kernels.templates import tunable_matches
from burnish.loops.evaluate import evaluate as evaluated
from burnish.machines.target import host
from burnish.measure.samples import module_inputs
from burnish.ops import OPERATORS
from burnish.tune.evaluate.reference import examples

VERTICES, EDGES, WIDTH = 300, 40_000, 48
SMALL_CACHE = replace(host(), l2_bytes=1 << 13, l3_bytes=1 << 14)


def structure(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    degrees = rng.multinomial(EDGES, rng.dirichlet(np.full(VERTICES, 0.3)))
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    return {"o": offsets, "s": rng.integers(0, VERTICES, EDGES).astype(np.int32)}


def feeds(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((VERTICES, WIDTH)).astype(np.float32)
    return {"x": x, "scale": rng.uniform(0.5, 1, (VERTICES, 1)).astype(np.float32), **structure(seed)}


def convolution(reduction: str = "sum") -> Graph:
    """Neighbours and the vertex itself, scaled before and after, and a ReLU: a layer of a GCN without its product."""
    b = GraphBuilder()
    x, scale = b.input("x", (VERTICES, WIDTH), "float32"), b.input("scale", (VERTICES, 1), "float32")
    o, s = b.input("o", (VERTICES + 1,), "int64"), b.input("s", (EDGES,), "int32")
    z = b.add("mul", x, scale)
    return b.build(
        b.add("relu", b.add("mul", b.add("add", b.add("aggregate", z, o, s, reduction=reduction), z), scale))
    )


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize("target", [host(), SMALL_CACHE], ids=["cached", "blocks"])
def test_layers_are_computed(reduction: str, target: object) -> None:
    graph, given = convolution(reduction), feeds()
    made = compile_kernels(graph, target)  # type: ignore[arg-type]
    module = make_module(made)
    assert [t.name for t in module.inputs] == ["x", "scale", "o", "s"]
    blocked = any(node.op == "aggregate_blocks" for node in made.graph.nodes)
    assert blocked == (target is SMALL_CACHE and reduction != "max")
    assert len(module.executable.inputs) == 4 + 2 * blocked
    for seed in (0, 1, 0):
        given = feeds(seed)
        close(module(**given), evaluate(graph, given)[graph.outputs[0]])


def test_epilogues_are_part_of_the_kernel() -> None:
    module = bn.compile(convolution())
    kernels = module.executable.info["kernels"]
    assert [k["template"] for k in kernels][-1] == "aggregate" and len(kernels) == 2
    assert "relu" in kernels[-1]["group"]


def test_a_structure_is_re_ordered_once() -> None:
    module = make_module(compile_kernels(convolution(), SMALL_CACHE))
    given = feeds()
    module(**given)
    (first,) = module._structures._known.values()
    module(**{**given, "x": given["x"] * 2})
    (again,) = module._structures._known.values()
    assert first is again
    module(**{**given, "s": given["s"].copy()})
    assert len(module._structures._known) == 2


def test_weighted_sums_by_blocks() -> None:
    """And their gradient, over a transpose whose weights are given."""
    given = feeds()
    rng = np.random.default_rng(3)
    order = np.argsort(given["s"], kind="stable")
    targets = np.repeat(np.arange(VERTICES, dtype=np.int32), np.diff(given["o"]))
    given |= {
        "w": rng.uniform(0, 1, EDGES).astype(np.float32), "st": targets[order],
        "ot": np.concatenate([[0], np.cumsum(np.bincount(given["s"], minlength=VERTICES))]).astype(np.int64),
    }  # fmt: skip
    given["wt"] = given["w"][order]
    del given["scale"]
    b = GraphBuilder()
    names = {n: b.input(n, given[n].shape, str(given[n].dtype)) for n in ("x", "w", "o", "s", "ot", "st", "wt")}
    graph = b.build(b.add("aggregate_weighted", *names.values()))
    backward = gradients(graph, graph.outputs, ["x"])
    assert not any(node.op in ("gather", "csr_order", "edge_dot") for node in backward.nodes)
    seeds = {n: np.ones(backward.types[n].shape, np.float32) for n in backward.inputs if n not in given}
    made = compile_kernels(backward, SMALL_CACHE)
    assert sum(node.op == "aggregate_blocks" for node in made.graph.nodes) == 2
    found = make_module(made)(**given, **seeds)
    expected = evaluate(backward, {**given, **seeds})
    for array, name in zip(found, backward.outputs, strict=True):
        close(array, expected[name])


def test_attention_by_blocks() -> None:
    """With its gradients: all sums of rows over edges come by blocks of sources."""
    rng, given = np.random.default_rng(4), feeds()
    arrays = {
        "x": rng.standard_normal((VERTICES, 2, 16), dtype=np.float32),
        "left": rng.standard_normal((VERTICES, 2), dtype=np.float32),
        "right": rng.standard_normal((VERTICES, 2), dtype=np.float32), "o": given["o"], "s": given["s"],
    }  # fmt: skip
    b = GraphBuilder()
    names = [b.input(name, array.shape, str(array.dtype)) for name, array in arrays.items()]
    graph = b.build(b.add("attention", *names))
    backward = gradients(graph, graph.outputs, ["x", "left", "right"])
    seeds = {n: np.ones(backward.types[n].shape, np.float32) for n in backward.inputs if n not in arrays}
    made = compile_kernels(backward, SMALL_CACHE)
    sums = [node.op for node in made.graph.nodes if node.op.startswith("attention_sum")]
    assert sums.count("attention_sum_blocks") >= 2
    found = make_module(made)(**arrays, **seeds)
    expected = evaluate(backward, {**arrays, **seeds})
    for array, name in zip(found, backward.outputs, strict=True):
        close(array, expected[name])


def test_gradients_by_blocks() -> None:
    graph, given = convolution("mean"), feeds()
    backward = gradients(graph, graph.outputs, ["x"])
    seeds = {n: np.ones(backward.types[n].shape, np.float32) for n in backward.inputs if n not in given}
    module = make_module(compile_kernels(backward, SMALL_CACHE))
    found = module(**given, **seeds)
    expected = evaluate(backward, {**given, **seeds})
    for array, name in zip(found if isinstance(found, tuple) else (found,), backward.outputs, strict=True):
        close(array, expected[name])


@pytest.mark.parametrize(
    "name, at, value, match",
    [
        ("s", 3, VERTICES, f"input 's': found rows from 0 to {VERTICES}; allowed: 0 to {VERTICES - 1}"),
        ("s", 3, -1, "input 's': found rows from -1 to"),
        ("o", 5, EDGES + 1, f"input 'o': found offsets from 0 to {EDGES + 1}; allowed: 0 to {EDGES}"),
        ("o", 7, EDGES, "input 'o': found offsets that fall"),
    ],
)
@pytest.mark.parametrize("target", [host(), SMALL_CACHE], ids=["cached", "blocks"])
def test_structures_are_checked(name: str, at: int, value: int, match: str, target: object) -> None:
    module = make_module(compile_kernels(convolution(), target))  # type: ignore[arg-type]
    given = feeds()
    given[name][at] = value
    with pytest.raises(InputError, match=match):
        module(**given)


def test_a_computed_structure_is_refused() -> None:
    b = GraphBuilder()
    x, o = b.input("x", (VERTICES, 4), "float32"), b.input("o", (VERTICES + 1,), "int64")
    s = b.add("cast", b.input("s", (EDGES,), "float32"), to="int32")
    with pytest.raises(ModelError, match="input 'sources' of aggregate: found the result of 'cast'"):
        bn.compile(b.build(b.add("aggregate", x, o, s)))


def test_a_constant_structure_is_checked_at_once() -> None:
    given = feeds()
    for wrong in (False, True):
        b = GraphBuilder()
        x = b.input("x", (VERTICES, WIDTH), "float32")
        sources = np.where(np.arange(EDGES) == 9, VERTICES, given["s"]) if wrong else given["s"]
        graph = b.build(b.add("aggregate", x, b.constant(given["o"]), b.constant(sources)))
        if wrong:
            with pytest.raises(ModelError, match=r"constant input '.*': found rows from 0 to"):
                bn.compile(graph)
        else:
            close(bn.compile(graph)(given["x"]), evaluate(graph, {"x": given["x"]})[graph.outputs[0]])


def test_saved_models_keep_their_structures(tmp_path: Path) -> None:
    module, given = make_module(compile_kernels(convolution(), SMALL_CACHE)), feeds()
    module.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn")
    np.testing.assert_array_equal(again(**given), module(**given))
    with pytest.raises(ParameterError, match="re-orders the structure"):
        PreparedModule(again)
    held = again.executable.info["structures"]
    for damaged in ({**held, "derived": held["derived"][:1] * 2}, {**held, "checks": [[9, "rows", 1]]}):
        info = {**again.executable.info, "structures": damaged}
        with pytest.raises(ArtifactError, match="structures are damaged"):
            bn.runtime.module.Module(replace(again.executable, info=info))


def test_attention_and_its_gradient() -> None:
    b = GraphBuilder()
    shapes = {"x": (VERTICES, 4, 8), "left": (VERTICES, 4), "right": (VERTICES, 4)}
    names = [b.input(n, shape, "float32") for n, shape in shapes.items()]
    o, s = b.input("o", (VERTICES + 1,), "int64"), b.input("s", (EDGES,), "int32")
    graph = b.build(b.add("attention", *names, o, s, slope=0.2))
    backward = gradients(graph, graph.outputs, list(shapes))
    rng = np.random.default_rng(3)
    given = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()} | structure()
    seeds = {n: np.ones(backward.types[n].shape, np.float32) for n in backward.inputs if n not in given}
    found = bn.compile(backward)(**given, **seeds)
    expected = evaluate(backward, {**given, **seeds})
    for array, name in zip(found, backward.outputs, strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-4 * max(1.0, np.abs(expected[name]).max()))


def test_dense_graphs_go_by_blocks_and_sparse_ones_by_vertices() -> None:
    def rows(vertices: int, edges: int, width: int) -> int:
        b = GraphBuilder()
        x, o = b.input("x", (vertices, width), "float32"), b.input("o", (vertices + 1,), "int64")
        graph = b.build(b.add("aggregate", x, o, b.input("s", (edges,), "int32")))
        return block_rows(graph, graph.nodes[0], replace(host(), l2_bytes=1 << 20, l3_bytes=32 << 20, cores=2))

    reddit, amazon = (232_965, 114_848_857), (9_430_088, 231_594_310)
    assert all(rows(*reddit, width) for width in (16, 64, 128, 602))
    assert not any(rows(*amazon, width) for width in (16, 64, 128))
    assert not rows(2708, 10_556, 16)  # Cora: in the cache as it is


def test_edge_lists_and_weights_in_compiled_models() -> None:
    rng = np.random.default_rng(2)
    b = GraphBuilder()
    x, w = b.input("x", (VERTICES, 20), "float32"), b.input("w", (EDGES,), "float32")
    o, s = b.input("o", (VERTICES + 1,), "int64"), b.input("s", (EDGES,), "int32")
    y = b.add("aggregate_weighted", x, w, o, s)
    targets = b.add("csr_targets", o, extent=EDGES)
    dots = b.add("edge_dot", x, y, s, targets)
    z = b.add("segment_reduce", b.add("reshape", dots, shape=(EDGES, 1)), targets, extent=VERTICES, reduction="mean")
    graph = b.build(y, z)
    given = {"x": rng.standard_normal((VERTICES, 20)).astype(np.float32)}
    given |= {"w": rng.standard_normal(EDGES).astype(np.float32), **structure()}
    for found, name in zip(bn.compile(graph)(**given), graph.outputs, strict=True):
        close(found, evaluate(graph, given)[name])


def test_structural_operators_are_opaque() -> None:
    assert all(op.extern is not None for op in OPERATORS.values() if op.traits.structure)


def test_random_inputs_are_structures() -> None:
    module = make_module(compile_kernels(convolution(), SMALL_CACHE))
    given = module_inputs(module, 5)
    assert given["o"][0] == 0 and given["o"][-1] == EDGES and (np.diff(given["o"]) >= 0).all()
    close(module(**given), evaluate(convolution(), given)["relu"])


def test_tuners_try_kernels_on_structures() -> None:
    for target in (host(), SMALL_CACHE):
        made = compile_kernels(convolution(), target)
        task = made.stages[-1].task
        arrays, (expected,) = examples(task)
        (again,) = evaluated(task.outputs, arrays, "float64")
        np.testing.assert_array_equal(again, expected)
        assert tunable_matches(task, target)[0].name.startswith("aggregate")
