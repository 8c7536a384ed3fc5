"""Independence is never claimed wrongly, and is found for the index forms that splits, fusions and layouts make."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.loops.expr import Buffer, Expr, Load, Var, wrap
from burnish.loops.program import Store, seq, store
from burnish.loops.regions import BufferAccess
from burnish.loops.simplify import simplify
from burnish.loops.sizes import dim
from burnish.loops.traverse import substitute
from burnish.schedule.dependence import carried, undetermined

I, J, F = Var("i"), Var("j"), Var("f")  # noqa: E741
Y = Buffer("y", (64, 64))


def access(*indices: Expr, **extents: int) -> BufferAccess:
    buffer = Buffer("y", (999,) * len(indices))
    return BufferAccess("store", buffer, tuple(simplify(i, extents) for i in indices), extents, ())


@pytest.mark.parametrize(
    ("indices", "extents"),
    [
        ((I * 4 + J,), {"i": 3, "j": 4}),
        ((J, I), {"i": 3, "j": 4}),
        ((F // 4, F % 4), {"f": 12}),
        ((F // 12, F // 4 % 3, F % 4), {"f": 24}),
        (((I * 5 + J) // 4, (I * 5 + J) % 4), {"i": 3, "j": 5}),
        ((F // 7 * 2 + I, F % 7), {"f": 21, "i": 2}),
        (((I * 13 + J) // 7 * 2 + F, (I * 13 + J) % 7), {"i": 4, "j": 13, "f": 2}),
        (((I * 13 + J) // 28, (I * 13 + J) // 7 % 4, (I * 13 + J) % 7), {"i": 5, "j": 13}),
        ((I // 2, (I * 2 + J // 4) % 4 * 2 + F, J % 4), {"i": 4, "j": 8, "f": 2}),
        (((I * 8 + J // 4) // 49, (I * 8 + J // 4) // 7 % 7, (I * 8 + J // 4) % 7, J % 4), {"i": 9, "j": 32}),
        (((I * 2 + J // 16) // 7, (I * 2 + J // 16) % 7 * 4 + J // 4 % 4, J % 4), {"i": 7, "j": 32}),
    ],
)
def test_distinct_elements_are_recognised(indices: tuple[Expr, ...], extents: dict[str, int]) -> None:
    assert undetermined([access(*indices, **extents)], extents) == []


@pytest.mark.parametrize(
    ("indices", "extents", "clashing"),
    [
        ((I * 3 + J,), {"i": 3, "j": 4}, ["i", "j"]),
        (((I * 8 + J // 4) // 49, (I * 8 + J // 4) % 7, J % 4), {"i": 9, "j": 32}, ["i", "j"]),
        ((I,), {"i": 3, "j": 4}, ["j"]),
        ((F // 4,), {"f": 12}, ["f"]),
        ((F % 4,), {"f": 12}, ["f"]),
        ((I,), {"i": 3, "j": 1}, []),
        (((I * 13 + J) // 7, (I * 13 + J) % 7), {"i": 4, "j": 14}, ["i", "j"]),
        (((I * 13 + J) // 7, (I * 13 + J) % 6), {"i": 4, "j": 13}, ["i", "j"]),
        (((I * 13 + J) // 7 + F, (I * 13 + J) % 7), {"i": 4, "j": 13, "f": 2}, ["i", "j", "f"]),
    ],
)
def test_repeated_elements_are_named(indices: tuple[Expr, ...], extents: dict[str, int], clashing: list[str]) -> None:
    assert undetermined([access(*indices, **extents)], extents) == clashing


def test_blocks_of_channels_of_an_open_batch() -> None:
    """Batch and channels fused, which are stored in blocks of 16: quotient and remainder of a remainder."""
    extents = {"f": dim("n", 1, 4) * 32}
    assert undetermined([access(F // 32, F % 32 // 16, F % 16, **extents)], extents) == []
    assert undetermined([access(F // 32, F % 32 // 16, F % 8, **extents)], extents) == ["f"]
    assert undetermined([access(F % 32 // 16, F % 16, **extents)], extents) == ["f"]


def index_forms() -> st.SearchStrategy[Expr]:
    def form(a: int, b: int, c: int, d: int, op: str) -> Expr:
        linear = I * a + J * b + c
        return {"linear": linear, "//": linear // d, "%": linear % d, "%//": linear % (2 * d) // d}[op]

    small = st.integers(0, 5)
    kinds = st.sampled_from(["linear", "//", "%", "%//"])
    return st.builds(form, small, small, st.integers(-2, 2), st.integers(1, 5), kinds)


@given(st.lists(index_forms(), min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 5))
def test_independence_is_true(indices: list[Expr], rows: int, columns: int) -> None:
    extents = {"i": rows, "j": columns}
    if undetermined([access(*indices, **extents)], extents):
        return
    touched = [
        tuple(str(simplify(substitute(index, {"i": wrap(i), "j": wrap(j)}))) for index in indices)
        for i, j in product(range(rows), range(columns))
    ]
    assert len(set(touched)) == len(touched)


def test_part_of_a_divided_sum() -> None:
    """Whichever of the two loops is in question, the other one further out or further in."""
    whole = I * 13 + J
    indices = (whole // 7, whole % 7)
    assert undetermined([access(*indices, i=4, j=13)], {"i": 4}) == []
    assert undetermined([access(*indices, i=4, j=13)], {"j": 13}) == []
    assert undetermined([access(whole // 7, i=4, j=13)], {"i": 4}) == ["i"]


def test_what_carries_a_dependence() -> None:
    ranges = {"i": 8}
    step = store(Y, (I, J), Load(Y, (I, J)) * 2.0)
    scan = store(Y, (I, J + 1), Load(Y, (I, J)))
    total = Store(Y, (I, wrap(0)), wrap(1.0, "float32"), "sum")
    assert carried(step, {"j": 8}, ranges, reassociate=False) is None
    assert carried(scan, {"j": 8}, ranges, reassociate=True) == "buffer 'y' is written by several iterations of 'j'"
    assert carried(scan, {"i": 8}, {}, reassociate=False) is None
    assert carried(total, {"j": 8}, ranges, reassociate=True) is None
    assert "is combined into by several iterations of 'j'" in str(carried(total, {"j": 8}, ranges, reassociate=False))
    both = seq(store(Y, (I, wrap(0)), 0.0), total)
    assert "written by several" in str(carried(both, {"j": 8}, ranges, reassociate=True))
