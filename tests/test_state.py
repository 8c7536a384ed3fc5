"""State: named tensors that a compiled model keeps from call to call, in its artifact too."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

import burnish as bn
from burnish.driver.check import check
from burnish.errors import InputError, ModelError, UnknownStateError, UnsupportedOperator, VerificationError
from burnish.frontend.onnx import to_onnx
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.verify import verify
from burnish.runtime.executable import CopyStep

COUNT = np.zeros((1,), np.int64)


def running_mean(width: int = 37) -> Graph:
    """count += 1; mean += (x - mean) / count; gives x - mean."""
    b = GraphBuilder()
    x = b.input("x", (width,))
    count, mean = b.state("count", COUNT), b.state("mean", np.zeros(width, np.float32))
    after = b.add("add", count, b.constant(np.ones(1, np.int64)))
    step = b.add("div", b.add("sub", x, mean), b.add("cast", after, to="float32"))
    now = b.add("add", mean, step)
    b.update("count", after)
    b.update("mean", now)
    return b.build(b.add("sub", x, now, name="y"))


def samples(count: int, width: int = 37) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=width).astype(np.float32) for _ in range(count)]


def test_a_counter_and_a_running_mean_survive_calls_save_and_load(tmp_path) -> None:
    module, rows = bn.compile(running_mean()), samples(9)
    assert [spec.name for spec in module.inputs] == ["x"] and [spec.name for spec in module.outputs] == ["y"]
    for i, x in enumerate(rows[:5], 1):
        mean = np.mean(rows[:i], axis=0)
        np.testing.assert_allclose(module(x), x - mean, atol=1e-6)
        assert module.state["count"] == [i]
        np.testing.assert_allclose(module.state["mean"], mean, atol=1e-6)
    module.save(tmp_path / "m.bn")
    module(rows[0])
    again = bn.load(tmp_path / "m.bn")
    assert again.state["count"] == [5] and module.state["count"] == [6]
    for x in rows[5:]:
        again(x)
    np.testing.assert_allclose(again.state["mean"], np.mean(rows, axis=0), atol=1e-6)
    again.reset()
    assert again.state["count"] == [0] and not again.state["mean"].any()
    again.save(tmp_path / "again.bn")
    assert bn.load(tmp_path / "again.bn").state["count"] == [0]


def test_states_that_can_be_are_updated_in_place_in_one_native_call() -> None:
    b = GraphBuilder()
    total = b.state("total", np.zeros((8, 8), np.float32))
    b.update("total", b.add("add", total, b.input("x", (8, 8))))
    module = bn.compile(b.build())
    assert not any(isinstance(step, CopyStep) for step in module.executable.steps)
    for _ in range(3):
        assert module(np.ones((8, 8), np.float32)) == ()
    assert (module.state["total"] == 3).all()


@pytest.mark.parametrize("width", [1, 3, 8, 61])
def test_two_states_that_swap_and_one_that_is_reversed_are_copied(width: int) -> None:
    b = GraphBuilder()
    p, q = b.state("p", np.zeros(width, np.float32)), b.state("q", np.ones(width, np.float32))
    r = b.state("r", np.arange(width).astype(np.int8))
    b.update("p", q)
    b.update("q", p)
    b.update("r", b.add("slice", r, starts=(width - 1,), extents=(width,), steps=(-1,)) if width > 1 else r)
    module = bn.compile(b.build(b.add("add", p, b.input("x", (width,)), name="y")))
    for i in range(4):
        assert (module(np.zeros(width, np.float32)) == i % 2).all()
        assert module.state["r"].tolist() == sorted(range(width), reverse=i % 2 == 0)


def test_the_old_value_is_seen_by_all_that_read_it() -> None:
    """The new value is known before a product reads the old one."""
    b = GraphBuilder()
    s, x = b.state("s", np.eye(16, dtype=np.float32)), b.input("x", (16, 16))
    b.update("s", b.add("add", s, x))
    y = b.add("matmul", b.add("softmax", b.add("matmul", x, x)), s, name="y")
    module, rng, now = bn.compile(b.build(y)), np.random.default_rng(0), np.eye(16, dtype=np.float32)
    for _ in range(3):
        a = rng.normal(size=(16, 16)).astype(np.float32)
        p = np.exp(a @ a - (a @ a).max(-1, keepdims=True))
        np.testing.assert_allclose(module(a), p / p.sum(-1, keepdims=True) @ now, atol=2e-3)
        now = now + a
    np.testing.assert_allclose(module.state["s"], now, rtol=1e-5)


def test_a_state_behind_an_opaque_operator() -> None:
    b = GraphBuilder()
    best, x = b.state("best", np.full(4, -np.inf, np.float32)), b.input("x", (4,))
    values, _ = b.add_many("top_k", b.add("concat", best, x, axis=0), k=4)
    b.update("best", values)
    module, seen = bn.compile(b.build()), []
    for x_ in samples(6, 4):
        seen += x_.tolist()
        module(x_)
        assert module.state["best"].tolist() == sorted(seen, reverse=True)[:4]
    assert any(row.kernel.startswith("top_k_") for row in module.profile(x_, repeat=1))


def test_a_cache_of_keys_grows_by_a_row_a_call() -> None:
    """rows = where(position == count, x, rows): the form of a key cache."""
    b = GraphBuilder()
    rows, count = b.state("rows", np.zeros((6, 4), np.float32)), b.state("count", COUNT)
    here = b.add("equal", b.constant(np.arange(6).reshape(6, 1)), count)
    b.update("rows", b.add("where", here, b.input("x", (1, 4)), rows))
    b.update("count", b.add("add", count, b.constant(np.ones(1, np.int64))))
    module = bn.compile(b.build())
    assert not any(isinstance(step, CopyStep) for step in module.executable.steps)
    given = [np.full((1, 4), i + 1, np.float32) for i in range(4)]
    for x in given:
        module(x)
    assert np.array_equal(module.state["rows"], np.concatenate([*given, np.zeros((2, 4), np.float32)]))


def test_states_are_read_and_replaced_by_name() -> None:
    module = bn.compile(running_mean())
    module.state["count"] = np.array([7])
    module.state["count"][0] = 9  # a copy
    assert module.state["count"] == [7] and list(module.state) == ["count", "mean"] and len(module.state) == 2
    with pytest.raises(InputError, match="state: found 'other', which is unknown; allowed: count, mean"):
        module.state["other"] = COUNT
    with pytest.raises(UnknownStateError, match=r"^state: found 'other', which is unknown; allowed: count, mean$"):
        module.state["other"]
    assert "other" not in module.state and module.state.get("other") is None
    with pytest.raises(InputError, match=r"state 'mean' is float64\[3\], allowed: float32\[37\]"):
        module.state["mean"] = np.zeros(3)


def test_copies_have_a_state_of_their_own() -> None:
    module, x = bn.compile(running_mean()), samples(1)[0]
    module(x)
    twin = copy.copy(module)
    twin(x)
    assert module.state["count"] == [1] and twin.state["count"] == [2]


def test_calls_from_threads_lose_no_update() -> None:
    module, x = bn.compile(running_mean()), samples(1)[0]
    threads = [threading.Thread(target=lambda: [module(x) for _ in range(200)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert module.state["count"] == [800]


def test_a_model_with_state_is_checked_at_its_initial_state() -> None:
    assert all(row.ok for row in check(running_mean(), {"x": samples(1)[0]}))


def test_a_call_in_the_middle_of_a_call_is_refused() -> None:
    module, x = bn.compile(running_mean()), samples(1)[0]
    run, errors = module._quick._native, []

    def interrupted(*args: object) -> object:
        with pytest.raises(InputError, match="a model with state is called in the middle of a call") as found:
            module(x)
        errors.append(found)
        return run(*args)

    module._quick._native = interrupted
    module(x)
    assert errors and module.state["count"] == [1]


def test_wrong_states_are_refused() -> None:
    b = GraphBuilder()
    b.state("s", np.zeros(3, np.float32))
    with pytest.raises(ModelError, match=r"state 's': found 'x', float32\[2\]; allowed: float32\[3\]"):
        b.update("s", b.input("x", (2,)))
    with pytest.raises(ModelError, match="state 'x' is not declared, or updated twice"):
        b.update("x", "s")
    graph = running_mean()
    verify(graph)
    graph.states["mean"].initial.resize(3, refcheck=False)
    with pytest.raises(VerificationError, match="state 'mean' is no input, or its value before or after a call"):
        verify(graph)
    with pytest.raises(UnsupportedOperator, match="to_onnx: ONNX has no states: count, mean"):
        to_onnx(running_mean())
