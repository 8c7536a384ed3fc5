"""Virtual threads become one stream with tokens, as in Figure 4.8 of thesis-chen, and compute what they computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Load, Value, Var, wrap
from burnish.loops.interpret import run_program
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Seq, Stmt, Store, seq, store, walk_stmt
from burnish.lower.virtual_threads import interleave, lower_virtual_threads, thread_bodies
from burnish.machines.decoupled import POP, PUSH, Decoupled, pop, push, token_unit

A, C = Buffer("a", (3, 2, 4)), Buffer("c", (2, 4))
NEAR, SUM = Buffer("near", (4,), scope="local"), Buffer("sum", (4,), scope="shared")


def unit_of(s: Stmt) -> str:
    assert isinstance(s, (Store, Intrinsic))
    scope = s.buffer.scope if isinstance(s, Store) else s.operands[0].buffer.scope
    return {"local": "ld", "shared": "ex", "global": "st"}[scope]


CHAIN = frozenset({("ld", "ex"), ("ex", "ld"), ("ex", "st"), ("st", "ex")})
MACHINE = Decoupled(unit_of, CHAIN)
NOTHING = {PUSH: lambda operands, attrs: None, POP: lambda operands, attrs: None}


def load(buffer: Buffer, *index: Value) -> Load:
    return Load(buffer, tuple(wrap(i) for i in index))


def over(var: str, statement: Stmt, extent: int = 4) -> Stmt:
    return For(var, extent, "serial", statement)


def body(tx: Var) -> Stmt:
    """The example of the figure: sums of the columns of a thread, a row at a time."""
    i, k = Var("i"), Var("k")
    fetch = over("i", store(NEAR, (i,), load(A, k, tx, i)))
    add = over("i", store(SUM, (i,), load(NEAR, i), "sum"))
    steps = For("k", 3, "serial", Alloc(NEAR, seq(fetch, add)))
    clear = over("i", store(SUM, (i,), 0.0))
    return Alloc(SUM, seq(clear, steps, over("i", store(C, (tx, i), load(SUM, i)))))


def threaded(kind: str = "vthread") -> LoopProgram:
    return LoopProgram("columns", (A, C), For("tx", 2, kind, body(Var("tx"))))


def words(s: Stmt) -> list[str]:
    """Loops, tokens as ``unit<other`` and ``unit>other``, and the buffers of other statements, one a line."""
    lines = []
    for line in str(s).splitlines():
        line = re.sub(r"pop_token\(unit=(\w+), from=(\w+)\)", r"\1<\2", line)
        line = re.sub(r"push_token\(unit=(\w+), to=(\w+)\)", r"\1>\2", line)
        line = re.sub(r"(\w+(\.t\d)?)\[.*", r"\1", line)
        if "for i" not in line and "alloc" not in line:
            lines.append(line.strip() if "for" not in line else line.strip().rstrip(":"))
    return lines


def test_one_thread_waits_for_its_units() -> None:
    """The second picture of the figure: a token each for what is loaded, and for room to load more."""
    program = LoopProgram("columns", (A, C), body(Var("tx")))
    lowered = lower_virtual_threads(program, MACHINE)
    assert words(lowered.body) == [
        "st>ex", "ex<st", "sum", "ex>ld", "for k in 3", "ld<ex", "near", "ld>ex", "ex<ld", "sum", "ex>ld", "ld<ex",
        "ex>st", "st<ex", "c", "st>ex", "ex<st",
    ]  # fmt: skip


def test_two_threads_take_turns() -> None:
    """The third picture: in each loop what a unit does for one thread, then for the other."""
    lowered = lower_virtual_threads(threaded(), MACHINE)
    inside = next(s for s in walk_stmt(lowered.body) if isinstance(s, For) and s.var == "k")
    assert words(inside.body) == [
        "ld<ex", "near.t0", "ld>ex", "ld<ex", "near.t1", "ld>ex",
        "ex<ld", "sum.t0", "ex>ld", "ex<ld", "sum.t1", "ex>ld",
    ]  # fmt: skip


def test_the_stream_computes_what_the_threads_computed() -> None:
    a = np.random.default_rng(0).standard_normal((3, 2, 4)).astype("float32")
    expected = run_program(threaded("serial"), {"a": a})["c"]
    found = run_program(lower_virtual_threads(threaded(), MACHINE), {"a": a}, NOTHING)["c"]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, a.sum(0), rtol=1e-6)


def balance(program: LoopProgram) -> dict[tuple[str, str], int]:
    """Tokens left in each queue when all statements have run in order. Fails where one is taken that is not there."""
    left: dict[tuple[str, str], int] = {}

    def give(operands: Sequence[object], attrs: Mapping[str, int | str]) -> None:
        queue = str(attrs["unit"]), str(attrs["to"])
        left[queue] = left.get(queue, 0) + 1

    def take(operands: Sequence[object], attrs: Mapping[str, int | str]) -> None:
        queue = str(attrs["from"]), str(attrs["unit"])
        left[queue] = left.get(queue, 0) - 1
        assert left[queue] >= 0, queue

    run_program(program, {"a": np.zeros((3, 2, 4), "float32")}, {PUSH: give, POP: take})  # type: ignore[dict-item]
    return left


def test_every_token_that_is_given_is_taken() -> None:
    for program in (threaded(), LoopProgram("columns", (A, C), For("tx", 2, "serial", body(Var("tx"))))):
        found = balance(lower_virtual_threads(program, MACHINE))
        assert set(found) == CHAIN and not any(found.values())


def test_channels_of_one_pair_of_units_are_nested() -> None:
    """What is loaded once for an outer loop keeps its token while the inner loop's come and go."""
    i, far = Var("i"), Buffer("far", (4,), scope="local")
    keep = over("i", store(far, (i,), load(A, 0, 0, i)))
    fetch = over("i", store(NEAR, (i,), load(A, Var("k"), 1, i)))
    add = over("i", store(SUM, (i,), load(NEAR, i) + load(far, i)))
    inner = For("k", 3, "serial", Alloc(NEAR, seq(fetch, add)))
    outer = For("n", 2, "serial", Alloc(far, seq(keep, inner)))
    first = over("i", store(C, (0, i), load(SUM, i)))
    rest = over("i", store(C, (1, i), load(SUM, i)))
    program = LoopProgram("nested", (A, C), Alloc(SUM, seq(outer, first, rest)))
    lowered = lower_virtual_threads(program, MACHINE)
    loop = next(s for s in walk_stmt(lowered.body) if isinstance(s, For) and s.var == "n")
    assert words(loop.body) == [
        "ld<ex", "far", "ld>ex", "ex<ld", "ex>ld", "for k in 3", "ld<ex", "near", "ld>ex", "ex<ld", "sum", "ex>ld",
        "ld<ex", "ex>ld",
    ]  # fmt: skip
    assert not any(balance(lowered).values())


