"""Interning: one object for equal nodes, told apart where equal numbers are not the same."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from burnish.loops.expr import Binary, Buffer, Const, Load, Select, Var
from burnish.loops.hashcons import union
from burnish.loops.program import For, Store


def test_equal_nodes_are_one_object() -> None:
    x = Buffer("x", (4,), "float32")
    assert Load(Buffer("x", (4,)), (Var("i") + 1,)) is Load(x, (Binary("+", Var("i"), Const(1)),))
    assert Const(3) is Const(3, "int64") is Const(type="int64", value=3)
    assert x.with_(scope="register").with_(scope="global") is x


def test_equal_numbers_that_differ_stay_apart() -> None:
    assert Const(0.0, "float32") != Const(-0.0, "float32")
    assert Const(1.0, "float32") != Const(1, "float32")
    assert str(Const(True, "bool")) == "True"


def test_copies_are_the_same_object() -> None:
    e = Select(Var("i") < 3, Load(Buffer("x", (4,)), (Var("i"),)), Const(0.0, "float32"))
    assert pickle.loads(pickle.dumps(e)) is copy.deepcopy(e) is e  # noqa: S301
    nest = For("i", 4, "serial", Store(Buffer("y", (4,)), (Var("i"),), e))
    assert copy.deepcopy(nest) == nest
    assert copy.deepcopy(nest).reads == {"x"}


def test_nodes_are_forgotten() -> None:
    Var("nobody holds this")
    gc.collect()
    assert ("nobody holds this",) not in Var._nodes


def test_threads_agree_on_one_object() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: [Var(f"t{k}") + k for k in range(200)], range(8)))
    assert all(a is b for row in made for a, b in zip(row, made[0], strict=True))


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(TypeError):
        Binary("+", Var("i"))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Var(text="i")  # type: ignore[call-arg]


def test_a_union_is_one_of_the_sets_where_that_holds_all() -> None:
    a, b = frozenset("ab"), frozenset("a")
    assert union([a, b]) is a
    assert union([a, frozenset("c")]) == {"a", "b", "c"}
