"""Report of torch.compile(backend="burnish"): what was compiled, what torch runs, and why."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

MOST_GRAPHS = 1000  # of the latest ones are remembered


@dataclass
class PartReport:
    """One compiled part of a graph: its operators, its kernels, and the seconds that it took to compile."""

    operators: int
    kernels: int
    seconds: float
    sizes: dict[str, int] | None = None  # for which it was compiled alone; None for any, or where all are fixed


@dataclass
class GraphReport:
    """One graph that torch.compile handed over.

    ``parts``: what was compiled. ``eager``: the operators that torch runs, by name and reason. ``direction``: "forward"
    or "backward" of a graph with gradients. ``left``: it is left to torch as a whole. ``specialized``: why open sizes
    are compiled one by one, if they are. ``recompilations``: how often parameters had changed. ``inputs``: parameters
    that changed so often that they became inputs.
    """

    number: int
    operators: int
    direction: str = ""
    left: bool = False
    parts: list[PartReport] = field(default_factory=list)
    eager: Counter[tuple[str, str]] = field(default_factory=Counter)
    specialized: str = ""
    recompilations: int = 0
    inputs: int = 0

    @property
    def training(self) -> bool:
        """Whether the graph has gradients."""
        return bool(self.direction)

    @property
    def whole(self) -> bool:
        """Whether nothing of the graph is left to torch."""
        return not self.left and not self.eager

    def __str__(self) -> str:
        if self.left:
            return f"graph {self.number}: {self.operators} operators, with gradients: torch runs it"
        made = f"{sum(p.kernels for p in self.parts)} kernels in {sum(p.seconds for p in self.parts):.1f} s"
        kind = f" ({self.direction})" if self.direction else ""
        text = [f"graph {self.number}{kind}: {self.operators} operators, {len(self.parts)} compiled parts, {made}"]
        text += [f"  torch runs {count} x {name}: {reason}" for (name, reason), count in self.eager.most_common()]
        text += [f"  compiled for each size: {self.specialized}"] if self.specialized else []
        if self.recompilations:
            text.append(f"  compiled again {self.recompilations} times, as parameters had changed")
        text += [f"  {self.inputs} parameters that change became inputs"] if self.inputs else []
        return "\n".join(text)


class BackendReport(tuple[GraphReport, ...]):
    """The graphs, from the first; its text tells all of them."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no graphs: torch.compile(backend='burnish') has compiled nothing yet"


_graphs: deque[GraphReport] = deque(maxlen=MOST_GRAPHS)


def report() -> BackendReport:
    """Report of what ``torch.compile(backend="burnish")`` compiled in this process, and what it left to torch."""
    return BackendReport(_graphs)


def add_graph(operators: int, direction: str = "", left: bool = False) -> GraphReport:
    """Begins the report of another graph."""
    found = GraphReport(_graphs[-1].number + 1 if _graphs else 1, operators, direction, left)
    _graphs.append(found)
    return found
