"""A rewritten model is compiled where it is measured to be faster, computes the same, and tells what was done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from burnish import rewriting
from burnish.graph.graph import Graph, GraphBuilder
from burnish.rewriting import rewrite_model
from burnish.runtime.comparison import Comparison
from burnish.runtime.module import Module
from burnish.target import target
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


def judged(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Lets the comparison of modules end with this ratio."""

    def compare(first: Module, second: Module) -> Comparison:
        return Comparison(ratio, ratio - 0.01, ratio + 0.01)

    monkeypatch.setattr(rewriting, "compare_modules", compare)


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_the_winner_of_the_measurement_is_chosen(monkeypatch: pytest.MonkeyPatch, chain: Graph, ratio: float) -> None:
    judged(monkeypatch, ratio)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU)
    x = np.random.default_rng(1).standard_normal((64, 256)).astype("float32")
    a, b = chain.constants.values()
    np.testing.assert_allclose(chosen.module(x), x @ a @ b, rtol=0, atol=1e-4)
    report = chosen.module.rewrites
    assert report is not None
    assert report["kept"] == (ratio < 1)
    assert report["measured"]["ratio"] == ratio
    assert [(s["rule"], s["times"]) for s in report["applied"]] == [("product is associative", 1)]
    assert chosen.module.graph.count("= matmul(") == (1 if ratio < 1 else 2)
    assert len(chosen.graph.nodes) == (1 if ratio < 1 else 2)


def test_nothing_is_measured_where_nothing_should_be_faster(
    monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path
) -> None:
    monkeypatch.setattr(rewriting, "compare_modules", None)
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


def test_the_report_is_in_the_artifact(monkeypatch: pytest.MonkeyPatch, chain: Graph, tmp_path: Path) -> None:
    import burnish as bn

    judged(monkeypatch, 0.5)
    chosen = rewrite_model(chain, rule("product is associative"), target=CPU)
    chosen.module.save(f"{tmp_path}/m.bn")
    assert bn.load(f"{tmp_path}/m.bn").rewrites == chosen.module.rewrites
