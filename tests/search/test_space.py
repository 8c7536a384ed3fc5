import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.search.space import GridSpace, SearchSpace, Union
from tests.search.toys import GRIDS, HUGE, SPACES

SEEDS = st.integers(0, 2**32)


def rows(space: SearchSpace) -> list[tuple[int, ...]]:
    """Every point of a space, the naive way."""
    if isinstance(space, GridSpace):
        return list(itertools.product(*(range(size) for size in space.sizes)))
    pad = space.width - 1
    return [
        (label, *point, *(0,) * (pad - len(point))) for label, grid in enumerate(space.grids) for point in rows(grid)
    ]


@settings(deadline=None)
@given(SPACES)
def test_enumeration_is_every_point_once_and_keys_are_their_places(space: SearchSpace) -> None:
    every = space.enumerate(0, space.size + 5)
    assert every.dtype == np.int32 and [tuple(point) for point in every.tolist()] == rows(space)
    assert space.keys(every).tolist() == list(range(space.size))
    assert (space.at(space.keys(every)) == every).all()
    assert space.contains(every).all()


@settings(deadline=None)
@given(SPACES, st.data())
def test_a_part_of_the_enumeration(space: SearchSpace, data) -> None:
    start = data.draw(st.integers(0, space.size))
    stop = data.draw(st.integers(0, space.size + 3))
    assert space.enumerate(start, stop).tolist() == [list(point) for point in rows(space)[start:stop]]


@pytest.mark.parametrize("space", HUGE, ids=str)
def test_keys_beyond_64_bits_are_exact(space: SearchSpace) -> None:
    assert space.size > 2**63
    rng = np.random.default_rng(2)
    points = np.concatenate([space.sample(rng, 500), space.enumerate(space.size - 3, space.size)])
    keys = space.keys(points)
    assert (space.at(keys) == points).all()
    assert max(keys.tolist()) == space.size - 1
    for point, key in zip(points.tolist(), keys.tolist(), strict=True):
        grid, row, naive = space, point, 0
        if isinstance(space, Union):
            grid, row = space.grids[point[0]], point[1 : 1 + len(space.grids[point[0]].sizes)]
            naive = sum(other.size for other in space.grids[: point[0]])
        place = 0
        for position, size in zip(row, grid.sizes, strict=True):
            place = place * size + position
        assert type(key) is int and key == naive + place
    start = 2**64 + 17
    assert space.keys(space.enumerate(start, start + 4)).tolist() == [start, start + 1, start + 2, start + 3]


@settings(deadline=None)
@given(SPACES, SEEDS)
def test_samples_are_points_and_reach_all_of_a_small_space(space: SearchSpace, seed: int) -> None:
    points = space.sample(np.random.default_rng(seed), 200)
    assert points.shape == (200, space.width) and points.dtype == np.int32
    assert space.contains(points).all()
    if space.size <= 4:
        assert len(np.unique(space.keys(points))) == space.size


def test_samples_are_uniform_over_alternatives_then_positions() -> None:
    space = Union([GridSpace((1000,)), GridSpace((2, 2))])
    points = space.sample(np.random.default_rng(0), 20_000)
    assert abs((points[:, 0] == 1).mean() - 0.5) < 0.02
    counts = np.bincount(space.keys(points[points[:, 0] == 1]) - 1000, minlength=4) / (points[:, 0] == 1).sum()
    assert np.abs(counts - 0.25).max() < 0.02


