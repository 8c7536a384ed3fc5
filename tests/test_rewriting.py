"""A rewritten model is compiled where it is measured to be faster, computes the same, and tells what was done."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from burnish.codegen.objects import compile_ir
from burnish.driver import rewritten as rewriting
from burnish.driver.compilation import Compilation, compile_kernels
from burnish.driver.contributions import contributions
from burnish.driver.rewritten import LEAST_COMPARING, described, rewrite_model, shipped_rules
from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.measure.comparison import Comparison
from burnish.measure.sandbox import Sandbox
from burnish.pipeline.plan import DEFAULTS
from burnish.rewrite.search.match import both_ways
from burnish.rewrite.search.objective import RewriteObjective
from burnish.runtime.executable import Executable
from burnish.runtime.link import link as link_objects
from burnish.runtime.module import Module
from tests.rewrite.rules import rule

CPU = target("cpu,-amx")


@pytest.fixture(scope="module")
def chain() -> Graph:
    """x @ a @ b for weights: one product where there were two."""
    b = GraphBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (64, 256))
    for _ in range(2):
        x = b.add("matmul", x, b.constant((random.standard_normal((256, 256)) / 16).astype("float32")))
    return b.build(x)


def judged(monkeypatch: pytest.MonkeyPatch, ratio: float, width: float = 0.02) -> None:
    """Lets the comparison of modules end with this ratio, in an interval of this width."""

    def compare(self: Sandbox, first: Module, second: Module, *rest: object, **options: object) -> Comparison:
        return Comparison(ratio, ratio - width / 2, ratio + width / 2, ((1e-3,), (1e-3 * ratio,)))

    monkeypatch.setattr(Sandbox, "compare", compare)


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_the_winner_of_the_measurement_is_chosen(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, ratio: float
) -> None:
    judged(monkeypatch, ratio)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path)
    x = np.random.default_rng(1).standard_normal((64, 256)).astype("float32")
    a, b = chain.constants.values()
    np.testing.assert_allclose(chosen.module(x), x @ a @ b, rtol=0, atol=1e-4)
    report = chosen.module.rewrites
    assert report is not None
    assert report["kept"] == (ratio < 1)
    assert report["measured"]["ratio"] == ratio
    assert [(s["rule"], s["times"]) for s in report["applied"]] == [("product is associative", 1)]
    assert len(chosen.module.executable.calls) == (1 if ratio < 1 else 2)
    assert len(chosen.graph.nodes) == (1 if ratio < 1 else 2)


def test_nothing_is_measured_where_nothing_should_be_faster(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    monkeypatch.setattr(Sandbox, "compare", None)
    chosen = rewrite_model(chain, [], target=CPU, cache_dir=tmp_path)
    assert chosen.gain is None and chosen.found is not None
    assert chosen.graph is chain
    assert chosen.module.rewrites is not None and not chosen.module.rewrites["kept"]


def test_a_search_that_found_nothing_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    useless, useful = rule("swap of a product"), rule("product is associative")
    first = rewrite_model(chain, useless, target=CPU, cache_dir=tmp_path)
    again = rewrite_model(chain, useless, target=CPU, cache_dir=tmp_path)
    assert first.found is not None and again.found is None
    assert again.module.rewrites == first.module.rewrites
    assert again.module.executable.code.digest == first.module.executable.code.digest
    judged(monkeypatch, 0.5)
    assert rewrite_model(chain, useful, target=CPU, cache_dir=tmp_path).found is not None, "other rules"


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_a_choice_is_made_once(monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, ratio: float) -> None:
    associative = rule("product is associative")
    judged(monkeypatch, ratio)
    first = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    judged(monkeypatch, 1 / ratio)
    again = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    assert again.gain is None and again.module.rewrites == first.module.rewrites
    assert str(again.graph) == str(first.graph)
    assert again.module.executable.code.digest == first.module.executable.code.digest
    other = rewrite_model(chain, associative, target=CPU, threads=1, cache_dir=tmp_path)
    assert other.gain is not None, "another number of threads"


def test_the_report_is_in_the_artifact(monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path) -> None:
    import burnish as bn

    judged(monkeypatch, 0.5)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path)
    chosen.module.save(f"{tmp_path}/m.bn")
    assert bn.load(f"{tmp_path}/m.bn").rewrites == chosen.module.rewrites


@pytest.mark.parametrize("width", [0.2, 0.01])
def test_a_refusal_is_remembered_however_noisy(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, width: float
) -> None:
    """What a compilation did not decide would cost the next one as much time."""
    associative = rule("product is associative")
    judged(monkeypatch, 1.0, width)
    first = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    assert first.gain is not None and not first.gain.second_wins
    second = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    assert second.gain is None and second.module.rewrites == first.module.rewrites


@pytest.mark.parametrize(("left", "measured"), [(-1.0, LEAST_COMPARING), (0.5, 0.5)])
def test_rewriting_takes_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, left: float, measured: float
) -> None:
    """Both models are compared in the time that is left, and no other attempt is made without time for it."""
    asked: list[float] = []

    def compare(self: Sandbox, *modules: object, seconds: float = 0.0, **options: object) -> Comparison:
        asked.append(seconds)
        return Comparison(1.0, 0.9, 1.1, ((1.0,), (1.0,)), difference=0.0)

    monkeypatch.setattr(Sandbox, "compare", compare)
    monkeypatch.setattr(Sandbox, "kernel_seconds", None)
    monkeypatch.setattr(rewriting._Clock, "left", property(lambda self: left))
    monkeypatch.setattr(rewriting._Clock, "compiling", 1.0, raising=False)
    rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path)
    assert asked == [measured]


def test_a_graph_that_loses_is_not_proposed_again(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    """The second search knows what the kernels of the first rewriting took: more than those it should replace."""
    judged(monkeypatch, 1.5)
    measured = []

    def slow(self: Sandbox, modules: list[Module]) -> list[list[float]]:
        measured.append(modules)
        return [[1e-3] * len(module.executable.calls) for module in modules[:1]] + [[9e-3]]

    monkeypatch.setattr(Sandbox, "kernel_seconds", slow)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path, seconds=60)
    assert len(measured) == 1
    assert chosen.gain is not None and chosen.graph is chain


def test_recorded_kernels_are_known_to_the_first_search(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    judged(monkeypatch, 0.5)
    choices = replace(DEFAULTS, seconds=lambda task, target: 5e-4, name="recorded")
    associative = rule("product is associative")
    chosen = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path, choices=choices)
    assert chosen.found is not None and chosen.found.before == pytest.approx(1e-3)
    again = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path, choices=choices)
    assert again.found is None and str(again.graph) == str(chosen.graph)
    assert rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path).found is not None, "other records"


def test_fewer_operations_win_without_a_measurement(chain: Graph, tmp_path: Path) -> None:
    asked = RewriteObjective(time=0.0, flops=1.0)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path, objective=asked)
    assert len(chosen.graph.nodes) == 1 and chosen.gain is not None and not chosen.gain.times[0]
    report = chosen.module.rewrites
    assert report is not None and report["kept"] and report["measured"] is None
    assert report["outcome"] == "ok" and report["difference"] < 1e-5


@pytest.mark.parametrize(("ratio", "kept"), [(0.9, True), (1.05, True), (2.0, False)])
def test_time_and_operations_are_weighed(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, ratio: float, kept: bool
) -> None:
    """Half of the operations are gone: some more time is allowed for that."""
    judged(monkeypatch, ratio)
    asked = RewriteObjective(flops=10.0)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path, objective=asked)
    assert (chosen.graph is not chain) == kept


def test_a_limit_of_memory_is_met_or_refused(monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path) -> None:
    """Two matrices take more than their product, even where that is slower."""
    judged(monkeypatch, 1.5)

    def compiled(limit: int) -> Module:
        asked = RewriteObjective(memory_limit=limit)
        return rewrite_model(
            chain, rule("product is associative"), target=CPU, cache_dir=tmp_path, objective=asked
        ).module

    def taken(module: Module) -> int:
        return sum(module.memory[part] for part in ("arena", "params", "scratch"))

    roomy = compiled(1 << 30)
    assert len(roomy.executable.calls) == 2, "it fits as it is"
    tight = compiled(taken(roomy) - 1)
    assert len(tight.executable.calls) == 1 and taken(tight) < taken(roomy)
    with pytest.raises(ParameterError, match=rf"memory_limit=1000; the smallest graph found takes {taken(tight)} "):
        compiled(1000)


def test_the_report_holds_the_proof_of_every_substitution(tmp_path: Path) -> None:
    """In steps that each name an axiom; a rule read backwards has the same."""
    b = GraphBuilder()
    x = b.input("x", (64, 256))
    weights = [b.constant(np.ones((256, 256), np.float32)) for _ in range(2)]
    graph = b.build(b.add("matmul", b.add("matmul", x, weights[0]), weights[1]))
    chosen = rewrite_model(graph, shipped_rules(), target=CPU, cache_dir=tmp_path)
    assert chosen.found is not None and chosen.found.applied
    (step,) = described(chosen.found, chosen.gain, False)["applied"][0]["proof"]
    assert step.startswith("by matmul is associative with x = x")
    turned = replace(chosen.found, applied=(replace(chosen.found.applied[0], rule="matmul associativity"),))
    backwards = replace(turned.applied[0], rule="matmul associativity, read backwards")
    proofs = [
        each["proof"]
        for each in described(replace(turned, applied=(*turned.applied, backwards)), None, False)["applied"]
    ]
    assert proofs[0] == proofs[1] != []


FAULTY = """
define void @KERNEL(ptr %args, ptr %rt) {
entry:
  br label %loop
loop:
  BODY
}
declare void @llvm.trap()
"""
TRAP, HANG = "call void @llvm.trap()\n  unreachable", "br label %loop"
LONG = "the rewritten model took too long on made-up inputs: a run took longer than 2 s"


def planted(monkeypatch: pytest.MonkeyPatch, kernels: int, fault: str) -> None:
    """Lets a model of so many kernels come out of the compiler with a fault: of its code, or in its weights."""
    assemble = rewriting.assemble

    def broken(made: Compilation) -> Executable:
        executable = assemble(made)
        if len(executable.calls) != kernels:
            return executable
        if fault == "weights":
            weights = 1.5 * executable.params.view(np.float32)
            return replace(executable, params=weights.view(np.uint8))
        names = {call.kernel for call in executable.calls}
        code = {name: compile_ir(FAULTY.replace("KERNEL", name).replace("BODY", fault), CPU) for name in names}
        return replace(executable, code=link_objects(code))

    monkeypatch.setattr(rewriting, "assemble", broken)


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (TRAP, "crashed", "the rewritten model crashed on made-up inputs: the process was killed by SIGILL"),
        pytest.param(HANG, "timeout", LONG, marks=pytest.mark.slow),
        ("weights", "wrong", "the rewritten model gives other answers on made-up inputs: output 'matmul"),
    ],
)
def test_a_rewriting_that_fails_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, fault: str, outcome: str, words: str
) -> None:
    planted(monkeypatch, 1, fault)
    monkeypatch.setattr(rewriting, "Sandbox", lambda: Sandbox(limit=2.0))
    associative = rule("product is associative")
    with pytest.warns(RuntimeWarning, match="without 1 × product is associative") as caught:
        chosen = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    assert len(caught) == 1 and words in str(caught[0].message)
    assert chosen.graph is chain and len(chosen.module.executable.calls) == 2
    report = chosen.module.rewrites
    assert report is not None and not report["kept"] and report["measured"] is None
    assert report["outcome"] == outcome and report["error"].startswith(words)
    assert len(report["applied"]) == 1
    x = np.random.default_rng(1).standard_normal((64, 256)).astype("float32")
    a, b = chain.constants.values()
    np.testing.assert_allclose(chosen.module(x), x @ a @ b, rtol=0, atol=1e-4)
    with pytest.warns(RuntimeWarning, match="without 1 × product is associative"):
        again = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    assert (again.found is None) == (outcome != "timeout"), "what took too long is tried again"
    assert len(again.module.executable.calls) == 2


@pytest.mark.parametrize("objective", [None, RewriteObjective(time=0.0, flops=1.0)])
def test_a_model_that_crashes_is_compiled_as_it_is(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, objective: RewriteObjective | None
) -> None:
    planted(monkeypatch, 2, TRAP)
    with pytest.warns(RuntimeWarning, match="rewriting: the model as it is crashed on made-up inputs: the process was"):
        chosen = rewrite_model(
            chain, rule("product is associative"), target=CPU, cache_dir=tmp_path, objective=objective
        )
    assert chosen.graph is chain and chosen.gain is not None and chosen.gain.culprit == 0
    assert len(chosen.module.executable.calls) == 2


def test_without_a_process_to_try_it_in_a_model_is_not_rewritten(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    associative = rule("product is associative")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        chosen = rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path)
    report = chosen.module.rewrites
    assert chosen.graph is chain and report is not None and not report["kept"]
    assert report["outcome"] == "unavailable" and "could not be tried" in report["error"]
    assert not recwarn.list
    judged(monkeypatch, 0.5)
    assert rewrite_model(chain, associative, target=CPU, cache_dir=tmp_path).graph is not chain, "not remembered"


def test_models_of_views_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their kernels should take no time, and no other graph takes less."""
    monkeypatch.setattr(Sandbox, "compare", None)
    b = GraphBuilder()
    x = b.input("x", (3, 4, 5))
    turned = b.add("transpose", b.add("reshape", x, shape=(12, 5)), perm=(1, 0))
    for graph in (b.build(x), b.build(b.add("reshape", x, shape=(60,))), b.build(turned)):
        chosen = rewrite_model(graph, shipped_rules(), target=CPU, cache_dir=tmp_path)
        report = chosen.module.rewrites
        assert report is not None and report["outcome"] is None and not report["kept"]


