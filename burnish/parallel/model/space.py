"""Search space of strategies: the configurations of every operation on a machine, numbered (thesis-jia section 3.3).

Degrees are powers of two, and those with a factor of a node's devices; parts go to consecutive devices, or to every
n-th, with samples or the other axes on neighbouring devices. Operations of equal signature share their configurations.
Where results may be recomputed, each configuration has a twin that does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from burnish.errors import PlanError
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import MAX_AXES, Operation, OperationGraph
from burnish.parallel.model.strategy import Configuration, Strategy

MAX_ATTRIBUTE = 8  # parts along one axis that is no sample and no parameter: halos outgrow the parts


class StrategySpace:
    """Configurations by number. Those of operation i are ``first[i]`` to ``first[i] + count[i] - 1``.

    ``strided``: also devices that are not neighbours, and the two orders of them. ``also``: strategies whose
    configurations are added. ``allowed``: whether an operation may have a configuration (default: each), for spaces of
    fewer dimensions. ``recompute``: the second half of each operation's configurations are the first ones with
    their results recomputed; ``plain`` is the number of the others. A strategy is ``choice``: int32, a number for each
    operation.
    """

    def __init__(
        self,
        model: OperationGraph,
        machine: DeviceCluster,
        strided: bool = True,
        also: Iterable[Strategy] = (),
        allowed: Callable[[Operation, Configuration], bool] | None = None,
        recompute: bool = False,
    ) -> None:
        self.model, self.machine, self.recompute = model, machine, recompute
        size = machine.size
        self.levels = allowed_degrees(machine)
        wanted: dict[int, list[Configuration]] = {}
        for strategy in also:
            for i, op in enumerate(model.operations):
                wanted.setdefault(i, []).append(strategy.configurations[op.name])
        self._numbers: list[dict[Configuration, int]] = []
        self._all: list[Configuration] = []
        self.kind: list[int] = []  # of every operation: which of the classes of equal signature
        classes: dict[str, int] = {}
        self.classes: list[list[int]] = []
        for i, op in enumerate(model.operations):
            number = classes.setdefault(op.signature, len(classes))
            self.kind.append(number)
            if number == len(self.classes):
                self.classes.append([])
            self.classes[number].append(i)
        starts = []
        for members in self.classes:
            op = model.operations[members[0]]
            found = dict.fromkeys(
                c for c in configurations(op, size, self.levels, strided) if allowed is None or allowed(op, c)
            )
            for i in members:
                for chosen in wanted.get(i, ()):
                    chosen.check(model.operations[i], machine)
                    found.setdefault(replace(chosen, recompute=False))
            if not found:
                raise PlanError(f"operation '{op.name}': no configuration is allowed; allowed: one at least")
            if recompute:
                found |= dict.fromkeys([replace(chosen, recompute=True) for chosen in found])
            starts.append(len(self._all))
            self._numbers.append({chosen: starts[-1] + n for n, chosen in enumerate(found)})
            self._all += found
        self.levels = sorted({*self.levels, *(d for c in self._all for d in c.degrees)})
        self.first = np.array([starts[k] for k in self.kind], np.int32)
        self.count = np.array([len(self._numbers[k]) for k in self.kind], np.int32)
        self.plain = self.count // 2 if recompute else self.count

    @property
    def size(self) -> int:
        """Number of configurations of all classes."""
        return len(self._all)

    @property
    def log10_size(self) -> float:
        """Decimal logarithm of the number of strategies."""
        return float(np.log10(self.count.astype(np.float64)).sum())

    def configuration(self, number: int) -> Configuration:
        """A configuration by its number."""
        return self._all[number]

    def choice(self, strategy: Strategy) -> np.ndarray:
        """A strategy as numbers. Raises PlanError where it uses a configuration that is not in the space."""
        strategy.check(self.model, self.machine)
        numbers = []
        for i, op in enumerate(self.model.operations):
            chosen = strategy.configurations[op.name]
            number = self._numbers[self.kind[i]].get(chosen)
            if number is None:
                raise PlanError(
                    f"operation '{op.name}': degrees {list(chosen.degrees)} on {list(chosen.devices)} are not in the "
                    "space; allowed: its configurations, or Space(..., also=[strategy])"
                )
            numbers.append(number)
        return np.array(numbers, np.int32)

    def strategy(self, choice: Sequence[int] | np.ndarray) -> Strategy:
        """Numbers as a strategy."""
        names = (op.name for op in self.model.operations)
        return Strategy({name: self._all[int(c)] for name, c in zip(names, choice, strict=True)})

    def random(self, seed: int) -> np.ndarray:
        """A strategy drawn uniformly."""
        draws = np.random.default_rng(seed).integers(0, self.count)
        return (self.first + draws).astype(np.int32)


def allowed_degrees(machine: DeviceCluster) -> list[int]:
    """Powers of two, times the odd factors of a node's number of devices and of the number of nodes."""
    size = machine.size
    odd = {1}
    for n in (len(machine.nodes), *map(len, machine.nodes)):
        n //= n & -n
        odd |= {f * g for f in odd for g in (d for d in range(1, n + 1) if n % d == 0)}
    return sorted({f << s for f in odd for s in range(size.bit_length()) if f << s <= size})


def configurations(op: Operation, size: int, levels: Sequence[int], strided: bool) -> Iterable[Configuration]:
    """Configurations of an operation on up to ``size`` devices."""
    if len(op.axes) > MAX_AXES:
        raise PlanError(f"operation '{op.name}': {len(op.axes)} axes; allowed: {MAX_AXES}")
    choices = []
    for axis in op.axes:
        most = min(axis.extent, size, MAX_ATTRIBUTE if axis.role == "attribute" and axis.dim > 1 else size)
        choices.append([d for d in levels if d <= most])
    for degrees in product(*choices):
        n = prod(degrees)
        if n > size:
            continue
        places = [(first, 1) for first in range(0, size - n + 1, n)]
        if strided and 1 < n < size:
            step = size // n
            places += [(first, step) for first in range(step)]
        orders = (False, True) if strided and degrees and 1 < degrees[0] < n else (False,)
        for (first, step), turned in product(dict.fromkeys(places), orders):
            yield Configuration(degrees, _devices(n, degrees[0] if degrees else 1, first, step, turned))


def _devices(n: int, samples: int, first: int, step: int, turned: bool) -> tuple[int, ...]:
    """Devices of n tasks; ``turned``: tasks of the same part of everything else, but other samples, are neighbours."""
    order = range(n)
    if turned:
        rest = n // samples
        return tuple(first + step * ((k % rest) * samples + k // rest) for k in order)
    return tuple(first + step * k for k in order)
