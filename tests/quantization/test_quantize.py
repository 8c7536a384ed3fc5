"""`bn.quantize`: accuracy is kept, other runtimes answer alike, and what may not be is refused or left in floats."""

import ctypes
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import burnish as bn
from burnish.errors import DataError, ModelError, ParameterError
from burnish.frontend.onnx import to_onnx
from burnish.frontend.onnx.model import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.measure.comparison import Comparison
from burnish.quantization import choose
from burnish.quantization.calibrate import Observed, blocked_weight, few_bit_quantizer, few_bit_weight, quantizer_of
from burnish.quantization.equalize import equalized
from burnish.quantization.layers import LayeredGraph, prepared

CLASSES, SIDE, BATCH = 4, 8, 16


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Convolutions(torch.nn.Module):
    """Convolutions with batch normalization, a residual sum, pools, one of a channel a group."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16))
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.third = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last = torch.nn.Linear(16, CLASSES)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        y = torch.relu(self.first(x))
        y = torch.max_pool2d(torch.relu(self.second(y) + y), 2)
        return self.last(torch.nn.functional.relu6(self.third(y)).mean((2, 3)))


class Perceptron(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32),
            torch.nn.GELU(), torch.nn.Linear(32, CLASSES),
        )  # fmt: skip


class Transformer(torch.nn.Module):
    """A block of attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.TransformerEncoderLayer(3 * SIDE, 4, 64, batch_first=True)
        self.last = torch.nn.Linear(3 * SIDE, CLASSES)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.last(self.block(x.permute(0, 2, 1, 3).reshape(BATCH, SIDE, 3 * SIDE)).mean(1))


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of classes that differ in their means, and their classes."""
    random, means = np.random.default_rng(seed), np.random.default_rng(0).standard_normal((CLASSES, 3, SIDE, SIDE))
    labels = random.integers(0, CLASSES, count)
    return (means[labels] + 0.5 * random.standard_normal((count, 3, SIDE, SIDE))).astype(np.float32), labels


def trained(network: "torch.nn.Module") -> "torch.nn.Module":
    """The network after some steps on the images."""
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(60):
        x, labels = drawn(BATCH, step + 1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(labels)).backward()
        optimizer.step()
    return network.eval()


@pytest.mark.parametrize(
    "made, method",
    [
        (Convolutions, "minmax"),
        (Perceptron, "entropy"),
        pytest.param(Transformer, "percentile", marks=pytest.mark.slow),
    ],
)
def test_classes_stay_and_onnxruntime_answers_alike(made: type, method: str, tmp_path: Path) -> None:
    network = trained(made())
    example = torch.from_numpy(drawn(BATCH, 0)[0])
    data = [drawn(BATCH, 100 + n)[0] for n in range(8)]
    found = bn.quantize(network, data, (example,), method=method, measure=False, threads=1)
    assert all(layer.quantized for layer in found.report.layers) and len(found.report.layers) >= 3
    assert found.report.error < found.report.allowed and not found.report.fallback
    found.save(tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    compiled = bn.compile(tmp_path / "q.onnx", threads=1, rewrite=False)
    as_network = found.compile(threads=1, rewrite=False)
    agree = near = count = 0
    for n in range(8):
        x = drawn(BATCH, 200 + n)[0]
        mine, theirs = compiled(x), session.run(None, {session.get_inputs()[0].name: x})[0]
        floats = network(torch.from_numpy(x)).detach().numpy()
        assert np.array_equal(as_network(torch.from_numpy(x)).numpy(), mine)
        agree += int((mine.argmax(1) == floats.argmax(1)).sum())
        near += int((np.abs(mine - theirs) <= np.abs(floats).max() / 127).sum())
        count += len(x)
    assert agree >= 0.99 * count and near >= 0.999 * count * CLASSES


def chain() -> bn.Graph:
    """Three products with limits between them, of channels that reach very differently far."""
    random, x = np.random.default_rng(0), bn.sym.variable("x")
    for _ in range(2):
        scales = 10.0 ** random.uniform(-1, 1, 24)
        weight = (random.standard_normal((24, 24)) * scales / 5).astype(np.float32)
        x = bn.sym.relu(bn.sym.matmul(x, bn.sym.constant(weight)) + bn.sym.constant(scales.astype(np.float32)))
    return bn.sym.graph(bn.sym.matmul(x, bn.sym.constant(np.eye(24, 8, dtype=np.float32))), {"x": (BATCH, 24)})


def rows(count: int = 4 * BATCH) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(5).standard_normal((count, 24), np.float32)}


def test_equalization_keeps_the_function_and_lessens_the_noise() -> None:
    graph = prepared(chain())
    made, pairs = equalized(graph)
    assert pairs == 2
    feeds = rows(BATCH)
    before, after = (evaluate(g, feeds, "float64")[g.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(after, before, rtol=1e-5)
    first, second = (LayeredGraph(made).layers[n].node for n in (0, 1))
    reach = [np.abs(made.constants[n.inputs[1]]).max(a) for n, a in ((first, 0), (second, 1))]
    np.testing.assert_allclose(reach[0], reach[1], rtol=0.05)


def test_layers_of_most_noise_stay_in_floats_until_the_error_is_allowed() -> None:
    whole = bn.quantize(chain(), rows(), measure=False, threads=1, error=1.0).report
    part = bn.quantize(chain(), rows(), measure=False, threads=1, error=0.7 * whole.error).report
    assert part.error <= part.allowed < whole.error
    left = [layer for layer in part.layers if not layer.quantized]
    assert left and all("err by more than" in layer.reason for layer in left)
    assert min(layer.noise for layer in left) >= max((r.noise for r in part.layers if r.quantized), default=0.0)


@pytest.mark.parametrize(
    "ratio, slow, reason", [(0.5, "", ""), (1.2, "layer", "of its float time"), (1.2, "model", "model takes")]
)
def test_what_is_not_faster_stays_in_floats(
    monkeypatch: pytest.MonkeyPatch, ratio: float, slow: str, reason: str
) -> None:
    def timed(most_seconds: float, **_: object) -> Comparison:
        is_layer = most_seconds == choose.LAYER_SECONDS
        found = ratio if not slow or is_layer == (slow == "layer") else 0.5
        return Comparison(found, found - 0.01, found + 0.01)

    monkeypatch.setattr(choose, "time_in_turns", lambda *_, **given: timed(**given))
    made = bn.quantize(chain(), rows(), threads=1)
    assert all(layer.quantized == (not slow) for layer in made.report.layers)
    assert all(re.search(reason, layer.reason) for layer in made.report.layers)
    assert bool(made.report.fallback) == bool(slow)
    kinds = {node.op_type for node in made.model.graph.node}
    assert ("QuantizeLinear" in kinds) == (not slow)
    x = rows(BATCH)
    error = np.abs(
        made.compile(threads=1, rewrite=False)(**x) - bn.compile(chain(), threads=1, rewrite=False)(**x)
    ).max()
    assert slow == "" or error == 0


@pytest.mark.parametrize("bits, most", [(8, 0.01), (4, 0.15)])
def test_weights_alone_in_blocks(bits: int, most: float, tmp_path: Path) -> None:
    made = bn.quantize(chain(), rows(), weights=bits, activations=None, measure=False, error=most, threads=1)
    assert all(layer.quantized for layer in made.report.layers) and made.report.error < most
    assert made.report.bytes[1] < made.report.bytes[0] * (0.5 if bits == 8 else 0.35)
    blocks = [node for node in made.model.graph.node if node.op_type == "DequantizeLinear"]
    assert len(blocks) == 3 and all(a.i == 32 for n in blocks for a in n.attribute if a.name == "block_size")
    made.save(tmp_path / "q.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), options, providers=["CPUExecutionProvider"])
    x = rows(BATCH)
    mine, (theirs,) = made.compile(threads=1, rewrite=False)(**x), session.run(None, x)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("bits", [8, 4])
def test_a_block_errs_by_half_a_step(bits: int) -> None:
    weight = np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32)
    made = blocked_weight(weight, bits, 32)
    steps = np.repeat(np.abs(made.scale), 32, 0)[:70]
    assert (np.abs(made.value - weight) <= steps * 1.001).all()
    assert (np.abs(made.value - weight) <= steps * 0.501).mean() > 0.95  # but where the one end is clipped


@pytest.mark.parametrize(
    "bits, weight_bits", [*(pytest.param(2, n, marks=pytest.mark.slow) for n in (1, 2)), (1, 1), (2, 4)]
)
def test_products_of_few_bits(bits: int, weight_bits: int, tmp_path: Path) -> None:
    """Codes of as many bits in standard ONNX, with products that other runtimes compute as well, and counts of bits."""
    network = Convolutions().eval()
    example = torch.from_numpy(drawn(BATCH, 0)[0])
    data = [drawn(BATCH, 100 + n)[0] for n in range(4)]
    how = {"activations": bits, "weights": weight_bits, "measure": False, "threads": 1}
    made = bn.quantize(network, data, (example,), error=1e3, **how)
    assert all(layer.quantized for layer in made.report.layers) and 0.01 < made.report.error < 2
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.model.graph.initializer}
    weights = [constants[n.input[0]] for n in made.model.graph.node if n.op_type == "DequantizeLinear"
               and n.input[0] in constants and constants[n.input[0]].dtype == np.int8]  # fmt: skip
    most = (1 << weight_bits) - 1
    assert len(weights) == 4 and all(set(np.unique(w)) <= set(range(-most, most + 1, 2)) for w in weights)
    made.save(tmp_path / "q.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), options, providers=["CPUExecutionProvider"])
    x = drawn(BATCH, 7)[0]
    theirs = session.run(None, {session.get_inputs()[0].name: x})[0]
    np.testing.assert_allclose(
        made.compile(threads=1, rewrite=False)(torch.from_numpy(x)), theirs, rtol=1e-3, atol=1e-3
    )
    graph = from_onnx(onnx.load(str(tmp_path / "q.onnx")))
    machine = target("cascadelake")
    machine = replace(machine, features=machine.features | {"avx512bitalg"})
    counted = [n for n in optimize(graph, target=machine).nodes if n.op.startswith("low_bit")]
    assert len(counted) == (
        3 if weight_bits <= 2 else 0
    )  # but that of a channel a group; of more bits bytes are as fast
    assert all(n.attrs["bits"] == bits and n.attrs["weight_bits"] == weight_bits for n in counted)
    part = bn.quantize(network, data, (example,), error=0.05, **how)
    assert part.report.error <= 0.05 and not all(layer.quantized for layer in part.report.layers)


@pytest.mark.slow
def test_few_bits_are_the_same_bits_tuned_in_files_in_c_and_on_threads(tmp_path: Path) -> None:
    """Layers timed, kernels searched for, saved and loaded, another number of threads, calls at once."""
    network = Convolutions().eval()
    example = torch.from_numpy(drawn(BATCH, 0)[0])
    data, x = [drawn(BATCH, 100 + n)[0] for n in range(4)], drawn(BATCH, 7)[0]
    bn.quantize(network, data, (example,), activations=2, weights=1, error=1e3, threads=1)  # with measurements
    made = bn.quantize(network, data, (example,), activations=2, weights=1, error=1e3, measure=False, threads=1)
    how = {"threads": 1, "rewrite": False}
    module = bn.compile(made.model, **how)
    expected = module(x)
    module.save(tmp_path / "q.bn")
    assert np.array_equal(bn.load(tmp_path / "q.bn")(x), expected)
    records = tmp_path / "r.jsonl"
    tuned = bn.compile(made.model, tune=bn.Tune(trials=6, seconds=None), records=records, **how)
    assert np.array_equal(tuned(x), expected)
    assert np.array_equal(bn.compile(made.model, records=records, **how)(x), expected)
    several = bn.compile(made.model, threads=3, rewrite=False)
    with ThreadPoolExecutor(4) as callers:
        assert all(np.array_equal(found, expected) for found in callers.map(several, [x] * 12))
    paths = bn.export_c(module, tmp_path / "net")
    if "shared" not in paths:
        pytest.skip("neither ld.lld nor ld is installed")
    library, context, found = ctypes.CDLL(str(paths["shared"])), ctypes.c_void_p(), np.zeros_like(expected)
    assert library.net_create(2, ctypes.byref(context)) == 0
    end = ctypes.c_size_t
    assert (
        library.net_set_input(context, 0, ctypes.c_void_p(x.ctypes.data), end(x.nbytes))
        == library.net_run(context)
        == 0
    )
    assert library.net_get_output(context, 0, ctypes.c_void_p(found.ctypes.data), end(found.nbytes)) == 0
    library.net_destroy(context)
    assert np.array_equal(found, expected)


def test_few_bits_err_least_by_their_own_range() -> None:
    random = np.random.default_rng(0)
    values = np.maximum(random.standard_normal(50_000), 0).astype(np.float32)
    observed = Observed()
    observed.widen(values)
    observed.fill(values)
    found = few_bit_quantizer(observed, 2)
    assert int(found.zero) == 0 and 0.5 < found.scale < 0.9  # the least error of half normal numbers: near 0.66
    weight = random.standard_normal((5, 4, 3, 3)).astype(np.float32)
    one = few_bit_weight(weight, 0, 1)
    assert np.array_equal(one.integers, np.where(weight < 0, -1, 1))
    np.testing.assert_allclose(one.scale, np.abs(weight).mean((1, 2, 3)), rtol=1e-5)
    errors = [np.square(few_bit_weight(weight, 0, bits).value - weight).mean() for bits in (1, 2, 3, 4)]
    assert all(a > 2.5 * b for a, b in pairwise(errors))


def test_ranges_by_method() -> None:
    random, found = np.random.default_rng(0), {}
    values = np.append(random.standard_normal(50_000), 40.0).astype(np.float32)
    for method in ("minmax", "percentile", "entropy"):
        observed = Observed()
        observed.widen(values)
        observed.fill(values)
        found[method] = observed.limits(method, 99.9)
    assert found["minmax"][1] == 40 and found["percentile"][1] < 6 and found["entropy"][1] < 20
    assert found["percentile"][0] < -2.5
    quantizer = quantizer_of(*found["minmax"], "uint8")
    assert (
        quantizer.zero.dtype == np.uint8 and abs((255 - int(quantizer.zero)) * quantizer.scale - 40) < quantizer.scale
    )


REFUSED = [
    ({"method": "mean"}, "method: found 'mean'; allowed: 'minmax', 'percentile', 'entropy'"),
    ({"weights": 4}, "weights: found 4; allowed: 8"),
    ({"activations": 4}, "activations: found 4; allowed: 8, of few bits 1 or 2, or None"),
    ({"activations": 2, "weights": 8}, "weights: found 8; allowed: 1 or 2 or 3 or 4 with 2 bits of activations"),
    ({"activations": None, "weights": 2}, "weights: found 2; allowed: 8 or 4 for weights alone"),
    ({"block": 20, "activations": None}, "block: found 20; allowed: 16, 32"),
    ({"error": 0.0}, "error: found 0.0; allowed"),
    ({"percentile": 20.0}, "percentile: found 20.0; allowed"),
]


@pytest.mark.parametrize("given, message", REFUSED)
def test_refused_arguments(given: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        bn.quantize(chain(), rows(), **given)


@pytest.fixture
def of_any_rows(tmp_path: Path) -> Path:
    """The chain as a file whose first extent is open."""
    model = to_onnx(chain())
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, str(tmp_path / "open.onnx"))
    return tmp_path / "open.onnx"


def test_batches_say_what_the_model_leaves_open(of_any_rows: Path) -> None:
    x = rows()["x"]
    batches, how = [x[n : n + BATCH] for n in range(0, len(x), BATCH)], {"measure": False, "threads": 1}
    closed = bn.quantize(chain(), batches, **how)
    for given in (batches, iter(batches), [{"x": torch.from_numpy(b)} for b in batches], [(b,) for b in batches]):
        found = bn.quantize(of_any_rows, given, **how)
        assert found.report.error == closed.report.error and found.report.batches == (3, 1)
    with pytest.warns(UserWarning, match=r"'x' \[rows, 24\] is open and taken as 1"):
        assert bn.quantize(of_any_rows, {"x": x[:8]}, **how).report.batches == (6, 2)
    with pytest.raises(
        ModelError, match=r"found open dimensions; allowed: numbers, such as shapes=\{'x': \(\d+, 24\)\}"
    ):
        bn.quantize(of_any_rows, batches, shapes={"rows": (1, 64)}, **how)
    assert repr(closed) == f"QuantizedModel({closed.report!r})" and "\n" not in repr(closed) and len(repr(closed)) < 120


def test_refused_data_and_models() -> None:
    with pytest.raises(DataError, match="found no batch"):
        bn.quantize(chain(), rows(BATCH - 1))
    nothing = rows()
    nothing["x"][3] = np.nan
    with pytest.raises(DataError, match="allowed: finite numbers"):
        bn.quantize(chain(), nothing, measure=False)
    x = bn.sym.variable("x")
    with pytest.raises(ModelError, match="found no output of floats"):
        bn.quantize(bn.sym.graph(bn.sym.argmax(x, axis=1), {"x": (BATCH, 24)}), rows())


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from burnish.cli import app

    model, data, output = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "q.onnx"
    onnx.save(to_onnx(chain()), str(model))
    np.savez(data, **rows())
    command = ["quantize", str(model), "--data", str(data), "-o", str(output), "--threads", "1", "--no-measure"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "3 of 3 layers in integers" in result.output, result.output
    assert onnx.load(str(output)).opset_import[0].version == 21
    result = CliRunner().invoke(app, [*command[:-1], "--weights", "3"])
    assert result.exit_code and isinstance(result.exception, ParameterError)
