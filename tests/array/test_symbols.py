"""Symbols compose, are bound, differentiated, saved, measured and drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import burnish as bn
from burnish.array import lazy
from burnish.errors import ArtifactError, InputError, ModelError, ParameterError, UnsupportedOperator
from burnish.graph.evaluate import evaluate
from burnish.runtime.container import read_container, write_container

nd, sym = bn.nd, bn.sym


def mlp(x: sym.Symbol) -> sym.Symbol:
    hidden = sym.relu(sym.fully_connected(x, 16, "first"))
    return sym.fully_connected(hidden, 4, "second")


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(name)).standard_normal(shape).astype("float32") * 0.3


def test_free_variables_get_their_shapes_late() -> None:
    y = mlp(sym.variable("x"))
    assert y.variables == ("x", "first.weight", "first.bias", "second.weight", "second.bias")
    for rows in (1, 7):
        shapes, (head,) = sym.infer_shape(y, x=(rows, 3))
        assert shapes["first.weight"] == (3, 16)
        assert head == (rows, 4)
    with pytest.raises(InputError, match="variable 'x': found no shape"):
        sym.infer_shape(y)
    with pytest.raises(InputError, match="'z'"):
        sym.infer_shape(y, x=(1, 3), z=(1,))
    with pytest.raises(ModelError, match="symbol 'matmul"):
        sym.infer_shape(sym.variable("a") @ sym.variable("b"), a=(2, 3), b=(4, 5))


def test_symbols_compose_with_symbols_in_place_of_variables() -> None:
    x, y = sym.variable("x"), sym.variable("y")
    outer = x * 2 + y
    composed = outer(x=sym.tanh(y), y=sym.variable("z"))
    assert composed.variables == ("y", "z")
    assert outer.variables == ("x", "y")
    net = sym.bind(composed, {"y": (3,), "z": (3,)})
    a = np.float32([0.1, 0.2, 0.3])
    np.testing.assert_allclose(net.forward(y=a, z=a).numpy(), np.tanh(a) * 2 + a, rtol=1e-6)
    with pytest.raises(InputError, match=r"found \['w'\]"):
        outer(w=x)


def test_operators_with_several_results() -> None:
    x = sym.variable("x")
    normalized, mean, variance = sym.batch_norm_training(x, sym.variable("scale"), sym.variable("bias"))
    net = sym.bind([normalized, mean, variance], {"x": (4, 2, 3)}, {"scale": np.ones(2, "float32"), "bias": (2,)})
    a = np.random.default_rng(0).standard_normal((4, 2, 3)).astype("float32")
    found = net.forward(x=a)
    np.testing.assert_allclose(found[1].numpy(), a.mean((0, 2)), atol=1e-6)
    np.testing.assert_allclose(found[2].numpy(), a.var((0, 2)), rtol=1e-5)
    ordered = sym.sort(x, axis=0)
    assert sym.bind(ordered[1], {"x": (3,)}).forward(x=np.float32([3, 1, 2])).tolist() == [1, 2, 0]
    with pytest.raises(TypeError, match="number of its results"):
        list(ordered)
    with pytest.raises(InputError, match="found result 5; allowed: 0 to 1"):
        sym.bind(ordered[5], {"x": (3,)})


def test_numbers_and_dtypes_follow_numpy() -> None:
    x = sym.variable("x", dtype="int32")
    for found, expected in ((x * 2, "int32"), (x * 2.5, "float64"), (x / 2, "float64"), (x > 1, "bool")):
        graph = sym.graph(found, {"x": ((3,), "int32")})
        assert graph.types[graph.outputs[0]].dtype == expected


def test_forward_and_backward_equal_the_joint_program_and_the_definitions() -> None:
    x = sym.variable("x")
    loss = sym.loss("softmax_cross_entropy", mlp(x))
    net = sym.bind(loss, {"x": (8, 3), "label": ((8,), "int64")}, initial=weights)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((8, 3)).astype("float32"), "label": rng.integers(0, 4, 8)}
    joint = net.forward_backward(**feeds).item()
    together = {name: g.numpy() for name, g in net.g.items()}
    assert net.forward().item() == pytest.approx(joint, rel=1e-6)
    assert net.forward(training=True).item() == pytest.approx(joint, rel=1e-6)
    net.backward()
    values = evaluate(net.joint, {**feeds, **{name: w.numpy() for name, w in net.w.items()}}, "float64")
    exact = dict(zip(net.w, list(values.values())[1:], strict=True))
    for name, g in net.g.items():
        np.testing.assert_allclose(g.numpy(), together[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(g.numpy(), exact[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(InputError, match="found no forward pass"):
        net.backward()


def test_backward_weights_heads_by_seeds() -> None:
    x, w = sym.variable("x"), sym.variable("w")
    net = sym.bind(x * w, {"x": (3,)}, {"w": np.float32([1, 2, 3])})
    net.forward(training=True, x=np.float32([4, 5, 6]))
    net.backward(np.float32([1, 0, 2]))
    assert net.g["w"].tolist() == [4, 0, 12]
    net.forward_backward()
    assert net.g["w"].tolist() == [4, 5, 6]
    net.forward(training=True)
    with pytest.raises(InputError, match="found 2 seeds; allowed: 1"):
        net.backward(1.0, 2.0)


def test_training_mixes_with_imperative_updates_and_learns() -> None:
    rng = np.random.default_rng(2)
    inputs = rng.standard_normal((64, 3)).astype("float32")
    labels = (inputs.sum(1) > 0).astype("int64") + 2 * (inputs[:, 0] > 0)
    loss = sym.loss("softmax_cross_entropy", mlp(sym.variable("x")))
    net = sym.bind(loss, {"x": nd.array(inputs), "label": nd.array(labels)}, initial=weights)
    reference = {name: w.numpy().astype("float64") for name, w in net.w.items()}
    first = None
    for _ in range(60):
        value = net.forward_backward()
        first = value.item() if first is None else first
        for name, g in net.g.items():
            reference[name] -= 0.5 * g.numpy()
        net.w -= 0.5 * net.g
    assert value.item() < 0.3 * first
    for name, w in net.w.items():
        np.testing.assert_allclose(w.numpy(), reference[name], rtol=1e-3, atol=1e-4)
    kept = net["first.weight"]
    kept *= 0
    assert net["first.weight"].numpy().sum() == 0
    net["first.bias"] = np.ones(16, "float32")
    assert net["first.bias"].tolist() == [1.0] * 16
    with pytest.raises(InputError, match="no array 'third'"):
        net["third"]


def test_a_step_and_its_update_become_one_program_that_keeps_no_gradients() -> None:
    rng = np.random.default_rng(4)
    inputs, labels = rng.standard_normal((9, 3)).astype("float32"), rng.integers(0, 4, 9)
    loss = sym.loss("softmax_cross_entropy", mlp(sym.variable("x")))
    nets = [
        sym.bind(loss, {"x": nd.array(inputs), "label": nd.array(labels)}, initial=weights, threads=1) for _ in range(2)
    ]
    before = set(lazy._programs)
    for _ in range(5):
        nets[0].forward_backward()
        nets[0].w -= 0.5 * nets[0].g
    nd.wait_all()
    for _ in range(5):
        nets[1].forward_backward().wait()
        for name, g in nets[1].g.items():
            array = nets[1][name]
            array -= 0.5 * g
            array.wait()
    for name, w in nets[0].w.items():
        np.testing.assert_allclose(w.numpy(), nets[1][name].numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(nets[0].g[name].numpy(), nets[1].g[name].numpy(), rtol=1e-4, atol=1e-6)
    made = [p for key, p in lazy._programs.items() if key not in before and isinstance(p, lazy.ArrayProgram)]
    assert 1 + len(nets[0].w) in {len(p.outputs) for p in made}, "the loss and the parameters, but no gradients"


def test_bound_arrays_are_the_ones_that_were_given() -> None:
    w = nd.array([1.0, 2.0])
    net = sym.bind(sym.variable("x") * sym.variable("w"), {"x": (2,)}, {"w": w})
    w += 10
    assert net.forward(x=np.ones(2, "float32")).tolist() == [11.0, 12.0]
    assert net["w"] is w


def test_auxiliary_states_move_in_training_alone() -> None:
    x = sym.variable("x")
    net = sym.bind(sym.batch_normalization(x, "norm", momentum=0.5), {"x": (4, 2)}, initial=lambda n, s: np.ones(s))
    a = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    np.testing.assert_allclose(net.forward(x=a).numpy(), a + 1, rtol=1e-4)  # by mean 0 and variance 1
    assert net.states["norm.mean"].tolist() == [0.0, 0.0]
    trained = net.forward(training=True)
    np.testing.assert_allclose(trained.numpy().mean(0), [1, 1], atol=1e-5)
    assert net.states["norm.mean"].tolist() == [2.0, 2.5]
    assert net.states["norm.variance"].tolist() == [3.0, 3.0]
    net.forward_backward()
    assert net.states["norm.mean"].tolist() == [3.0, 3.75]
    counter = sym.state("count", 0.0)
    counting = sym.bind((sym.variable("x") + counter).updating(counter, counter + 1.0), {"x": ()})
    assert [counting.forward(training=True, x=np.float32(5)).item() for _ in range(3)] == [5.0, 6.0, 7.0]
    with pytest.raises(InputError, match="allowed: a state"):
        x.updating(x, x)


def test_files_hold_symbols_and_refuse_others(tmp_path: Path) -> None:
    x = sym.variable("x")
    y = sym.batch_normalization(mlp(x) * nd.array([1.0, 2.0, 3.0, 4.0]), "norm")
    sym.save([sym.loss("mse", y), y], tmp_path / "net.sym")
    loss, again = sym.load(tmp_path / "net.sym")
    assert again.variables == y.variables
    assert again.states == y.states
    a = np.random.default_rng(3).standard_normal((5, 3)).astype("float32")
    results = [
        sym.bind(head, {"x": (5, 3)}, initial=weights).forward(training=True, x=a).numpy() for head in (y, again)
    ]
    np.testing.assert_array_equal(*results)
    assert loss.variables[-1] == "label"
    container = read_container(tmp_path / "net.sym")
    for change, message in (
        ({"kind": "other"}, "holds other"),
        ({"edition": 99}, "edition 99"),
        ({"heads": [10_000]}, "inconsistent"),
        ({"symbols": [{**container.header["symbols"][0], "inputs": [3]}]}, "inconsistent: ValueError: reference 3"),
    ):
        header = {k: v for k, v in container.header.items() if k != "sections"}
        write_container(tmp_path / "bad.sym", {**header, **change}, dict(container.sections))
        with pytest.raises(ArtifactError, match=message):
            sym.load(tmp_path / "bad.sym")
    (tmp_path / "cut.sym").write_bytes((tmp_path / "net.sym").read_bytes()[:5000])
    with pytest.raises(ArtifactError):
        sym.load(tmp_path / "cut.sym")


def test_memory_is_estimated_by_kind() -> None:
    y = sym.loss("mse", mlp(sym.variable("x")))
    need = sym.memory(y, {"x": (100, 3), "label": (100, 4)})
    assert need["parameters"] == 4 * (3 * 16 + 16 + 16 * 4 + 4)
    assert need["inputs"] == 4 * (300 + 400)
    assert need["outputs"] == need["parameters"] + 4
    assert need["arena"] >= 4 * 100 * 16
    assert sym.memory(y, {"x": (100, 3), "label": (100, 4)}, gradients=False)["arena"] < need["arena"]


def test_drawings_show_every_symbol_once() -> None:
    y = mlp(sym.variable("x<1>"))
    tree = ElementTree.fromstring(sym.svg(y))
    names = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")][::2]
    assert len(names) == len(set(names)) == 10
    assert "x<1>" in names
    text = sym.dot(y)
    assert text.count(" -> ") == 9
    assert text.startswith("digraph symbols {")


def test_refusals_name_what_was_found() -> None:
    x = sym.variable("x")
    with pytest.raises(ParameterError, match="loss: found 'hinge'"):
        sym.loss("hinge", x)
    with pytest.raises(InputError, match="found 1 operands"):
        sym.matmul(x)
    with pytest.raises(ModelError, match="attribute 'nothing'"):
        sym.softmax(x, nothing=1)
    with pytest.raises(InputError, match="operand: found a object"):
        sym.add(x, object())
    with pytest.raises(UnsupportedOperator, match="gradient of node"):
        sym.bind(sym.sum(sym.bitcast(x, to="float32")), {}, {"x": (3,)}).forward_backward()
    with pytest.raises(InputError, match="one type for a name"):
        sym.infer_shape(sym.variable("w", (2,)) + sym.variable("w", (1,)))