def test_threads_are_programs_of_their_own() -> None:
    loop = threaded().body
    assert isinstance(loop, For)
    first, second = thread_bodies(loop)
    assert "near.t0" in str(first) and "near.t1" in str(second) and "tx" not in str(first)
    assert words(interleave([first], unit_of)) == words(first)


def test_conditions_go_inwards() -> None:
    """A thread that has less to do than another leaves out its own statements only."""
    i = Var("i")

    def thread(number: int) -> Stmt:
        add = over("i", store(SUM, (i,), load(NEAR, i)))
        steps = seq(over("i", store(NEAR, (i,), load(A, 0, number, i))), add)
        return For("k", 3, "serial", If(Var("k") < 2 + number, steps))

    made = interleave([thread(0), thread(1)], unit_of)
    assert isinstance(made, For) and isinstance(made.body, Seq)
    assert [isinstance(s, If) for s in made.body.stmts] == [True] * 4


def test_what_cannot_be_lowered_is_refused_by_name() -> None:
    with pytest.raises(ScheduleError, match="loop 'tx' is inside of 'ty'"):
        lower_virtual_threads(LoopProgram("p", (A, C), For("ty", 2, "vthread", threaded().body)), MACHINE)
    beside = over("i", store(C, (0, Var("i")), load(A, 0, 0, Var("i"))))
    with pytest.raises(ScheduleError, match=r"the statement 'c\[0, i\] = .*' is in none; allowed: all in threads"):
        lower_virtual_threads(LoopProgram("p", (A, C), seq(threaded().body, beside)), MACHINE)
    with pytest.raises(ScheduleError, match=r"buffer 'sum\.t0': there is no queue from ex to st, st to ex"):
        lower_virtual_threads(threaded(), Decoupled(unit_of, CHAIN - {("ex", "st"), ("st", "ex")}))
    i = Var("i")
    fetch = over("i", store(NEAR, (i,), load(A, 0, 0, i)))
    add = over("i", store(SUM, (i,), load(NEAR, i)))
    twice = Alloc(SUM, Alloc(NEAR, seq(fetch, add, fetch)))
    with pytest.raises(ScheduleError, match="buffer 'near': ld writes it again behind its use by ex"):
        lower_virtual_threads(LoopProgram("p", (A, C), twice), MACHINE)


def test_tokens_name_their_unit() -> None:
    assert (token_unit(push("ld", "ex")), token_unit(pop("ex", "ld"))) == ("ld", "ex")
    assert token_unit(store(C, (0, 0), load(A, 0, 0, 0))) is None
