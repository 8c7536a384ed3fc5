"""The static estimate of a program's time: vectors once, everything as often as it runs."""

from burnish.loops.expr import Buffer, Call, Load, Var, select
from burnish.loops.program import For, If, LoopProgram, Stmt, seq, store
from burnish.lower.instructions import FUNCTION, instructions

I, J = (Var(n) for n in "ij")  # noqa: E741
X, Y = Buffer("x", (8, 64)), Buffer("y", (8, 64))


def counted(kind: str, body: Stmt, outer: str = "serial") -> tuple[float, bool]:
    return instructions(LoopProgram("p", (X, Y), For("i", 8, outer, For("j", 64, kind, body))), lanes=16)


def test_a_vector_is_one_instruction_and_a_scalar_one_too() -> None:
    copy = store(Y, (I, J), Load(X, (I, J)))
    assert counted("serial", copy) == (8 * 64 * 2, False)
    assert counted("vectorize", copy) == (8 * 4 * 2, False)
    assert counted("vectorize", copy, "parallel") == (8 * 4 * 2, True)


def test_equal_parts_are_computed_once_and_addresses_are_free() -> None:
    x = Load(X, (I, 63 - J))
    assert counted("serial", store(Y, (I, J), (x + 1.0) * (x + 1.0)))[0] == 8 * 64 * (1 + 1 + 1 + 1)


def test_selects_conditions_and_functions_count() -> None:
    x = Load(X, (I, J))
    chain = select(J < 3, x, select(J < 5, x + 1.0, 0.0))
    assert counted("serial", store(Y, (I, J), chain))[0] == 8 * 64 * (2 + 2 + 1 + 1 + 1)
    assert counted("serial", store(Y, (I, J), Call("exp", (x,))))[0] == 8 * 64 * (FUNCTION + 1 + 1)
    assert counted("serial", If(J < 3, store(Y, (I, J), x)))[0] == 8 * 64 * (1 + 2)


def test_a_product_that_is_summed_is_one_instruction_with_the_sum() -> None:
    product = store(Y, (I, J), Load(X, (I, J)) * Load(X, (J, I)), "sum")
    assert counted("serial", seq(product, product))[0] == 2 * 8 * 64 * 3
