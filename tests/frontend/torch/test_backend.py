"""torch.compile(backend="burnish"): parameters, parts, strides, mutation, sizes, gradients, report."""

import threading
import warnings

import pytest
import torch
from torch import nn

from burnish.errors import ParameterError
from burnish.torch import register, report
from tests.frontend.torch.cases import CASES
from tests.frontend.torch.networks import Functions, assert_same
from tests.marks import slow_except

register()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fast(network, **options):
    return torch.compile(network, backend="burnish", options={"threads": 1, **options})


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


FAST = ("unary strided", "unary empty", "binary scalar", "movement strided", "reductions strided", "norms", "attention")
FAST += ("quantization",)


# The masks of "indexing" are constants, which break the graph.
@pytest.mark.parametrize("name", slow_except([name for name in CASES if name != "indexing"], *FAST))
def test_operators_of_torch_compile_are_those_of_eager(name: str) -> None:
    functions, inputs = CASES[name]
    network = Functions(functions)
    before = len(report())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "burnish")
        assert_same(fast(network)(*inputs), network(*inputs), name)
    assert all(graph.whole for graph in report()[before:]), str(report())


@torch.no_grad()
def test_changed_parameters_are_never_stale() -> None:
    network, x = mlp(), torch.randn(4, 6)
    f = fast(network)
    assert_same(f(x), network(x))
    network[0].weight.add_(1.0)
    assert_same(f(x), network(x), "changed in place")
    network.load_state_dict(mlp().state_dict())
    assert_same(f(x), network(x), "loaded")
    network[2].weight = nn.Parameter(torch.randn(3, 16))
    assert_same(f(x), network(x), "replaced")
    network[2].bias.data = torch.randn(3)
    assert_same(f(x), network(x), "other data")
    for _ in range(3):
        network[0].weight.mul_(1.1)
        assert_same(f(x), network(x), "again and again")


def test_an_optimizer_between_evaluations_is_seen() -> None:
    network, x = mlp(), torch.randn(4, 6)
    f = fast(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(4):
        with torch.no_grad():
            assert_same(f(x), network(x))
        network(x).square().sum().backward()
        optimizer.step()
    graph = report()[-1]
    assert graph.recompilations >= 1 and graph.inputs == 4  # parameters that change at every step


@torch.no_grad()
def test_parameters_made_in_inference_mode_are_inputs() -> None:
    with torch.inference_mode():
        network = mlp()
        x = torch.randn(4, 6)
        f = fast(network)
        assert_same(f(x), network(x))
        network[0].weight.add_(1.0)
        assert_same(f(x), network(x))


@torch.no_grad()
def test_operators_that_are_missing_run_in_torch_between_compiled_parts() -> None:
    def network(x):
        y = torch.special.bessel_j0((x * 0.1).tanh() * 0.5) + 1
        return (y * 2).softmax(-1), torch.igamma(y.abs(), y.abs() + 1) * x

    x = torch.randn(3, 5)
    with pytest.warns(UserWarning, match=r"aten\.special_bessel_j0.*burnish\.torch\.report"):
        import burnish.torch.dynamo as backend

        backend._warned.clear()
        assert_same(fast(network)(x), network(x))
    graph = report()[-1]
    assert {name for name, _ in graph.eager} == {"aten.special_bessel_j0", "aten.igamma"}
    assert len(graph.parts) <= 3 and not graph.whole
    assert "torch runs 1 x aten.special_bessel_j0: no translation" in str(report())


@torch.no_grad()
def test_operators_without_a_kernel_run_in_torch(monkeypatch) -> None:
    from burnish.errors import UnsupportedOperator
    from burnish.torch.dynamo import BackendOptions

    real = BackendOptions.compile

    def refusing(self, graph, device):
        for node in graph.nodes:
            if node.op == "erf":
                raise UnsupportedOperator(f"node {node.name} (erf): no schedule for operands")
        return real(self, graph, device)

    monkeypatch.setattr(BackendOptions, "compile", refusing)
    x = torch.randn(3, 5)

    def network(x):
        return (x * 2 + 1).erf().relu() - x

    assert_same(fast(network)(x), network(x))
    assert [name for name, _ in report()[-1].eager] == ["aten.erf"] and len(report()[-1].parts) == 2


@torch.no_grad()
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_strides_of_results_are_those_of_eager(layout) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)).eval()
    network = network.to(memory_format=layout)
    x = torch.randn(2, 4, 8, 8).to(memory_format=layout)
    found, expected = fast(network)(x), network(x)
    assert found.stride() == expected.stride() and found.is_contiguous(memory_format=layout)
    assert_same(found, expected)


@torch.no_grad()
def test_views_and_mutation_are_those_of_eager() -> None:
    def network(x, y):
        x.add_(1)
        z = x * 2
        y[0] = z[1]
        return x.view(-1), z[:, 1:], z, z, z.t(), x, z.sum(0).expand(4, -1), torch.arange(3), y.mT

    inputs = torch.randn(3, 5), torch.randn(2, 5)
    other = tuple(t.clone() for t in inputs)
    found, expected = fast(network)(*inputs), network(*other)
    assert_same(found, expected)
    assert_same(inputs, other, "inputs")
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert found[0].data_ptr() == inputs[0].data_ptr() and found[5] is inputs[0]
    found[7].add_(1)  # a constant that callers may change
    assert_same(fast(network)(*inputs)[7], torch.arange(3))


