"""A compiled nn.Module: arguments, results, states, dynamic shapes, refusals."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import burnish as bn
from burnish.errors import InputError, ModelError, ParameterError, UnsupportedOperator
from burnish.frontend.torch.export import import_torch
from tests.frontend.torch.networks import Functions, assert_same, compiled

Pair = namedtuple("Pair", "total parts")


class Structured(nn.Module):
    """Arguments by name and in containers, a result in containers, with leaves that are no tensors."""

    def forward(self, x, others, scale=2, mask=None):
        y = x * scale + others["a"] - others["b"][0]
        y = y if mask is None else y * mask
        return {"sum": Pair(y.sum(), [y, y.relu()]), "scale": scale, "none": None}


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count.add_(x)
        return self.count * 2


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU())
    return network, compiled(network, (torch.randn(2, 6),))


def test_tensors_give_tensors_and_arrays_give_arrays(linear) -> None:
    network, module = linear
    x = torch.randn(2, 6)
    found = module(x)
    assert_same(found, network.eval()(x))
    array = module(x.numpy())
    assert isinstance(array, np.ndarray) and np.array_equal(array, found.numpy())
    assert not found.requires_grad


def test_a_network_in_training_mode_is_compiled_for_inference_and_stays_in_training() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9))
    network[1].running_mean.fill_(0.5)
    x = torch.randn(3, 4)
    module = compiled(network, x)
    assert network.training and network[2].training
    assert_same(module(x), network.eval()(x))


@pytest.mark.parametrize("given", ["strided", "channels", "bfloat", "offset", "grad", "parameter", "dlpack"])
def test_tensors_of_any_strides_and_kinds_are_read(given: str) -> None:
    network = Functions([lambda x: x * 2 + 1])
    x = torch.randn(2, 3, 4, 5)
    if given == "bfloat":
        x = x.bfloat16()
    made = compiled(network, x)
    changed = {
        "strided": lambda: torch.randn(2, 3, 5, 4).mT, "channels": lambda: x.to(memory_format=torch.channels_last),
        "bfloat": lambda: x, "offset": lambda: torch.randn(3, 3, 4, 5)[1:], "grad": lambda: x.requires_grad_(),
        "parameter": lambda: nn.Parameter(x), "dlpack": lambda: x,
    }[given]()  # fmt: skip
    for _ in range(2):
        assert_same(made(changed), network(changed), given)


def test_arguments_and_results_keep_their_structure() -> None:
    network = Structured()
    x, others = torch.randn(3), {"a": torch.randn(3), "b": (torch.randn(1),)}
    module = compiled(network, {"x": x, "others": others, "scale": 3})
    found, expected = module(x=x, others=others, scale=3), network(x, others, scale=3)
    assert isinstance(found["sum"], Pair) and list(found) == list(expected)
    assert_same(found["sum"].parts, expected["sum"].parts)
    assert found["scale"] == 3 and found["none"] is None
    assert_same(module(x, others, 3)["sum"].total, expected["sum"].total)
    arrays = module(x.numpy(), {"a": others["a"].numpy(), "b": (others["b"][0].numpy(),)}, scale=3)
    assert isinstance(arrays["sum"].total, np.ndarray)
    with pytest.raises(InputError, match="found 4; allowed: 3"):
        module(x, others, scale=4)
    with pytest.raises(InputError, match=r"allowed: x, others, scale, as in the example"):
        module(x, others, scale=3, mask=x)
    with pytest.raises(InputError, match="structure"):
        module(x, {"a": x}, 3)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 5), torch.zeros(2, 6, dtype=torch.float64), torch.zeros(6), torch.zeros(2, 6).to_sparse()]
)
def test_wrong_tensors_are_refused(linear, wrong) -> None:
    with pytest.raises(InputError, match=r"(?s)allowed"):
        linear[1](wrong)


def test_wrong_numbers_of_arguments_are_refused(linear) -> None:
    with pytest.raises(InputError, match="allowed"):
        linear[1]()
    with pytest.raises(InputError, match="allowed"):
        linear[1](torch.zeros(2, 6), torch.zeros(2, 6))


def test_buffers_that_change_are_states() -> None:
    network = Counter()
    module = compiled(network, torch.ones(2))
    for step in range(3):
        x = torch.full((2,), float(step))
        assert_same(module(x), network(x))


def test_one_tensor_as_two_examples_is_two_inputs() -> None:
    network, x = Functions([lambda x, y: x - y]), torch.ones(2)
    assert_same(compiled(network, (x, x))(x * 3, x), (x * 2,))


def test_tied_weights_are_one_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids):
            return self.head(self.words(ids))

    graph = import_torch(Tied(), torch.tensor([[1, 2]])).graph
    assert [array.shape for array in graph.constants.values()] == [(20, 8)]


def test_an_exported_program_is_compiled() -> None:
    network = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},))
    module = bn.compile(program, threads=1, rewrite=False)
    assert_same(module(torch.ones(7, 4)), network(torch.ones(7, 4)))
    with pytest.raises(ModelError, match="ExportedProgram"):
        bn.compile(program, (x,))


@pytest.mark.parametrize(
    "dynamic",
    [
        {"rows": (1, 9)},
        {"x": {0: "rows"}, "y": {0: "rows"}, "rows": (1, 9)},
        {"x": ("rows", None), "y": ("rows", 4), "rows": (1, 9)},
        {"x": ["rows", 4], "y": ["rows", 4], "rows": (1, 9, 1, 4)},
        "dim",
        "auto",
    ],
)
def test_dimensions_stay_open_however_it_is_said(dynamic) -> None:
    network = Functions([lambda x, y: x * y + 1, lambda x, y: x.reshape(-1)])
    if dynamic == "dim":
        rows = torch.export.Dim("rows", min=1, max=9)
        dynamic = ({0: rows}, {0: rows})
    elif dynamic == "auto":
        dynamic = {"inputs": ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})}

    class Named(nn.Module):
        def forward(self, x, y):
            return network(x, y)

    module_under = network if "inputs" in dynamic else Named()
    example = torch.randn(2 if "inputs" in dynamic else 1, 4)
    module = compiled(module_under, (example, example), dynamic=dynamic)
    for rows in (1, 4, 9):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        assert_same(module(x, y), network(x, y))
    if "inputs" not in dynamic:
        with pytest.raises(InputError, match="from 1 to 9"):
            module(torch.zeros(10, 4), torch.zeros(10, 4))


def test_another_number_of_rows_than_the_example_has_is_told_how_to_be_taken(tmp_path) -> None:
    module = compiled(nn.Linear(4, 2), torch.zeros(3, 4))
    module.note(mark=1)
    with pytest.raises(InputError, match=r"float32\[5, 4\], allowed: float32\[3, 4\]; any number .*dynamic=\{"):
        module(torch.zeros(5, 4))
    with pytest.raises(InputError, match=r"allowed: float32\[3, 4\]$"):
        module(torch.zeros(3, 5))
    with pytest.raises(InputError, match=r"float64\[3, 4\], allowed: float32\[3, 4\]$"):
        module(torch.zeros(3, 4, dtype=torch.float64))


def test_numbers_and_constants_of_an_open_size() -> None:
    class Network(nn.Module):
        def forward(self, x):
            n = x.shape[0]
            counted = torch.arange(n), torch.arange(2, n + 2), torch.arange(0, 2 * n, 2), torch.arange(n).float() * 0.5
            return *counted, torch.ones(n, 2), x + n, x.new_zeros(n), torch.full((n, 1), 3), x.flip(0)

    network = Network()
    module = compiled(network, torch.randn(1, 3), dynamic={"rows": (1, 40)})
    for rows in (1, 7, 40):
        x = torch.randn(rows, 3)
        assert_same(module(x), network(x), f"{rows}")


def test_multiples_stay_open() -> None:
    network = Functions([lambda x: x.unflatten(0, (-1, 4)).sum(1)])

    class Named(nn.Module):
        def forward(self, x):
            return network(x)

    module = compiled(Named(), torch.randn(4, 3), dynamic={"x": {0: "rows"}, "rows": (4, 16, 4)})
    for rows in (4, 12):
        x = torch.randn(rows, 3)
        assert_same(module(x), network(x))
    with pytest.raises(InputError):
        module(torch.zeros(6, 3))


def test_bounds_with_one_multiple_between_are_a_number() -> None:
    module = compiled(nn.Linear(3, 2), torch.randn(8, 3), dynamic={"batch": (1, 8, 8)})
    assert [spec.shape for spec in module.inputs] == [(8, 3)]


def test_training_suits_the_batch_of_the_example() -> None:
    """Inference, whose example is often one row, the mean of the bounds; both what the user says."""

    def hint(training: bool, *bounds: int) -> int:
        graph = import_torch(nn.Linear(3, 2), torch.randn(16, 3), {"batch": bounds}, training=training).graph
        (dimension,) = graph.dims
        return dimension.hint

    assert hint(True, 1, 64) == 16 and hint(False, 1, 64) == 8 and hint(True, 1, 64, 1, 32) == 32


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        (7, "dynamic: found 7"),
        ({"x": {0: "rows"}}, "'rows' has no bounds"),
        ({"x": {5: (1, 2)}}, "axis 5"),
        ({"rows": (3, 1)}, "rows"),
        ({"rows": (1, 2), "columns": (1, 2)}, "of no input"),
        ({"x": {0: object()}}, "torch.export.Dim"),
        ({"x": {0: "rows"}, "rows": (3, 9)}, "example inputs have 2; allowed: 3 to 9"),
        ({"x": {1: (1, 9)}}, "torch.export refuses"),
    ],
)
def test_wrong_dynamic_shapes_are_refused(dynamic, message: str) -> None:
    class Network(nn.Module):
        def forward(self, x):
            return x.reshape(2, 4)

    with pytest.raises(ModelError, match=message):
        bn.compile(Network(), torch.zeros(2, 4), dynamic=dynamic)


def test_what_cannot_be_compiled_is_refused_by_name() -> None:
    network = nn.Linear(4, 3)
    with pytest.raises(ModelError, match="example_inputs: found None"):
        bn.compile(network)
    with pytest.raises(ModelError, match=r"do not fit Linear\.forward"):
        bn.compile(network, (torch.zeros(2, 4), 1))
    with pytest.raises(ParameterError, match="shapes: found"):
        bn.compile(network, torch.zeros(2, 4), shapes={"x": (1, 4)})
    with pytest.raises(ParameterError, match="example_inputs"):
        bn.compile(b"", torch.zeros(2, 4))
    with pytest.raises(ModelError, match=r"torch\.export refuses it"):
        bn.compile(Functions([lambda x: x if x.sum() > 0 else -x]), torch.zeros(2))

    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand(2)

    class Mutating(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    with pytest.raises(UnsupportedOperator, match="random numbers"):
        bn.compile(Random(), torch.zeros(2))
    with pytest.raises(UnsupportedOperator, match="user_input_mutation"):
        bn.compile(Mutating(), torch.zeros(2))
    with pytest.raises(UnsupportedOperator, match="complex64"):
        bn.compile(Functions([lambda x: x * 2]), torch.zeros(2, dtype=torch.complex64))


def test_tuning_and_rewriting_take_networks() -> None:
    network, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(2, 8)
    module = bn.compile(network, x, threads=1)
    assert module.rewrites is not None
    assert_same(module(x), network(x))


def test_attention_of_constants_draws_no_random_numbers() -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(1, 2, 3, 4))

        def forward(self, x):
            return x + nn.functional.scaled_dot_product_attention(self.q, self.q, self.q)

    network, x = Queries().eval(), torch.randn(1, 2, 3, 4)
    assert_same(torch.from_numpy(bn.compile(network, (x,))(x.numpy())), network(x))
