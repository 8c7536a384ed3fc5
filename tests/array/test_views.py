"""Views and writes in place: what NumPy does, or an error by name."""

from __future__ import annotations

import random

import numpy as np
import pytest

import burnish as bn
from burnish.errors import InputError

nd = bn.nd


def pair(shape: tuple[int, ...] = (4, 6)) -> tuple[np.ndarray, bn.nd.Array]:
    a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return a, nd.array(a)


VIEWS = {
    "row": lambda a: a[1],
    "rows": lambda a: a[1:3],
    "steps": lambda a: a[::2, 1::3],
    "backwards": lambda a: a[::-1],
    "ellipsis": lambda a: a[..., 2],
    "new axis": lambda a: a[None, 1:2],
    "transposed": lambda a: a.T,
    "reshaped": lambda a: a.reshape(2, -1),
    "reshaped and transposed": lambda a: a.reshape(2, 3, 4).transpose(2, 0, 1),
    "view of a view": lambda a: a[1:][0][2:4],
    "element": lambda a: a[2, 3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("recorded", [False, True], ids=["in memory", "recorded"])
def test_views_read_and_write_the_memory_of_their_array(view: object, recorded: bool) -> None:
    a, x = pair()
    if recorded:
        a, x = a + 1, x + 1
    v, y = view(a), view(x)
    assert y.shape == v.shape
    np.testing.assert_array_equal(y.numpy(), v)
    np.testing.assert_array_equal((y * 2 + 1).numpy(), v * 2 + 1)
    if v.ndim:
        v += 10
        y += 10
        np.testing.assert_array_equal(x.numpy(), a)
        v[...] = v.sum()
        y[...] = nd.sum(y)
        np.testing.assert_array_equal(x.numpy(), a)
    a *= 2
    x *= 2
    np.testing.assert_array_equal(y.numpy(), view(a))


def test_what_was_recorded_before_a_write_reads_the_old_value() -> None:
    a, x = pair()
    v = x[1:3]
    doubled, sums = v * 2, nd.sum(x)
    x[1] = 0
    v += 1
    assert sums.item() == a.sum()
    np.testing.assert_array_equal(doubled.numpy(), a[1:3] * 2)
    a[1] = 0
    a[1:3] += 1
    np.testing.assert_array_equal(x.numpy(), a)


def test_overlapping_parts_of_one_array_are_copied_first() -> None:
    a, x = pair((10,))
    a[1:] = a[:-1].copy()
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy(), a)
    a[::-1] = a.copy()
    x[::-1] = x
    np.testing.assert_array_equal(x.numpy(), a)


def test_advanced_indices_read_copies_and_write_in_place() -> None:
    a, x = pair()
    np.testing.assert_array_equal(x[[2, 0]].numpy(), a[[2, 0]])
    np.testing.assert_array_equal(x[x > 10].numpy(), a[a > 10])
    np.testing.assert_array_equal(x[nd.array([1, 3]), 2].numpy(), a[[1, 3], 2])
    copy = x[[0, 1]]
    copy += 100
    x[x > 10] = -1
    a[a > 10] = -1
    np.testing.assert_array_equal(x.numpy(), a)
    with pytest.raises(IndexError):
        x[9]


def test_writes_that_do_not_fit_are_refused_by_name() -> None:
    _, x = pair()
    i = nd.array([1, 2])
    with pytest.raises(InputError, match=r"in place: found a result of shape \[2, 4, 6\]; allowed: .*\[4, 6\]"):
        x += nd.ones((2, 4, 6))
    with pytest.raises(
        InputError, match="in place: found a result of dtype float64; allowed: one that fits into int64"
    ):
        i *= 1.5
    with pytest.raises(InputError, match="in place"):
        x[0] = nd.ones(5)
    with pytest.raises(InputError, match="reshape: found shape"):
        x.reshape(5, 5)
    assert i.tolist() == [1, 2]
    x += nd.array([1, 2, 3, 4, 5, 6])
    assert x.dtype == np.float32


def test_out_writes_to_arrays_and_views() -> None:
    a, x = pair()
    target = nd.zeros((4, 6))
    assert nd.exp(x * 0.1, out=target) is target
    np.testing.assert_allclose(target.numpy(), np.exp(a * np.float32(0.1)), rtol=1e-6)
    nd.add(x[0], x[1], out=target[2])
    np.testing.assert_array_equal(target.numpy()[2], a[0] + a[1])
    with pytest.raises(InputError, match="out: found shape"):
        nd.exp(x, out=nd.zeros(3))


def draw_and_run(rng: random.Random) -> None:
    """A random program of changes through arrays and views, in NumPy and here."""
    shapes = [(4, 6), (6, 4), (24,)]
    mine = [np.arange(24, dtype=np.int64).reshape(s) % 7 for s in shapes]
    ours = [nd.array(a) for a in mine]
    for _ in range(14):
        at = rng.randrange(len(mine))
        a, x = mine[at], ours[at]
        kind = rng.randrange(7)
        if kind == 0:
            number = rng.randrange(5)
            a += number
            x += number
        elif kind == 1:
            other = rng.randrange(len(mine))
            a -= mine[other].reshape(a.shape)
            x -= ours[other].reshape(a.shape)
        elif kind == 2:
            begin = rng.randrange(a.shape[0])
            a[begin:] *= 2
            x[begin:] *= 2
        elif kind == 3 and a.ndim == 2:
            a.T[1] = a.T[0] + 1
            x.T[1] = x.T[0] + 1
        elif kind == 4:
            mine.append(a.reshape(shapes[at % 3]))
            ours.append(x.reshape(shapes[at % 3]))
        elif kind == 5:
            mine.append(a % 5 + 1)
            ours.append(x % 5 + 1)
        else:
            a[...] = np.where(a > 3, a - 3, a)
            x[...] = nd.where(x > 3, x - 3, x)
        if len(mine) > 5:
            for part in (mine, ours):
                del part[0]
    for a, x in zip(mine, ours, strict=True):
        np.testing.assert_array_equal(x.numpy(), a)


def test_random_programs_through_views_are_numpys() -> None:
    for seed in range(60):
        draw_and_run(random.Random(seed))