def test_the_same_program_is_not_compared_with_itself(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    """Whatever was found: what comes of it is what there was."""
    made = []

    def as_before(*arguments: object) -> Compilation:
        made.append(arguments)
        return compile_kernels(chain, CPU, False, tmp_path)

    monkeypatch.setattr(rewriting, "compile_kernels", as_before)
    monkeypatch.setattr(Sandbox, "compare", None)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU, cache_dir=tmp_path)
    assert len(made) == 2 and chosen.graph is chain and chosen.gain is None


def test_what_a_substitution_is_worth_is_measured_without_it(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    judged(monkeypatch, 0.5)
    rules = both_ways(rule("product is associative"))
    chosen = rewrite_model(chain, rules, target=CPU, cache_dir=tmp_path)
    calls: list[int] = []

    def compare(self: Sandbox, first: Module, second: Module, **options: object) -> Comparison:
        calls.extend(len(module.executable.calls) for module in (first, second))
        return Comparison(2.0, 1.9, 2.1)

    monkeypatch.setattr(Sandbox, "compare", compare)
    found = contributions(chain, chosen, rules, target=CPU, cache_dir=tmp_path)
    assert list(found) == ["product is associative"] and found["product is associative"].ratio == 2.0
    assert calls == [1, 2], "the model without the rule is the model as it was"
    judged(monkeypatch, 1.5)
    refused = rewrite_model(chain, rules, target=CPU, threads=1, cache_dir=tmp_path)
    assert contributions(chain, refused, rules, target=CPU, cache_dir=tmp_path) == {}
