"""Every translator of an ATen operator against eager, by both doors."""

import pytest

from tests.frontend.torch.cases import CASES
from tests.frontend.torch.networks import Functions, assert_same, compiled
from tests.marks import slow_except

FAST = ("unary scalar", "binary same", "integers", "reductions", "movement", "indexing", "products", "convolutions")
FAST += ("unary special", "windows", "scalars")


@pytest.mark.parametrize("name", slow_except(CASES, *FAST))
def test_operators_of_export_are_those_of_eager(name: str) -> None:
    functions, inputs = CASES[name]
    network = Functions(functions)
    assert_same(compiled(network, inputs)(*inputs), network(*inputs), name)
