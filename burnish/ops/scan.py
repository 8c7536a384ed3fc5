"""Scan: a body of nodes applied to one element of sequences after the other, with states in between (a recurrence)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from burnish.loops.evaluate import evaluate
from burnish.loops.sizes import least
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Body, Ints, Operator, operator, require

NAME = "scan"


@dataclass(frozen=True)
class Operands:
    """Scan operands by role: first values of states, sequences, and what every round reads alike."""

    states: tuple[Any, ...]
    sequences: tuple[Any, ...]
    fixed: tuple[Any, ...]

    @classmethod
    def of(cls, operands: Sequence[Any], states: int, sequences: int) -> Operands:
        """Operands in their order."""
        end = states + sequences
        return cls(tuple(operands[:states]), tuple(operands[states:end]), tuple(operands[end:]))


def scan_over(operators: Mapping[str, Operator]) -> Operator:
    """The operator ``scan``, whose bodies are made of ``operators``."""

    def shapes(
        name: str, *xs: Tensor, body: Body, states: int, sequences: int, every: Ints, reverse: bool = False
    ) -> tuple[Tensor, ...]:
        """Rounds of ``body``, as many as the sequences are long, from their begin or, with ``reverse``, from their end.

        Operands: the first values of ``states`` states, ``sequences`` tensors [T, ...] of which each round reads the
        next [...], and others, which all rounds read. The body is nodes (operator, inputs, outputs, attributes as
        pairs) and the names of its results; it knows the operands as "0", "1", … Result i of a round is what state i is
        in the next. The scan's results are those of the last round; of those in ``every`` that of each round, [T, ...],
        where it has read.
        """
        own = Operands.of(xs, states, sequences)
        _check(own, body, states, sequences, every, len(xs))
        rounds = own.sequences[0].shape[0]
        given = [placeholder(t.shape, t.dtype, t.name) for t in own.states]
        given += [placeholder(t.shape[1:], t.dtype, t.name) for t in own.sequences]
        values = {f"{i}": t for i, t in enumerate([*given, *own.fixed])}
        results = typed_body(operators, body, values)
        for i, (state, result) in enumerate(zip(own.states, results, strict=False)):
            found, wanted = (f"{t.dtype}{list(t.shape)}" for t in (result, state))
            require(found == wanted, f"attribute 'body', result {i}", found, f"{wanted}, as state {i}")
        return tuple(
            placeholder((rounds, *t.shape) if i in every else t.shape, t.dtype, f"{name}.{i}")
            for i, t in enumerate(results)
        )

    def compute(
        *xs: np.ndarray, body: Body, states: int, sequences: int, every: Ints, reverse: bool
    ) -> tuple[np.ndarray, ...]:
        own = Operands.of(xs, states, sequences)
        rounds = len(own.sequences[0])
        now: Sequence[np.ndarray] = own.states
        found: list[list[np.ndarray]] = [[] for _ in body[1]]
        for t in reversed(range(rounds)) if reverse else range(rounds):
            given = (*now, *(x[t] for x in own.sequences), *own.fixed)
            results = computed_body(operators, body, {f"{i}": value for i, value in enumerate(given)})
            now = results[:states]
            for kept, result in zip(found, results, strict=True):
                kept.append(result)
        return tuple(
            np.stack(kept[::-1] if reverse else kept) if i in every else kept[-1] for i, kept in enumerate(found)
        )

    shapes.__name__ = NAME
    return replace(operator(shapes), extern=compute, rounds=True)


def _check(own: Operands, body: Body, states: int, sequences: int, every: Ints, count: int) -> None:
    require(sequences >= 1 and states >= 0, "attribute 'sequences'", sequences, "1 or more, and 0 or more states")
    require(count >= states + sequences, "inputs", f"{count} tensors", f"{states + sequences} or more")
    lengths = {t.shape[0] if t.shape else 0 for t in own.sequences}
    require(len(lengths) == 1, "inputs, sequences", f"lengths {[str(n) for n in lengths]}", "one length of all")
    require(least(*lengths) >= 1, "inputs, sequences", f"length {next(iter(lengths))}", "1 or more")
    results = body[1]
    require(len(results) >= max(states, 1), "attribute 'body'", f"{len(results)} results", f"{states} states, or more")
    made = {name for node in body[0] for name in node[2]}
    require({*results} <= made, "attribute 'body', results", list(results), f"results of its nodes: {sorted(made)}")
    require(len({*results}) == len(results), "attribute 'body', results", list(results), "each once")
    rest = set(range(states, len(results)))
    require(rest <= {*every} <= {*range(len(results))}, "attribute 'every'", list(every), f"{sorted(rest)}, and states")


def _operator_of(operators: Mapping[str, Operator], name: str) -> Operator:
    require(name in operators, "attribute 'body'", f"operator '{name}'", "operators of graphs")
    return operators[name]


def typed_body(operators: Mapping[str, Operator], body: Body, values: dict[str, Tensor]) -> list[Tensor]:
    """The results of a body as placeholders, from those of its operands."""
    for op, inputs, outputs, attrs in body[0]:
        unknown = [name for name in inputs if name not in values]
        require(not unknown, "attribute 'body'", f"inputs {unknown} of '{op}'", "operands, and results before it")
        types = _operator_of(operators, op).infer([(values[n].shape, values[n].dtype) for n in inputs], dict(attrs))
        values |= {n: placeholder(s, d, n) for n, (s, d) in zip(outputs, types, strict=True)}
    return [values[name] for name in body[1]]


def computed_body(operators: Mapping[str, Operator], body: Body, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a body, by the definitions."""
    for op, inputs, outputs, attrs in body[0]:
        own, arrays = operators[op], [values[name] for name in inputs]
        if own.extern is not None:
            found = own.extern(*arrays, **own.complete(dict(attrs)))
            results = found if isinstance(found, tuple) else (found,)
        else:
            tensors = [placeholder(a.shape, str(a.dtype), f"x{i}") for i, a in enumerate(arrays)]
            made = own.define("y", tensors, dict(attrs))
            results = tuple(evaluate(made, {t.name: a for t, a in zip(tensors, arrays, strict=True)}))
        values |= dict(zip(outputs, results, strict=True))
    return [values[name] for name in body[1]]
