import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost import sampling
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN, HashedColumns, column_sampler, mix, sample_rows, stream
from burnish.runtime.threads import Workers


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_compiled_hash_is_the_one_on_integers_and_on_arrays(word: int) -> None:
    assert int(mix(np.uint64(word))) == sampling._mix(word)
    golden = 0x9E3779B97F4A7C15
    every = sampling._hash(np.uint64(17), np.array([word], np.uint64))
    assert int(every[0]) == sampling._mix((17 + word * golden) % 2**64)


def kept(rows: int, share: float, round_number: int = 0, threads: int = 1, first: int = 0) -> np.ndarray:
    gradient, hessian = np.ones((2, rows), np.float32), np.ones((2, rows), np.float32)
    params = Params(subsample=share, seed=5)
    sample_rows(params, round_number, gradient, hessian, Workers(threads), first)
    assert (gradient == hessian).all() and (gradient[0] == gradient[1]).all()
    return gradient[0] == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_rows_is_close_and_differs_from_round_to_round(share: float) -> None:
    rows = 40_000
    first, second = kept(rows, share), kept(rows, share, round_number=1)
    deviation = 4 * np.sqrt(share * (1 - share) / rows)
    assert abs(first.mean() - share) < deviation and abs(second.mean() - share) < deviation
    assert abs((first & second).mean() - share * share) < deviation


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70_000), st.integers(2, 4), st.integers(0, 70_000))
def test_rows_do_not_depend_on_threads_or_on_who_holds_them(rows: int, threads: int, cut: int) -> None:
    whole, cut = kept(rows, 0.3), min(cut, rows)
    assert (kept(rows, 0.3, threads=threads) == whole).all()
    assert (np.concatenate([kept(cut, 0.3), kept(rows - cut, 0.3, first=cut)]) == whole).all()


def test_all_rows_stay_without_subsampling() -> None:
    assert kept(100, 1.0).all()


def test_columns_are_nested_in_level_and_tree() -> None:
    params = Params(colsample_bytree=0.6, colsample_bylevel=0.5, colsample_bynode=0.5, seed=1)
    sampler = HashedColumns(params, 40, 3)
    of_tree = set(sampler._tree.tolist())
    assert len(of_tree) == 24
    for depth in range(3):
        of_level = set(sampler._level(depth).tolist())
        assert len(of_level) == 12 and of_level <= of_tree
        nodes = [frozenset(np.flatnonzero(sampler.allowed(depth, node)).tolist()) for node in range(8)]
        assert all(len(node) == 6 and node <= of_level for node in nodes)
        assert len(set(nodes)) > 1


def test_a_choice_depends_on_seed_and_tree_alone() -> None:
    def choice(seed: int, tree: int) -> list[bool]:
        mask = HashedColumns(Params(colsample_bytree=0.5, seed=seed), 30, tree).allowed(2, 9)
        assert mask is not None
        return mask.tolist()

    assert choice(1, 1) == choice(1, 1)
    assert choice(1, 1) != choice(1, 2) and choice(1, 1) != choice(2, 1)


def test_at_least_one_column_is_left_and_none_is_drawn_without_need() -> None:
    mask = column_sampler(Params(colsample_bytree=0.01), 5, 0).allowed(0, 0)
    assert mask is not None and mask.sum() == 1
    assert column_sampler(Params(), 5, 0) is EVERY_COLUMN and EVERY_COLUMN.allowed(0, 0) is None


def test_every_column_is_as_likely() -> None:
    counts = np.zeros(10)
    for tree in range(2000):
        counts += column_sampler(Params(colsample_bytree=0.3), 10, tree).allowed(0, 0)
    assert abs(counts / 2000 - 0.3).max() < 0.05


def test_streams_of_different_purposes_differ() -> None:
    keys = {int(stream(seed, kind, number)) for seed in range(3) for kind in range(4) for number in range(50)}
    assert len(keys) == 600
