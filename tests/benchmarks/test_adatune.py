"""The arithmetic of AdaTune's ablation, on made-up searches."""

import numpy as np

from benchmarks import adatune
from benchmarks.study import Search


def made(best: list[float], seconds: float) -> Search:
    return Search(np.array(best), seconds * np.arange(1.0, len(best) + 1), 0.5, 0.25)


def test_how_much_sooner_a_search_is_as_good() -> None:
    first = [made([9.0, 5.0, 5.0], 2.0), made([9.0, 6.0, 4.0], 2.0)]
    other = [made([7.0, 5.0, 4.0, 3.0, 3.0, 3.0], 1.0), made([8.0, 8.0, 8.0, 8.0, 8.0, 8.0], 1.0)]
    found = adatune.row("C9", "RFEI+SA+DE", other, first)
    assert found.needed == (4.5, 2.0, 7.0)  # one that never is needs longer than it had
    assert found.faster == (np.median([4.0 / 2.0, 6.0 / 7.0]), 6.0 / 7.0, 2.0)
    assert found.end == (np.median([3.0 / 5.0, 2.0]), 0.6, 2.0)
    same = adatune.row("C9", adatune.FIRST, first, first)
    assert same.faster == (1.0, 1.0, 1.0) and same.by_medians == 1.0


def test_how_much_sooner_the_median_of_some_searches_is_as_good() -> None:
    first = [made([9.0, 5.0], 2.0), made([7.0, 6.0], 2.0), made([9.0, 8.0], 2.0)]  # medians: 9 after 2 s, 6 after 4 s
    other = [made([8.0, 6.0, 3.0], 1.0), made([7.0, 7.0, 6.0], 1.0), made([9.0, 9.0, 9.0], 1.0)]  # 8, 7, 6
    assert adatune.row("C9", "RFEI+SA+DE", other, first).by_medians == 4.0 / 3.0


def test_the_best_after_so_many_trials() -> None:
    first, other = made([9.0] * 8 + [3.0] * 8, 1.0), made([6.0] * 8, 1.0)
    assert adatune.row("C9", "RFEI+SA+DE", [other], [first]).after == {8: 2.0}
    assert adatune.row("C9", adatune.FIRST, [first], [first]).after == {8: 3.0, 16: 1.0}
