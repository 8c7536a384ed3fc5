"""End-to-end validation: which candidates take part, and which win where the model runs the kernels."""

from __future__ import annotations

from math import nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from burnish.driver.compilation import assemble, compile_kernels
from burnish.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.measure.sandbox import Sandbox
from burnish.pipeline.kernel import task_key
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.runtime.module import Module
from burnish.tune import validation
from burnish.tune.evaluate import Evaluator
from burnish.tune.space import Candidate
from burnish.tune.strategy import BURNISH
from burnish.tune.tasks import tuning_tasks
from burnish.tune.tuner import Tuner, defaults
from burnish.tune.validation import FINALISTS, Compiled, InModelValidator, finalists
from burnish.workers import Failure


def network() -> Graph:
    """A product twice, so that its kernel is called twice, and another one."""
    rng, g = np.random.default_rng(0), GraphBuilder()
    x = g.input("x", (24, 64))
    for inputs, outputs in ((64, 64), (64, 64), (64, 32)):
        w = g.constant(rng.standard_normal((inputs, outputs)).astype("float32"))
        x = g.add("relu", g.add("matmul", x, w))
    return g.build(x)


MACHINE = target("cpu,-amx")  # whose templates have choices enough
TASKS = tuning_tasks(optimize(network(), False), MACHINE, False)


def compiler(cache: Path) -> Compiled:
    def compiled(choices: Choices) -> tuple[Module, list[tuple[str, ...]]]:
        made = compile_kernels(network(), MACHINE, cache_dir=cache, choices=choices)
        return Module(assemble(made), 2), [(task_key(stage.task, MACHINE),) for stage in made.stages]

    return compiled


def searched(number: int, costs: list[float]) -> SimpleNamespace:
    """A kernel whose default, and then some other candidates, were measured."""
    tuner, rng = Tuner(TASKS[number].space, BURNISH), np.random.default_rng(0)
    points = np.unique(np.concatenate([defaults(tuner.space), tuner.space.space.sample(rng, 64)]), axis=0)
    first = (points == tuner.space.point(tuner.space.default)).all(axis=1)
    points = np.concatenate([points[first], points[~first]])[: len(costs)]
    tuner.observe(points, costs)
    return SimpleNamespace(task=TASKS[number], tuner=tuner)


def test_contenders_are_the_default_and_the_fastest() -> None:
    kernel = searched(0, [5.0, 2.0, 1.2, 1.0, 1.1, np.inf, 1.24, 1.26])
    space = kernel.tuner.space
    order = [space.candidate(kernel.tuner.points[row]) for row in (0, 3, 4, 2, 6)]
    assert finalists(kernel, 10) == order  # type: ignore[arg-type]
    assert finalists(kernel, 3) == order[:3]  # type: ignore[arg-type]
    fast = searched(0, [0.9, 1.0, 0.5, 3.0])
    assert finalists(fast, 5) == [fast.task.space.default, space.candidate(fast.tuner.points[2])]  # type: ignore[arg-type]
    assert finalists(searched(0, [np.inf]), 5) == [space.default]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(MACHINE) as made:
        yield made


def played(monkeypatch, tmp_path, evaluator, times, kernels, together=lambda choices: [0.8e-6] * len(choices)):  # type: ignore[no-untyped-def]
    """The verdicts if a kernel call takes ``times(module, kernel)`` seconds, and in a module of all winners
    ``together(choices)``; and the modules that were profiled first, then those of winners.
    """
    seen = []

    def profiles(self, modules, rounds, runs):  # type: ignore[no-untyped-def]
        noise = np.random.default_rng(0)
        rows = [[times(k, call.kernel) for call in m.executable.calls] for k, m in enumerate(modules)]
        if seen:
            choices = [each["choice"] for each in modules[1].executable.info["kernels"]]
            rows[1] = together(choices)
        seen.extend(modules[1:] if seen else modules)
        nodes = [call.node for call in modules[0].executable.calls]
        return [
            [[(node, t * noise.normal(1, 0.01)) for node, t in zip(nodes, own, strict=True)] for own in rows]
            for _ in range(rounds)
        ]

    monkeypatch.setattr(Sandbox, "profiles", profiles)
    monkeypatch.setattr(validation, "_seconds", lambda sandbox, module: 1e-4)
    return InModelValidator(compiler(tmp_path), 1 << 15, tmp_path, evaluator)(kernels, 10.0), seen


