"""Control flow that values decide: one of two bodies (branch), and a body again and again (loop).

Bodies are nodes (operator, inputs, outputs, attributes as pairs) and the names of their results, as those of ``scan``;
they know the operands as "0", "1", …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Body, Operator, Refused, differentiated, operator, require
from burnish.ops.scan import computed_body, typed_body

BRANCH, LOOP = "branch", "loop"
ENDLESS = (1 << 63) - 1  # the limit of a loop that has none


def branch_over(operators: Mapping[str, Operator]) -> Operator:
    """The operator ``branch``, whose bodies are made of ``operators``."""

    def shapes(name: str, condition: Tensor, *xs: Tensor, then: Body, other: Body) -> tuple[Tensor, ...]:
        """The results of ``then`` where ``condition`` (bool, no dimensions) is true, else those of ``other``.

        Both bodies know the condition as "0" and the other operands as "1", "2", … and have results of the same types.
        """
        _require_type(condition, "condition", "bool")
        values = {f"{i}": t for i, t in enumerate((condition, *xs))}
        found = []
        for body, what in ((then, "then"), (other, "other")):
            _require_results(body, what)
            found.append(typed_body(operators, body, dict(values)))
        kinds = [[f"{t.dtype}{list(t.shape)}" for t in results] for results in found]
        require(kinds[0] == kinds[1], "attribute 'other'", f"results {kinds[1]}", f"{kinds[0]}, as of 'then'")
        return tuple(placeholder(t.shape, t.dtype, f"{name}.{i}") for i, t in enumerate(found[0]))

    def compute(condition: np.ndarray, *xs: np.ndarray, then: Body, other: Body) -> tuple[np.ndarray, ...]:
        values = {f"{i}": value for i, value in enumerate((condition, *xs))}
        return tuple(computed_body(operators, then if condition else other, values))

    shapes.__name__ = BRANCH
    return _flow(replace(operator(shapes), extern=compute, bodies=("then", "other")))


def loop_over(operators: Mapping[str, Operator]) -> Operator:
    """The operator ``loop``, whose bodies are made of ``operators``."""

    def shapes(
        name: str, limit: Tensor, condition: Tensor, *xs: Tensor, body: Body, states: int, rounds: int = 0
    ) -> tuple[Tensor, ...]:
        """Rounds of ``body`` as long as there were fewer than ``limit`` (int64) and ``condition`` (bool) is true.

        The body knows the number of the round, from 0, as "0", the ``states`` operands behind the condition as "2",
        "3", … and then the others, which all rounds read alike. Its results are the condition of the next round, the
        states of it, and further ones, of which there are none unless it is known that there are ``rounds`` rounds,
        1 or more. The loop's results are the states behind the last round (those given, if there was none), and of
        each further one all rounds', [rounds, ...].
        """
        _require_type(limit, "limit", "int64")
        _require_type(condition, "condition", "bool")
        require(0 <= states <= len(xs), "attribute 'states'", states, f"0 to {len(xs)}, operands behind the condition")
        _require_results(body, "body")
        values = {f"{i}": t for i, t in enumerate((limit, condition, *xs))}
        del values["1"]
        found = typed_body(operators, body, values)
        require(len(found) > states, "attribute 'body'", f"{len(found)} results", f"a condition, {states} states")
        _require_type(found[0], "body', its first result, '", "bool")
        for i, (state, result) in enumerate(zip(xs[:states], found[1:], strict=False)):
            given, wanted = (f"{t.dtype}{list(t.shape)}" for t in (result, state))
            require(given == wanted, f"attribute 'body', result {i + 1}", given, f"{wanted}, as state {i}")
        further = found[1 + states :]
        require(not further or rounds != 0, "attribute 'rounds'", rounds, "1 or more for results of every round")
        kept = [placeholder(t.shape, t.dtype, f"{name}.{i}") for i, t in enumerate(xs[:states])]
        return *kept, *(placeholder((rounds, *t.shape), t.dtype, f"{name}.{i}") for i, t in enumerate(further, states))

    def compute(
        limit: np.ndarray, condition: np.ndarray, *xs: np.ndarray, body: Body, states: int, rounds: int
    ) -> tuple[np.ndarray, ...]:
        del rounds
        going, now, number = bool(condition), list(xs[:states]), 0
        further: list[list[np.ndarray]] = [[] for _ in body[1][1 + states :]]
        while going and number < int(limit):
            given = {f"{i}": value for i, value in enumerate((*now, *xs[states:]), 2)}
            results = computed_body(operators, body, {"0": np.array(number, np.int64), **given})
            going, now, number = bool(results[0]), list(results[1 : 1 + states]), number + 1
            for kept, result in zip(further, results[1 + states :], strict=True):
                kept.append(result)
        return *now, *(np.stack(kept) for kept in further)

    shapes.__name__ = LOOP
    return _flow(replace(operator(shapes), extern=compute, bodies=("body",)))


def _flow(op: Operator) -> Operator:
    return differentiated(Refused("control flow that values decide: there is no gradient through it"))(op)


def _require_type(t: Tensor, what: str, dtype: str) -> None:
    found = f"{t.dtype}{list(t.shape)}"
    require(found == f"{dtype}[]", f"input '{what}'", found, f"{dtype} of no dimensions")


def _require_results(body: Body, what: str) -> None:
    made = {name for node in body[0] for name in node[2]}
    results: Sequence[str] = body[1]
    require({*results} <= made, f"attribute '{what}', results", list(results), f"results of its nodes: {sorted(made)}")
    require(len({*results}) == len(results), f"attribute '{what}', results", list(results), "each once")
