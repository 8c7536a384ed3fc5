"""The arithmetic of the studies, on made-up costs."""

import numpy as np
import pytest

from benchmarks import study
from benchmarks.oracle import Known
from burnish.search.space import Points
from tests.marks import slow


class Made:
    """An oracle whose costs are made up: the further from the first choices, the slower."""

    def __init__(self) -> None:
        self.task = study.kernel("C9")

    def ask(self, points: Points) -> list[Known]:
        return [Known(1e-3 * (1 + float(point.sum())), 0.05, 0.01) for point in points]


@pytest.mark.parametrize("name", slow(["trees", "random"], "trees"))
def test_a_search_adds_up_what_it_took(name: str) -> None:
    oracle = Made()
    found = study.search(study.SECTIONS["models"][name], 0, 64, oracle)  # type: ignore[arg-type]
    assert len(found.best) == len(found.clock) == 64
    assert (np.diff(found.best) <= 0).all() and (np.diff(found.clock) >= 0.06).all()
    assert found.clock[-1] >= 64 * 0.06 and 0 < found.measuring <= 0.01 / 0.06


def test_where_a_curve_comes_to_a_bar() -> None:
    curve, axis = np.array([4.0, 2.0, 2.0, 1.0]), np.arange(1.0, 5)
    assert [study.first_below(curve, bar, axis) for bar in (5, 2, 1, 0.5)] == [1, 2, 4, 5]