def test_the_winner_is_the_one_that_is_fastest_in_the_model(monkeypatch, tmp_path, evaluator) -> None:
    kernels = [searched(0, [1.2, 1.0, 1.05, 1.1]), searched(1, [1.0])]
    validations, modules = played(
        monkeypatch, tmp_path, evaluator, lambda k, _: 1e-6 * (0.8 if k == 2 else 1.0 + 0.1 * k), kernels
    )
    third = finalists(kernels[0], FINALISTS)[2]
    assert validations[0].candidate == third and validations[0].found.second_wins
    assert validations[0].found.ratio == pytest.approx(0.8, rel=0.02)
    assert validations[0].found.times[1][0] == pytest.approx(0.8e-6, rel=0.1), "seconds of a call"
    assert validations[1] is None, "nothing but the default was measured"
    x = np.random.default_rng(1).standard_normal((24, 64)).astype("float32")
    answers = [module(x) for module in modules]
    assert len(modules) == 5 and len({tuple(m.executable.info["kernels"][0]["choice"].items()) for m in modules}) == 4
    assert all(np.allclose(answer, answers[0], rtol=1e-4, atol=1e-4) for answer in answers)


def test_a_winner_that_loses_beside_the_others_is_none(monkeypatch, tmp_path, evaluator) -> None:
    kernels = [searched(0, [1.2, 1.0]), searched(1, [1.2, 1.0])]
    (first, default), (second, _) = ([finalists(k, 2)[n] for n in (1, 0)] for k in kernels)
    met = []

    def together(choices):  # type: ignore[no-untyped-def]
        met.append([choices[0], choices[-1]])
        return [*(1.3e-6 if c == first.choice else 0.9e-6 for c in choices[:-1]), 0.9e-6]  # the last is the other's

    validations, modules = played(
        monkeypatch, tmp_path, evaluator, lambda k, _: 1e-6 * (0.9 if k else 1.0), kernels, together
    )
    assert [v.found.second_wins for v in validations] == [False, True]
    assert validations[0].found.ratio == pytest.approx(1.3, rel=0.02), "what it took beside the others"
    assert met == [[first.choice, second.choice], [default.choice, second.choice]], "the others play once more"
    assert len(modules) == 2 + 2


def test_the_default_stays_where_nothing_is_surely_faster(monkeypatch, tmp_path, evaluator) -> None:
    kernels = [searched(0, [1.2, 1.0, 1.05])]
    (verdict,), _ = played(monkeypatch, tmp_path, evaluator, lambda k, _: 1e-6 * (1.0 + 0.05 * k), kernels)
    assert not verdict.found.second_wins and verdict.found.ratio == pytest.approx(1.05, rel=0.02)


def test_a_contender_that_cannot_be_built_does_not_stand(monkeypatch, tmp_path, evaluator) -> None:
    kernel = searched(0, [1.2, 1.0, 1.05])
    built = evaluator.build

    def build(trials):  # type: ignore[no-untyped-def]
        return [SimpleNamespace(kernel=None), *built(trials[1:])]

    monkeypatch.setattr(evaluator, "build", build)
    (verdict,), modules = played(monkeypatch, tmp_path, evaluator, lambda k, _: 1e-6 * (1.0 + 0.05 * k), [kernel])
    assert len(modules) == 2 and verdict.candidate == finalists(kernel, FINALISTS)[2]


def test_kernels_that_crash_in_the_model_are_judged_alone(monkeypatch, tmp_path, evaluator) -> None:
    def profiles(*_: object) -> None:
        raise Failure("crashed", "the process was killed by SIGSEGV", 1)

    kernels, asked = [searched(0, [1.2, 1.0])], []
    monkeypatch.setattr(Sandbox, "profiles", profiles)
    monkeypatch.setattr(validation, "standalone", lambda evaluator: lambda *given: asked.append(given) or ["alone"])
    with pytest.warns(RuntimeWarning, match="crashed: the process was killed by SIGSEGV; kernels are compared alone"):
        assert InModelValidator(compiler(tmp_path), 1 << 15, tmp_path, evaluator)(kernels, 10.0) == ["alone"]  # type: ignore
    assert asked == [(kernels, 10.0)]


def test_a_model_that_groups_nodes_otherwise_decides_nothing() -> None:
    default = TASKS[0].space.default
    other = Candidate(default.alternative, {})
    verdict = validation._validation([default, other], [[1.0, nan]] * 5)
    assert verdict is not None and not verdict.found.second_wins


def test_kernels_built_at_once_are_found_when_compiling(tmp_path, evaluator, monkeypatch) -> None:
    kernels = [searched(0, [1.2, 1.0])]
    validate = InModelValidator(compiler(tmp_path), 1 << 15, tmp_path, evaluator)
    (own,) = validate._built([finalists(k, 2) for k in kernels])  # type: ignore[arg-type]
    anew: list[object] = []
    monkeypatch.setattr("burnish.pipeline.kernel.compile_recipe", lambda *a: anew.append(a))
    module, _ = validate.compiled(validation._choices([(TASKS[0], own[1])], MACHINE))
    assert not anew and module.executable.info["kernels"][0]["choice"] == own[1].choice
    assert validate.compiled(DEFAULTS)[0].executable.info["kernels"][0]["choice"] == own[0].choice
