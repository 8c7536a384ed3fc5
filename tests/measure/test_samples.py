"""Made-up inputs lie in their domains, are of many kinds, and are always the same."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from burnish.measure.samples import known_domains, module_inputs, plain_domains, random_inputs
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import TensorSpec

INTS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
FLOATS = ("float64", "float32", "float16", "bfloat16")


def drawn(dtype: str, domain: tuple[float, float] | None = None, seed: int = 0) -> np.ndarray:
    spec = TensorSpec("x", (20, 30), dtype)
    found = random_inputs([spec], seed, {} if domain is None else {"x": domain})["x"]
    assert found.shape == spec.shape and found.dtype == numpy_dtype(dtype)
    return found.astype(np.float64)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS, "bool"])
def test_values_vary_and_are_always_the_same(dtype: str) -> None:
    x = drawn(dtype)
    assert np.array_equal(x, drawn(dtype)) and not np.array_equal(x, drawn(dtype, seed=1))
    if dtype == "bool":
        assert 0.4 < x.mean() < 0.6
    else:
        assert len(np.unique(x)) > 15 and abs(x).max() < 20
        assert (x < 0).any() == (not dtype.startswith("u")) and (x > 0).any()


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize(("low", "high"), [(0, 5), (1, inf), (-inf, 3), (100, 1000), (0, 0)])
def test_values_are_in_their_domain(dtype: str, low: float, high: float) -> None:
    x = drawn(dtype, (low, high))
    most = 1000.0 if "float" in dtype else np.iinfo(dtype).max
    assert (x >= min(low, most) - 1).all() and (x <= high + 1).all()
    if "float" not in dtype:
        assert (x >= min(low, most)).all() and (x <= high).all()
    if high - low == 5 and "float" not in dtype:
        assert set(x.ravel()) == {0, 1, 2, 3, 4, 5}


def test_what_has_no_sign_is_on_the_other_side() -> None:
    x = drawn("uint8", (-5, -2))
    assert set(x.ravel()) == {2, 3, 4, 5}
    assert drawn("uint16", (-inf, -1)).min() == 1


def test_domains_survive_an_artifact(planted) -> None:
    domains = {"a": (0.0, 9.0), "b": (1.0, inf), "c": (-inf, inf)}
    assert known_domains({"domains": plain_domains(domains)}) == domains
    x = module_inputs(planted("twice"))["x"]
    assert (x >= 1).all() and (x <= 2).all()


@pytest.mark.parametrize(
    "held",
    [None, 3, [], {"x": 3}, {"x": [1]}, {"x": [2, 1]}, {"x": [0, 10**400]}, {"x": ["a", "b"]}, {"x": {"low": 1}}],
)
def test_nonsense_in_a_file_is_no_domain(held: object) -> None:
    assert known_domains({"domains": held}) == {} and known_domains({}) == {}
