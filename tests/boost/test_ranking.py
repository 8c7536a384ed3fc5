import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.data import Dataset
from burnish.boost.losses.pairs import order_descending
from burnish.boost.losses.reduction import Reduction
from burnish.boost.objective import objective_of
from burnish.boost.params import Params
from burnish.errors import DataError
from burnish.runtime.threads import Workers

NAMES = ("rank_pairwise", "rank_ndcg", "rank_map")


def data(label: np.ndarray, group: list[int], weight: Any = None) -> Dataset:
    return Dataset.of(np.zeros((len(label), 1), np.float32), label=label, group=group, weight=weight)


def queries(random: np.random.Generator, sizes: list[int], grades: int) -> tuple[np.ndarray, np.ndarray]:
    rows = sum(sizes)
    score = np.round(random.normal(size=rows), 1).astype(np.float32)  # with ties
    return random.integers(0, grades, rows).astype(np.float32), score


def statistics(
    params: dict[str, Any], dataset: Dataset, score: np.ndarray, round_number: int = 0, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    objective = objective_of(Params.of(params))
    objective.prepare(dataset, Reduction())
    gradient, hessian = np.empty((2, 1, len(score)), np.float32)
    objective.gradient(score[None].copy(), gradient, hessian, round_number, Workers(threads))
    return gradient[0], hessian[0]


def value_of_list(name: str, label: np.ndarray) -> float:
    """What a swap changes: DCG or the sum of precisions of labels by rank."""
    ranks = np.arange(len(label))
    if name == "rank_ndcg":
        return float(((2.0**label - 1) / np.log2(ranks + 2)).sum())
    return float(((np.cumsum(label > 0) / (ranks + 1)) * (label > 0)).sum())


def naive(name: str, label: np.ndarray, score: np.ndarray, top: int, normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """All pairs with one of the first `top` ranks of one query, each swapped for real, in float64."""
    label, score = label.astype(np.float64), score.astype(np.float64)
    gradient, hessian = np.zeros_like(score), np.zeros_like(score)
    order = np.argsort(-score, kind="stable")
    best = np.sort(label)[::-1]
    ideal = value_of_list(name, best[:top]) if name == "rank_ndcg" else float((label > 0).sum())
    total = 0.0
    for i, j in itertools.combinations(range(len(label)), 2):
        if i >= top or label[order[i]] == label[order[j]]:
            continue
        high, low = (order[i], order[j]) if label[order[i]] > label[order[j]] else (order[j], order[i])
        change = 1.0
        if name != "rank_pairwise":
            swapped = label[order].copy()
            swapped[[i, j]] = swapped[[j, i]]
            change = abs(value_of_list(name, swapped) - value_of_list(name, label[order])) / ideal
            if score.max() != score.min():
                change /= abs(score[high] - score[low]) + 0.01
        p = 1 / (1 + np.exp(score[low] - score[high]))
        gradient[high] += (p - 1) * change
        gradient[low] -= (p - 1) * change
        hessian[[high, low]] += 2 * p * (1 - p) * change
        total += 2 * (1 - p) * change
    scale = np.log2(1 + total) / total if normalize and total else 1.0
    return gradient * scale, hessian * scale


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pairs", [3, 500])
def test_pairs_of_the_top_ranks_are_those_of_the_naive_sum(name: str, normalize: bool, pairs: int) -> None:
    random = np.random.default_rng(7)
    sizes = [1, 2, 5, 17, 33, 70]
    label, score = queries(random, sizes, 2 if name == "rank_map" else 5)
    params = {
        "objective": name, "lambdarank_num_pair_per_sample": pairs, "lambdarank_normalization": normalize
    }  # fmt: skip
    gradient, hessian = statistics(params, data(label, sizes), score)
    start = np.append(0, np.cumsum(sizes))
    for begin, end in itertools.pairwise(start):
        expected = naive(name, label[begin:end], score[begin:end], pairs, normalize)
        scale = np.abs(expected[0]).max(initial=0.0)
        np.testing.assert_allclose(gradient[begin:end], expected[0], rtol=2e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(hessian[begin:end], expected[1], rtol=2e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_pairs_are_an_unbiased_share_of_all_pairs(name: str) -> None:
    random = np.random.default_rng(11)
    label, score = queries(random, [12], 2 if name == "rank_map" else 3)
    params = {
        "objective": name, "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 4000,
        "lambdarank_normalization": True,
    }  # fmt: skip
    gradient, _ = statistics(params, data(label, [12]), score)
    expected = np.zeros(12)
    every = naive_pairs(name, label, score)
    for (a, b), push in every.items():  # either document draws the other among those of another label
        chance = 1 / (label != label[a]).sum() + 1 / (label != label[b]).sum()
        expected[a] += push * chance
        expected[b] -= push * chance
    np.testing.assert_allclose(gradient, expected, atol=0.05 * np.abs(expected).max())


def naive_pairs(name: str, label: np.ndarray, score: np.ndarray) -> dict[tuple[int, int], float]:
    """The push on the better document of every pair (better, worse)."""
    order = np.argsort(-score, kind="stable")
    rank = np.argsort(order)
    ideal = value_of_list(name, np.sort(label)[::-1]) if name == "rank_ndcg" else float((label > 0).sum())
    found = {}
    for a, b in itertools.permutations(range(len(label)), 2):
        if label[a] > label[b]:
            change = 1.0
            if name != "rank_pairwise":
                swapped = label[order].copy()
                swapped[[rank[a], rank[b]]] = swapped[[rank[b], rank[a]]]
                change = abs(value_of_list(name, swapped) - value_of_list(name, label[order])) / ideal
                change /= abs(float(score[a]) - float(score[b])) + 0.01
            found[a, b] = (1 / (1 + np.exp(float(score[b]) - float(score[a]))) - 1) * change
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["topk", "mean"])
def test_statistics_add_up_to_zero_in_a_query_and_are_the_same_for_any_threads(name: str, method: str) -> None:
    random = np.random.default_rng(5)
    sizes = random.integers(1, 40, 500).tolist()
    label, score = queries(random, sizes, 2)
    params = {"objective": name, "lambdarank_pair_method": method, "lambdarank_num_pair_per_sample": 5}
    dataset = data(label, sizes)
    alone = statistics(params, dataset, score)
    for threads in (2, 3):
        several = statistics(params, dataset, score, threads=threads)
        assert all((a == b).all() for a, b in zip(alone, several, strict=True))
    sums = np.add.reduceat(alone[0], np.append(0, np.cumsum(sizes))[:-1])
    assert np.abs(sums).max() < 1e-4 and (alone[1] >= 0).all() and np.abs(alone[0]).max() > 0


def test_sampled_pairs_differ_between_rounds_and_are_repeatable() -> None:
    random = np.random.default_rng(5)
    label, score = queries(random, [50], 3)
    params = {"objective": "rank_pairwise", "lambdarank_pair_method": "mean", "seed": 4}
    first, again = (statistics(params, data(label, [50]), score, 0)[0] for _ in range(2))
    later = statistics(params, data(label, [50]), score, 1)[0]
    assert (first == again).all() and (first != later).any()


def test_a_query_with_equal_labels_teaches_nothing_and_one_document_neither() -> None:
    gradient, hessian = statistics({"objective": "rank_ndcg"}, data(np.ones(4), [3, 1]), np.arange(4, dtype=np.float32))
    assert (gradient == 0).all() and (hessian == 0).all()


def test_weights_multiply_the_rows_of_a_query() -> None:
    random = np.random.default_rng(5)
    label, score = queries(random, [10, 10], 3)
    plain, _ = statistics({"objective": "rank_ndcg"}, data(label, [10, 10]), score)
    heavy, _ = statistics({"objective": "rank_ndcg"}, data(label, [10, 10], [1.0, 2.0]), score)
    assert (heavy == plain * np.repeat([1, 2], 10).astype(np.float32)).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 5), max_size=200))
