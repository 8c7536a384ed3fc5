"""Features of candidates against their definitions, one candidate and one loop at a time."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from burnish.kernels.cpu.conv import DIRECT_CONV
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.nest import ANNOTATIONS, CandidateNests, LoopKind, NestLevel, main_stage, statement
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES, maximum
from burnish.loops.layout import layout
from burnish.loops.tensor import compute, placeholder, stages
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.tune.features import REPRESENTATIONS, extract, names, sequence
from burnish.tune.features.context import BUFFERS, CONTEXT, SUMMARY, TABLE_2, context
from burnish.tune.features.relation import RELATION, THRESHOLDS, relation
from burnish.tune.features.representation import LEVELS
from burnish.tune.space import Alternative, TuningSpace

MACHINE = target("x86-64-v4")
BLOCKED = f"ABCD{MACHINE.lanes}b"


def task_of(op: str, shapes: dict[str, tuple[int, ...]], attrs: dict[str, object], blocked: bool) -> KernelTask:
    (y,) = OPERATORS[op].define("y", [placeholder(s, name=n) for n, s in shapes.items()], attrs)
    out = compute(y.shape, lambda *i: maximum(y[i], 0.0), "out")
    layouts = {n: layout(BLOCKED) for n in ("x", "out")} if blocked else {}
    return KernelTask(
        "kernel", tuple(t for t in stages([out]) if t.body is None), (out,), op, layouts, frozenset({"w"})
    )


CONV = task_of("conv2d", {"x": (1, 32, 14, 14), "w": (64, 32, 3, 3)}, {"pads": (1, 1, 1, 1)}, True)
FAST = task_of("winograd_conv2d", {"x": (1, 32, 14, 14), "w": (6, 6, 64, 32)}, {}, True)
PRODUCT = task_of("matmul", {"x": (48, 64), "w": (64, 96)}, {}, False)


def space(*parts: tuple[str, Template, KernelTask]) -> TuningSpace:
    return TuningSpace([Alternative(label, task, t, t.on(task, MACHINE).space, MACHINE) for label, t, task in parts])


SPACES = {
    "conv": space(("direct", DIRECT_CONV, CONV)),
    "algorithms": space(("direct", DIRECT_CONV, CONV), ("winograd", WINOGRAD_CONV, FAST)),
    "matmul": space(("matmul", MATMUL, PRODUCT)),
}


def small_nest() -> CandidateNests:
    """y[48, 96] = x[48, 64] w[64, 96] in tiles of 6 rows; for the second candidate of 5, the last one partial."""
    rows = np.array([6, 5])
    levels = [
        NestLevel(1, 3, 32, LoopKind.PARALLEL),
        NestLevel(0, -(-48 // rows), rows),
        NestLevel(2, 64),
        NestLevel(0, rows, 1, LoopKind.UNROLL),
        NestLevel(1, 2, 16, LoopKind.UNROLL),
        NestLevel(1, 16, 1, LoopKind.VECTORIZE),
    ]
    return statement(PRODUCT, main_stage(PRODUCT)).nest(levels, 2)


@pytest.mark.parametrize("row", [0, 1])
def test_context_by_hand(row: int) -> None:
    """Table 2 of the paper and the ratios to the machine, loop by loop."""
    nest, tile = small_nest(), (6, 5)[row]
    features, summary = context(nest, MACHINE)
    tiles = -(-48 // tile)
    lengths = [3, tiles, 64, tile, 2, 16]
    kinds = [LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.UNROLL, LoopKind.VECTORIZE]
    touched = {  # of y, x, w: by the loops from each one inwards
        "stored": [48 * 96, 48 * 32, tile * 32, tile * 32, 32, 16],
        "loaded": [48 * 64, 48 * 64, tile * 64, tile, 1, 1],
        "constant": [64 * 96, 64 * 32, 64 * 32, 32, 32, 16],
    }
    strides = {"stored": [32, 96 * tile, 0, 96, 16, 1], "loaded": [0, 64 * tile, 1, 64, 0, 0],
               "constant": [32, 0, 96, 0, 16, 1]}  # fmt: skip
    for k, length in enumerate(lengths):
        inner, outer = np.prod(lengths[k + 1 :]), np.prod(lengths[:k])
        expected = {"length": log2(length), "top-down": log2(outer), "bottom-up": log2(inner)}
        expected |= {name: float(ANNOTATIONS[kinds[k]] == name) for name in ANNOTATIONS}
        for buffer in touched:
            expected[f"touched of {buffer}"] = log2(touched[buffer][k])
            expected[f"reuse of {buffer}"] = log2(inner * length / touched[buffer][k])
            expected[f"stride of {buffer}"] = log2(1 + strides[buffer][k])
        footprint = 4 * sum(own[k] for own in touched.values())
        expected["touched / L1"] = log2(footprint / MACHINE.l1_bytes)
        expected["touched / L2"] = log2(footprint / MACHINE.l2_bytes)
        expected["operations / byte"] = log2(inner * length / footprint)
        found = dict(zip(CONTEXT, features[row, k].tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-4), k
    iterations = np.prod(lengths)
    assert dict(zip(SUMMARY, summary[row].tolist(), strict=True)) == pytest.approx({
        "accumulators / registers": log2(2 * tile / MACHINE.vector_registers),
        "parallel / cores": log2(3 / MACHINE.cores),
        "busiest core": log2(4 / 3),  # of three panels one of two cores has two
        "vector / lanes": 0.0,
        "unrolled": log2(2 * tile),
        "padding": log2(iterations / (48 * 64 * 96)),
        "vector stride of stored": 1.0, "vector stride of loaded": 0.0, "vector stride of constant": 1.0,
        "iterations": log2(iterations),
    }, abs=1e-4)  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_relation_by_definition(name: str) -> None:
    """The paper's formula, loop by loop, from the nest itself."""
    made = SPACES[name]
    points = made.space.sample(np.random.default_rng(0), 12)
    found = extract(made, "relation", points)
    for row, point in enumerate(points):
        number = int(point[0]) if len(made.alternatives) > 1 else 0
        alternative = made.alternatives[number]
        nest = alternative.describe(made.knobs(number, point[None]), 1)
        levels = len(nest.axes)
        inside = [float(np.prod(nest.extent[k:, 0])) for k in range(levels)]
        bytes_of = [[nest.elements[x, k, 0] * ITEM_BYTES[b.dtype] for k in range(levels)]
                    for x, b in enumerate(nest.buffers)]  # fmt: skip
        per_byte = [inside[k] / sum(own[k] for own in bytes_of) for k in range(levels)]
        reuses = [[inside[k] / nest.elements[x, k, 0] for k in range(levels)] for x in range(BUFFERS)]
        slots = [*zip(bytes_of, reuses, strict=True), ([sum(o[k] for o in bytes_of) for k in range(levels)], per_byte)]
        expected: list[float] = []
        for touched, reuse in slots:
            below = [[k for k in range(levels) if touched[k] < 2**t * MACHINE.l1_bytes] for t in THRESHOLDS]
            expected += [max([0.0, *(log2(reuse[k]) for k in ks)]) for ks in below]
            expected += [min([0.0, *(log2(1 / inside[k]) for k in ks)]) for ks in below]
        np.testing.assert_allclose(found[row, : len(expected)], expected, atol=2e-3)