@settings(deadline=None)
@given(GRIDS, SEEDS)
def test_a_neighbour_differs_in_exactly_one_column(grid: GridSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = grid.sample(rng, 100)
    before = points.copy()
    moved = grid.neighbours(rng, points)
    assert (points == before).all() and moved.dtype == np.int32
    assert grid.contains(moved).all()
    assert ((moved != points).sum(axis=1) == (1 if grid.size > 1 else 0)).all()


@settings(deadline=None)
@given(st.lists(GRIDS, min_size=1, max_size=4).map(Union), SEEDS)
def test_a_neighbour_in_a_union_differs_in_one_column_or_in_the_alternative(space: Union, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = space.sample(rng, 100)
    moved = space.neighbours(rng, points)
    assert space.contains(moved).all()
    stayed = moved[:, 0] == points[:, 0]
    assert ((moved != points).sum(axis=1)[stayed] <= 1).all()
    assert ((moved != points).any(axis=1) | (space.size == 1)).all()
    single = np.array([grid.size == 1 for grid in space.grids])[points[:, 0]]
    if len(space.grids) > 1:
        assert not stayed[single].any()


def test_moves_between_alternatives_are_one_in_twenty_and_reach_all_of_them() -> None:
    space = Union([GridSpace((50, 50)), GridSpace((9,)), GridSpace((4, 4, 4))])
    points = np.zeros((20_000, 4), np.int32)
    moved = space.neighbours(np.random.default_rng(0), points)
    away = moved[moved[:, 0] > 0]
    assert abs(len(away) / len(points) - 0.05) < 0.01
    assert len(np.unique(space.keys(away))) == 9 + 64


def test_half_the_moves_of_an_ordered_choice_are_small_and_none_is_of_a_name() -> None:
    ordered, names = GridSpace((1001,)), GridSpace((1001,), ordered=(False,))
    points = np.full((20_000, 1), 500, np.int32)
    for space, share in ((ordered, 0.5), (names, 0.0)):
        step = space.neighbours(np.random.default_rng(0), points)[:, 0] - 500
        assert abs((np.abs(step) <= 2).mean() - share) < 0.02
        assert step.min() < -400 and step.max() > 400  # the others are uniform
    step = ordered.neighbours(np.random.default_rng(0), points)[:, 0] - 500
    assert set(step[np.abs(step) <= 2].tolist()) == {-2, -1, 1, 2}


@settings(deadline=None)
@given(SPACES, SEEDS)
def test_crossover_is_closed_and_takes_every_column_from_a_parent(space: SearchSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = space.sample(rng, 100), space.sample(rng, 100)
    child = space.crossover(rng, a, b)
    assert space.contains(child).all() and child.dtype == np.int32
    assert ((child == a) | (child == b)).all()
    if isinstance(space, Union):
        apart = a[:, 0] != b[:, 0]
        assert ((child == a).all(axis=1) | (child == b).all(axis=1))[apart].all()


def test_all_columns_with_a_choice_are_changed_equally_often() -> None:
    grid = GridSpace((4, 1, 9, 2, 1, 3))
    union = Union([grid, GridSpace((5, 5))])
    for space, first in ((grid, 0), (union, 1)):
        points = np.zeros((20_000, space.width), np.int32)
        changed = space.neighbours(np.random.default_rng(0), points) != points
        inside = changed[~changed[:, 0]] if first else changed
        expected = np.array([0.25, 0.0, 0.25, 0.25, 0.0, 0.25])
        assert np.abs(inside[:, first:].mean(axis=0) - expected).max() < 0.02


def test_crossover_mixes() -> None:
    space = Union([GridSpace((9,) * 8), GridSpace((2,))])
    a = np.zeros((1000, 9), np.int32)
    b = a.copy()
    b[:, 1:] = 8
    from_b = (space.crossover(np.random.default_rng(0), a, b)[:, 1:] == 8).mean(axis=0)
    assert np.abs(from_b - 0.5).max() < 0.1


@settings(deadline=None)
@given(SPACES, SEEDS)
def test_canonical_zeroes_what_no_alternative_uses(space: SearchSpace, seed: int) -> None:
    points = space.sample(np.random.default_rng(seed), 50)
    assert (space.canonical(points) == points).all()
    if isinstance(space, Union):
        littered = points.copy()
        for row in littered:
            row[1 + len(space.grids[row[0]].sizes) :] = 3
        assert (space.canonical(littered) == points).all()


def test_contains_refuses_what_is_outside() -> None:
    space = Union([GridSpace((2, 3)), GridSpace((4,))])
    points = np.array([[0, 1, 2], [0, 2, 0], [1, 3, 0], [1, 3, 1], [2, 0, 0], [-1, 0, 0], [1, -1, 0]], np.int32)
    assert space.contains(points).tolist() == [True, False, True, False, False, False, False]
    assert not space.contains(points[:, :2]).any()


def test_components_are_equal_for_the_same_value_of_the_same_knob_alone() -> None:
    space = Union([GridSpace((2, 3)), GridSpace((4,))])
    every = space.enumerate(0, space.size)
    numbers = space.components(every)
    assert (numbers[:, 0] == -1).all() and (numbers[6:, 2] == -1).all()
    named = {}
    for point, number in zip(every.tolist(), numbers.tolist(), strict=True):
        for column in range(1, 3):
            if number[column] >= 0:
                assert named.setdefault((point[0], column, point[column]), number[column]) == number[column]
    assert len(set(named.values())) == len(named) == 2 + 3 + 4


@pytest.mark.parametrize(("sizes", "ordered"), [((3, 0), None), ((2**31,), None), ((3, 2), (True,))])
def test_impossible_grids_are_refused(sizes, ordered) -> None:
    with pytest.raises(ValueError, match="Grid"):
        GridSpace(sizes, ordered)
    with pytest.raises(ValueError, match="Union"):
        Union([])


def test_a_grid_without_choices_has_one_point() -> None:
    space = GridSpace(())
    points = space.enumerate(0, 1)
    assert space.size == 1 and points.shape == (1, 0) and space.keys(points).tolist() == [0]
    assert space.neighbours(np.random.default_rng(0), points).shape == (1, 0)