@torch.no_grad()
def test_one_graph_takes_all_batches() -> None:
    network = mlp()
    f = fast(network)
    before = len(report())
    for batch in (2, 5, 3, 1, 64, 7, 0):
        x = torch.randn(batch, 6)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        assert_same(f(x), network(x), f"{batch}")
    (graph,) = report()[before:]
    assert graph.whole and not graph.specialized
    assert [part.sizes and [*part.sizes.values()] for part in graph.parts] == [None, [0]]  # no rows: alone


@torch.no_grad()
def test_sizes_that_cannot_stay_open_are_compiled_one_by_one() -> None:
    def network(x):
        return x.softmax(-1) + x.shape[1], x.sum(-1), x.shape[0] * 2

    f = torch.compile(network, backend="burnish", options={"threads": 1}, dynamic=True)
    before = len(report())
    for shape in ((2, 3), (4, 5), (2, 3), (7, 2)):
        x = torch.randn(shape)
        assert_same(f(x), network(x), f"{shape}")
    (graph,) = report()[before:]
    assert graph.whole
    assert not graph.specialized or len(graph.parts) == 3


class Caches(nn.Module):
    """Attention to keys and values that each grow by a row, and the sum of something as long as it likes."""

    def forward(self, x, keys, values, other):
        keys, values = torch.cat([keys, x], 2), torch.cat([values, x], 2)
        found = nn.functional.scaled_dot_product_attention(x, keys, values)
        return found + other.relu().sum(0), keys, values


@torch.no_grad()
def test_lengths_that_are_equal_by_construction_are_one_symbol() -> None:
    """Torch gives the keys' and the values' lengths symbols of their own; a third happens to be equal."""
    f = torch.compile(Caches(), backend="burnish", options={"threads": 1})
    before = len(report())
    keys, values = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    other = torch.randn(5, 8)
    for tensor, axis in ((keys, 2), (values, 2), (other, 0)):
        torch._dynamo.mark_dynamic(tensor, axis)
    for step in range(6):
        x = torch.randn(1, 2, 1, 8)
        expected = Caches()(x, keys, values, other)
        found = f(x, keys, values, other)
        assert_same(found, expected, f"step {step}")
        keys, values = expected[1:]
        other = torch.randn(5 + step % 2 * 3, 8)
    (graph,) = report()[before:]
    assert graph.whole and not graph.specialized
    assert graph.recompilations == 1, "once, when the third length is another"


def test_gradients_are_left_to_torch_where_that_is_asked_for() -> None:
    import burnish.torch.dynamo as backend

    backend._warned.clear()
    network, x = mlp(), torch.randn(4, 6)
    f = torch.compile(network, backend="burnish", options={"threads": 1, "training": False})
    with pytest.warns(UserWarning, match="with gradients"):
        f(x).sum().backward()
    assert report()[-1].left and report()[-1].training and "torch runs it" in str(report()[-1])
    copy = mlp()
    copy(x).sum().backward()
    assert_same(network[0].weight.grad, copy[0].weight.grad)


@torch.no_grad()
def test_threads_call_one_graph_at_once() -> None:
    network = mlp()
    f = fast(network)
    x = torch.randn(4, 6)
    expected, failures = network(x), []

    def work() -> None:
        try:
            for _ in range(20):
                assert_same(f(x), expected)
        except Exception as error:
            failures.append(error)

    f(x)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@torch.no_grad()
def test_odd_graphs_are_right() -> None:
    def several(x, y):
        if x.sum() > 0:  # a graph break
            return x.nonzero().sum() + y.double(), x[:0], y.sum()
        return x

    x, y = torch.tensor([1.0, 0.0, 2.0]), torch.tensor(3)
    assert_same(fast(several)(x, y), several(x, y))
    z = torch.randn(4, dtype=torch.complex64)
    assert_same(torch.view_as_real(fast(lambda z: z * 2 + 1)(z)), torch.view_as_real(z * 2 + 1))
    half = torch.randn(3, 4).bfloat16()
    assert_same(fast(lambda h: (h * 2).relu())(half), (half * 2).relu())


def test_unknown_options_are_refused() -> None:
    with pytest.raises(Exception, match=r"options: found.*allowed: threads") as caught, torch.no_grad():
        torch.compile(mlp(), backend="burnish", options={"thread": 1})(torch.randn(4, 6))
    assert isinstance(caught.value, ParameterError) or "ParameterError" in repr(caught.value)
    with pytest.raises(Exception, match="mode: found 'max-autotune'"), torch.no_grad():
        torch.compile(mlp(), backend="burnish", mode="max-autotune")(torch.randn(4, 6))


def test_autocast_is_compiled() -> None:
    network, x = mlp(), torch.randn(4, 6)
    before = len(report())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = fast(network)(x), network(x)
    assert found.dtype == torch.bfloat16
    assert_same(found, expected, tolerance=2e-2)
    assert all(graph.whole for graph in report()[before:])


def test_the_entry_point_is_declared() -> None:
    import tomllib
    from importlib import import_module
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["torch_dynamo_backends"]["burnish"].partition(":")
    assert callable(getattr(import_module(module), name))