def test_relation_does_not_tell_the_size_of_a_task() -> None:
    """Twice as many column panels: what a core does, and in which cache, is the same, and so are the features."""
    wide = task_of("matmul", {"x": (48, 64), "w": (64, 192)}, {}, False)
    found = []
    for task, panels in ((PRODUCT, 4), (wide, 8)):
        levels = [
            NestLevel(1, panels, 24, LoopKind.PARALLEL),
            NestLevel(2, 64),
            NestLevel(0, 48, 1, LoopKind.UNROLL),
            NestLevel(1, 24, 1, LoopKind.VECTORIZE),
        ]
        nest = statement(task, main_stage(task)).nest(levels, 1)
        found.append(relation(nest, MACHINE, *context(nest, MACHINE))[0])
    tells = {n for n, a, b in zip(RELATION, *found, strict=True) if abs(a - b) > 1e-3}
    large = {f"{kind} of {slot} below L1 * 2^{t:g}" for kind in ("reuse", "visits") for t in THRESHOLDS if t > -3
             for slot in ("stored", "loaded", "constant", "all")}  # fmt: skip
    strides = {"vector stride of stored", "vector stride of constant"}
    assert tells - large - strides == {"parallel / cores"}


@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("name", SPACES)
def test_features_of_a_point_depend_on_it_alone(name: str, representation: str) -> None:
    """In any company and order a candidate has the same features; different ones are told apart by their loops."""
    made = SPACES[name]
    points = np.unique(made.space.canonical(made.space.sample(np.random.default_rng(2), 200)), axis=0)
    features = extract(made, representation, points)
    assert features.dtype == np.float32
    assert features.shape == (len(points), len(names(made, representation)))
    assert np.isfinite(features).all()
    order = np.random.default_rng(3).permutation(len(points))
    assert (extract(made, representation, points[order]) == features[order]).all()
    for row in (0, len(points) - 1):
        assert (extract(made, representation, points[row : row + 1])[0] == features[row]).all()
    assert extract(made, representation, points[:0]).shape == (0, features.shape[1])
    if representation == "configuration":
        assert len(np.unique(features, axis=0)) == len(points)


