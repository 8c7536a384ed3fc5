"""Right kernels are measured; wrong, crashing and hanging ones are outcomes, and harm nobody."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.kernels.task import KernelTask
from burnish.loops.expr import math
from burnish.loops.layout import layout
from burnish.loops.tensor import compute, placeholder
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.image import Image
from burnish.tune.evaluate import Adaptive, Build, Evaluator, Fixed, KernelTrial, Measurement
from burnish.tune.evaluate.reference import examples
from tests.marks import slow
from tests.tune.conftest import CRASH, HANG, NOTHING, copies, handmade


def tried(evaluator: Evaluator, task: KernelTask, build: Build) -> Measurement:
    return evaluator.measure(KernelTrial(task, "generic", {}), build)


def test_right_kernels_are_measured(evaluator: Evaluator, doubling: KernelTask, product: KernelTask) -> None:
    results = evaluator.evaluate([evaluator.default(doubling), evaluator.default(product)])
    for made in results:
        assert (made.outcome, made.error) == ("ok", "")
        assert len(made.times) >= 1
        assert all(0 < seconds < 1 for seconds in made.times)
        assert min(made.times) <= made.seconds <= max(made.times)
        assert made.stop in ("steady", "enough")
        assert made.build_seconds > 0
        assert made.run_seconds > 0
        assert made.trace


@pytest.mark.parametrize(
    ("body", "outcome", "error"),
    [
        (copies(2.0), "ok", ""),
        (copies(3.0), "wrong", "'y' is wrong by 0.5 of its scale, allowed: 0.0001"),
        (copies(2.0, 999), "wrong", "'y' is wrong by nan of its scale"),
        (NOTHING, "wrong", "'y' is wrong by nan of its scale"),
        (copies(2.0, 1008), "wrong", "bytes next to 'y' were written"),
        (copies(2.0, 2000), "crashed", "the process was killed by SIGSEGV"),
        ("%p = getelementptr i8, ptr %y, i64 -1\nstore i8 0, ptr %p" + copies(2.0), "wrong", "bytes next to 'y'"),
        ("store float 0.0, ptr %x" + copies(2.0), "crashed", "the process was killed by SIGSEGV"),
        (CRASH, "crashed", "the process was killed by SIGSEGV"),
        (HANG, "timeout", "took longer than 1 s"),
        ("call void @llvm.trap()\nret void", "crashed", "the process was killed by SIG"),
    ],
)
def test_whatever_a_kernel_does_is_an_outcome(
    evaluator: Evaluator, doubling: KernelTask, body: str, outcome: str, error: str
) -> None:
    made = tried(evaluator, doubling, handmade(body))
    assert made.outcome == outcome
    assert made.error.startswith(error) if error else made.error == ""
    assert bool(made.times) == (outcome == "ok")
    assert tried(evaluator, doubling, handmade(copies(2.0))).outcome == "ok"


def test_bytes_next_to_scratch_memory_are_watched(evaluator: Evaluator, doubling: KernelTask) -> None:
    before = """
  %scratch.at = getelementptr { ptr, ptr, ptr }, ptr %rt, i64 0, i32 2
  %scratch = load ptr, ptr %scratch.at
  %p = getelementptr i8, ptr %scratch, i64 OFFSET
  store i8 0, ptr %p"""
    inside = tried(evaluator, doubling, handmade(before.replace("OFFSET", "8191") + copies(2.0), 4096))
    assert inside.outcome == "ok"
    front = tried(evaluator, doubling, handmade(before.replace("OFFSET", "-1") + copies(2.0), 4096))
    assert (front.outcome, front.error) == ("wrong", "bytes next to scratch memory were written")
    behind = tried(evaluator, doubling, handmade(before.replace("OFFSET", "8192") + copies(2.0), 4096))
    assert behind.outcome == "crashed"


def test_scratch_memory_that_nobody_wrote_is_not_zero(evaluator: Evaluator, doubling: KernelTask) -> None:
    body = """
  %scratch.at = getelementptr { ptr, ptr, ptr }, ptr %rt, i64 0, i32 2
  %scratch = load ptr, ptr %scratch.at
  %zero = load float, ptr %scratch"""
    body += copies(2.0).replace("store float %w", "%u = fadd float %w, %zero\n  store float %u")
    made = tried(evaluator, doubling, handmade(body, 4096))
    assert made.outcome == "wrong"


def test_a_kernel_that_cannot_be_loaded_is_an_outcome(evaluator: Evaluator, doubling: KernelTask) -> None:
    made = tried(evaluator, doubling, handmade(copies(2.0), scratch_bytes=1 << 50))
    assert made.outcome == "build failed"
    assert made.error.startswith("loading: ")
    failed = Build(None, None, (), 0.5, "ScheduleError: no")
    assert tried(evaluator, doubling, failed) == Measurement((), "build failed", "ScheduleError: no", 0.5)


def test_padding_of_blocked_layouts_is_not_compared(evaluator: Evaluator) -> None:
    x = placeholder((1, 20, 3, 5), "float32", "x")
    y = compute((1, 20, 3, 5), lambda n, c, h, w: x[n, c, h, w] * 2.0, "y")
    blocked = {name: layout("ABCD16b") for name in ("x", "y")}
    task = KernelTask("blocked", (x,), (y,), "mul", blocked, frozenset())
    (made,) = evaluator.evaluate([evaluator.default(task)])
    assert (made.outcome, made.error) == ("ok", "")
    # The last pixel's second block begins at 464 and holds channels 16 to 19, then padding.
    assert tried(evaluator, task, handmade(copies(2.0, 468))).outcome == "ok"
    assert tried(evaluator, task, handmade(copies(2.0, 467))).outcome == "wrong"


def test_halves_may_err_by_their_rounding_and_integers_not(evaluator: Evaluator) -> None:
    x = placeholder((100,), "bfloat16", "x")
    half = KernelTask("half", (x,), (compute((100,), lambda i: x[i] * x[i], "y"),), "mul", {}, frozenset())
    k = placeholder((100,), "int32", "k")
    whole = KernelTask("whole", (k,), (compute((100,), lambda i: k[i] * k[i], "y"),), "mul", {}, frozenset())
    for made in evaluator.evaluate([evaluator.default(half), evaluator.default(whole)]):
        assert (made.outcome, made.error) == ("ok", "")
    assert tried(evaluator, whole, handmade(NOTHING)).outcome == "wrong"


def test_examples_are_finite_and_indices_within_bounds() -> None:
    table, where = placeholder((2, 8), "float32", "table"), placeholder((5,), "int64", "where")
    gather = compute((5, 8), lambda i, j: table[where[i], j], "y")
    feeds, (found,) = examples(KernelTask("gather", (table, where), (gather,), "gather", {}, frozenset()))
    assert set(np.unique(feeds["where"])) == {0, 1}
    np.testing.assert_array_equal(found, feeds["table"][feeds["where"]])
    x = placeholder((50,), "float32", "x")
    y = compute((50,), lambda i: math("log", x[i]), "y")
    feeds, (found,) = examples(KernelTask("log", (x,), (y,), "log", {}, frozenset()))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, np.log(feeds["x"].astype(np.float64)))


def test_given_examples_are_used(doubling: KernelTask) -> None:
    with Evaluator(workers=1, threads=1) as own:
        x = np.arange(1000, dtype=np.float32)
        own.prepare(doubling, ({"x": x}, [x * 3.0]))
        assert tried(own, doubling, handmade(copies(3.0))).outcome == "ok"
        assert tried(own, doubling, handmade(CRASH)).outcome == "crashed"
        assert tried(own, doubling, handmade(copies(3.0))).outcome == "ok"
        assert tried(own, doubling, handmade(copies(2.0))).outcome == "wrong"


@pytest.mark.slow
def test_a_fixed_number_of_batches(doubling: KernelTask, product: KernelTask) -> None:
    with Evaluator(workers=1, threads=2, rule=Fixed(7)) as own:
        (made,) = own.evaluate([own.default(doubling)])
        assert (len(made.times), made.stop) == (7, "enough")
        assert np.isnan(made.ratio)
    with Evaluator(workers=1, threads=2, rule=Adaptive(variation=1e-9, most=9), cold=True) as own:
        (made,) = own.evaluate([own.default(product)])
        assert (len(made.times), made.stop) == (9, "enough")


@pytest.mark.parametrize("cold", slow([False, True], True))
def test_taking_turns_with_a_rival(product: KernelTask, doubling: KernelTask, cold: bool) -> None:
    with Evaluator(workers=1, threads=2, rule=Adaptive(variation=1e-9, most=9), cold=cold) as own:
        trial = own.default(product)
        (build,) = own.build([trial])
        for _ in range(2):  # the rival stays loaded
            made = own.measure(trial, build, (trial, build), to_beat=4.0)
            assert (made.outcome, made.stop, len(made.times)) == ("ok", "enough", 9)
            assert 0.4 < made.ratio < 2.5  # of a kernel to itself
        lost = own.measure(trial, build, (trial, build), to_beat=1e-6)
        assert (lost.outcome, lost.stop, len(lost.times)) == ("ok", "lost", 1)
        other = own.default(doubling)
        (small,) = own.build([other])
        assert own.measure(other, small, (trial, build)).ratio < 1.0, "a kernel of another task may be the rival"
        assert own.measure(trial, build, (other, Build(None))).outcome == "ok"
        assert np.isnan(own.measure(trial, build, (other, Build(None))).ratio)


def test_a_rival_is_loaded_again_by_the_next_worker(evaluator: Evaluator, doubling: KernelTask) -> None:
    trial, incumbent = KernelTrial(doubling, "generic", {}), handmade(copies(2.0))
    for body, outcome in ((CRASH, "crashed"), (copies(2.0), "ok"), (copies(3.0), "wrong"), (copies(2.0), "ok")):
        made = evaluator.measure(trial, handmade(body), (trial, incumbent))
        assert made.outcome == outcome
        assert (0 < made.ratio < np.inf) == (outcome == "ok")
    made = evaluator.measure(trial, handmade(copies(2.0)), (trial, handmade(copies(3.0))))
    assert made.outcome == "ok", "a candidate is not to blame for its rival"
    assert np.isnan(made.ratio)


def test_more_tasks_than_are_kept_open(evaluator: Evaluator) -> None:
    def increment(n: int) -> KernelTask:
        x = placeholder((n,), "float32", "x")
        return KernelTask("add", (x,), (compute((n,), lambda i: x[i] + 1.0, "y"),), "add", {}, frozenset())

    trials = [evaluator.default(increment(n)) for n in range(1, 9)]
    for trial in (*trials, *trials):
        (made,) = evaluator.evaluate([trial])
        assert made.outcome == "ok"


def test_comparing(evaluator: Evaluator, doubling: KernelTask, product: KernelTask) -> None:
    one, other = evaluator.default(doubling), evaluator.default(product)
    found = evaluator.compare(one, other, rounds=5)
    assert found.outcome == "ok"
    assert [len(times) for times in found.times] == [5, 5]
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(np.median(np.divide(found.times[1], found.times[0])))
    assert evaluator.compare(one, KernelTrial(product, "no such", {})).outcome == "build failed"
    packet = evaluator._builder.packet(doubling)

    def loadable(body: str) -> tuple[bytes, CompiledKernel, Image]:
        build = handmade(body)
        assert build.kernel is not None
        assert build.image is not None
        return packet, build.kernel, build.image

    for body, outcome in ((copies(3.0), "wrong"), (CRASH, "crashed"), (HANG, "timeout")):
        lost = evaluator._runner.compare(loadable(copies(2.0)), loadable(body), 1, 1e-4)
        assert lost.outcome == outcome
        assert not lost.second_wins