def test_order_is_stable_and_descending(values: list[int]) -> None:
    score = np.array(values, np.float32)
    order, scratch = np.empty(len(values), np.int32), np.empty(len(values), np.int32)
    order_descending(score, order, scratch)
    assert (order == np.argsort(-score, kind="stable")).all()


@pytest.mark.parametrize(
    ("name", "label", "group", "message"),
    [
        ("rank_ndcg", [0, 32], [2], "label of row 1: found 32.0; allowed: grades up to 31"),
        ("rank_ndcg", [0, -1], [2], "label of row 1: found -1.0"),
        ("rank_map", [0, 2], [2], "label of row 1: found 2.0; allowed: 0 or 1"),
        ("rank_pairwise", [0, 1], None, "no queries"),
    ],
)
def test_refusals(name: str, label: list[float], group: Any, message: str) -> None:
    dataset = data(np.array(label), group)
    with pytest.raises(DataError, match=message):
        objective_of(Params.of({"objective": name})).prepare(dataset, Reduction())


def test_queries_that_do_not_add_up() -> None:
    table, label = np.zeros((3, 1), np.float32), np.zeros(3, np.float32)
    broken = Dataset(table, 3, 1, label=label, group_start=np.array([0, 2]))
    with pytest.raises(DataError, match="add up to 2; allowed: 3"):
        objective_of(Params.of({"objective": "rank_ndcg"})).prepare(broken, Reduction())