def test_configuration_columns() -> None:
    made = SPACES["algorithms"]
    point = made.point(made.default)
    found = dict(zip(names(made, "configuration"), extract(made, "configuration", point[None])[0], strict=True))
    choice = made.default.choice
    for knob in ("tile_ow", "vectors", "depth", "band"):
        number = int(choice[knob])
        assert found[f"direct.{knob}"] == pytest.approx(log2(1 + number))
        assert found[f"direct.2s in {knob}"] == (log2(number & -number) if number else 0)
    assert found["direct.outer = oc"] == float(choice["outer"] == "oc")
    assert found["direct.outer = oh"] == float(choice["outer"] == "oh")
    assert (found["direct"], found["winograd"]) == (1.0, 0.0)
    assert not any(value for name, value in found.items() if name.startswith("winograd."))


def test_flattened_and_sequence_have_the_loops_of_a_candidate() -> None:
    """Loops with more than one iteration, outermost first; the rest is 0."""
    made = SPACES["algorithms"]
    points = made.space.sample(np.random.default_rng(4), 30)
    flat = extract(made, "flattened", points).reshape(len(points), LEVELS, len(TABLE_2))
    loops, mask = sequence(made, points)
    assert (loops[:, :, : len(TABLE_2)] == flat).all()
    for row, point in enumerate(points):
        number = int(point[0])
        nest = made.alternatives[number].describe(made.knobs(number, point[None]), 1)
        own = nest.extent[:, 0] > 1
        features, (summary,) = context(nest, MACHINE)
        features = features[0][own]
        assert mask[row].tolist() == [True] * len(features) + [False] * (LEVELS - len(features))
        assert (loops[row, : len(features), : len(CONTEXT)] == features).all()
        assert (loops[row, : len(features), len(CONTEXT) :] == summary).all()
        assert not loops[row, len(features) :].any()


def test_of_a_deep_nest_the_innermost_loops() -> None:
    """What is inside decides more, and ends at the same place whatever the depth."""
    levels = [NestLevel(0, 2, 2**k) for k in range(LEVELS + 3)]
    x = placeholder((2 ** (LEVELS + 3),), name="x")
    out = compute(x.shape, lambda i: maximum(x[i], 0.0), "out")
    deep = Template("deep", lambda *task: True, lambda *form: None, lambda *choice: None)  # type: ignore[arg-type, return-value]
    task = KernelTask("kernel", (x,), (out,), "", {}, frozenset())
    alternative = Alternative("deep", task, deep, MATMUL.on(PRODUCT, MACHINE).space, MACHINE)
    nest = statement(task, out).nest(levels[::-1], 1)
    alternative.__dict__["describe"] = lambda knobs, count: nest
    made = TuningSpace([alternative])
    loops, mask = sequence(made, made.point(made.default)[None])
    assert mask.all()
    assert (loops[0, :, : len(CONTEXT)] == context(nest, MACHINE)[0][0, 3:]).all()


def test_unknown_representation() -> None:
    made = SPACES["matmul"]
    with pytest.raises(ValueError, match="representation 'knobs' is unknown; allowed: configuration, loops"):
        extract(made, "knobs", made.point(made.default)[None])  # type: ignore[arg-type]
