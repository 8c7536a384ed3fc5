"""Swap problem: steps, the bytes of their tensors, and which of these must lie in slow memory at the end.

A step runs with all that it reads and writes in fast memory. Tensors that no step writes lie in slow memory at first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from burnish.base.sizes import text_of
from burnish.errors import ParameterError, VerificationError
from burnish.graph.graph import Graph
from burnish.memory.lifetimes import LifetimeStep


@dataclass(frozen=True, eq=False)
class SwapProblem:
    """Steps in an order that can run, bytes by tensor, and the ``results``. Made by :func:`swap_problem`.

    ``operators``: for each step the operator that it is a part of, such as one block of its rows.
    """

    steps: tuple[LifetimeStep, ...]
    nbytes: Mapping[str, int]
    results: frozenset[str]
    operators: tuple[int, ...]

    @cached_property
    def producer(self) -> dict[str, int]:
        """Tensor -> the step that writes it; tensors that were there before have none."""
        return {name: i for i, step in enumerate(self.steps) for name in step.writes}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Tensor -> the steps that read it, in order."""
        found: dict[str, list[int]] = {name: [] for name in self.nbytes}
        for i, step in enumerate(self.steps):
            for name in step.reads:
                found[name].append(i)
        return found

    def needs(self, step: int) -> tuple[str, ...]:
        """The tensors that a step reads or writes, each once."""
        return (*self.steps[step].reads, *self.steps[step].writes)

    def own_bytes(self, step: int) -> int:
        """Bytes that a step needs in fast memory while it runs."""
        return sum(self.nbytes[name] for name in self.needs(step))

    @property
    def least_capacity(self) -> int:
        """The smallest fast memory in which every step can run, bytes: no plan needs more, none can do with less."""
        return max((self.own_bytes(i) for i in range(len(self.steps))), default=0)

    def require(self, capacity: int, method: str) -> None:
        """Raises ParameterError if a step does not fit, naming the smallest possible capacity and the step."""
        least = self.least_capacity
        if capacity < least:
            step = max(range(len(self.steps)), key=self.own_bytes)
            raise ParameterError(
                f"memory_budget: found {capacity} bytes ({text_of(capacity)}); allowed: at least {least} bytes "
                f"({text_of(least)}), which step {step} ({', '.join(self.needs(step))}) needs at once ({method})"
            )


def swap_problem(
    steps: Sequence[LifetimeStep], nbytes: Mapping[str, int], results: Collection[str] = (),
    operators: Sequence[int] | None = None,
) -> SwapProblem:  # fmt: skip
    """The problem of ``steps``; an alias step is no step: its output is its first input.

    ``operators``: for each step a number, the same for those that are parts of one; by default each is one by itself.

    Raises VerificationError for a tensor that is read before it is written, is written twice, has no size, or is a
    result that nothing knows.
    """
    home: dict[str, str] = {}
    plain: list[LifetimeStep] = []
    parts: list[int] = []
    written = {name for step in steps if not step.alias for name in step.writes}
    seen: set[str] = set()
    for i, step in enumerate(steps):
        reads = tuple(dict.fromkeys(home.get(name, name) for name in step.reads))
        for name in reads:
            if name in written and name not in seen:
                raise VerificationError(f"swap problem: step {i} reads '{name}' before it is written")
        if step.alias:
            home.update(dict.fromkeys(step.writes, reads[0]))
            continue
        for name in step.writes:
            if name in seen or name in reads:
                raise VerificationError(f"swap problem: step {i} writes '{name}', which is written or read before")
            seen.add(name)
        plain.append(LifetimeStep(reads, step.writes))
        parts.append(i if operators is None else operators[i])
    names = dict.fromkeys(name for step in plain for name in (*step.reads, *step.writes))
    for name in names:
        if nbytes.get(name, -1) < 0:
            raise VerificationError(f"swap problem: tensor '{name}' has {nbytes.get(name, 'no')} bytes; allowed: 0, …")
    wanted = frozenset(home.get(name, name) for name in results)
    if unknown := sorted(wanted - names.keys()):
        raise VerificationError(f"swap problem: results {unknown} are no tensors of the steps")
    return SwapProblem(tuple(plain), {name: nbytes[name] for name in names}, wanted & written, tuple(parts))


def of_graph(graph: Graph) -> SwapProblem:
    """The problem of a graph, a step for each node; outputs are results. Inputs and constants are in slow memory."""
    written = {name for node in graph.nodes for name in node.outputs}
    steps = [LifetimeStep(node.inputs, node.outputs) for node in graph.nodes]
    nbytes = {name: type.nbytes for name, type in graph.types.items()}
    return swap_problem(steps, nbytes, [name for name in graph.outputs if name in written])


def valid_states(problem: SwapProblem) -> Iterator[frozenset[int]]:
    """Valid states: the sets of steps that hold every step whose results a member reads (thesis-jia §4.5), small first.

    They stand for all orders of execution; there may be exponentially many.
    """
    before = [{problem.producer[r] for r in s.reads if r in problem.producer} for s in problem.steps]
    layer = {frozenset[int]()}
    while layer:
        yield from sorted(layer, key=sorted)
        layer = {s | {i} for s in layer for i in range(len(before)) if i not in s and before[i] <= s}


def live_tensors(problem: SwapProblem, state: Collection[int]) -> set[str]:
    """Live tensors A(S): those that steps of ``state`` read or wrote and a step outside of it reads."""
    touched = {name for i in state for name in problem.needs(i)}
    return {name for name in touched if any(i not in state for i in problem.readers[name])}
