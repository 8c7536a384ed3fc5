"""`burnish plan paging`: what a call moves between main memory and a file, planned and then executed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from burnish.base.sizes import parse_budget, text_of
from burnish.cli.compile_options import CompileOptions
from burnish.cli.output import check_input, print_json, print_table
from burnish.driver.api import compile as compile_model
from burnish.driver.paged import PagedModule, compile_paged
from burnish.errors import ParameterError
from burnish.measure.samples import module_inputs
from burnish.memory.swap import PLANNERS
from burnish.runtime.module import Module


def plan(model: Path, memory_budget: Sequence[str], options: CompileOptions) -> None:
    """Prints what calls within budgets move. Raises ParameterError for a budget in which a kernel does not fit."""
    check_input(model, "model")
    limits = [parse_budget("--memory-budget", text) for text in memory_budget]
    given = options.arguments
    common: dict[str, Any] = {key: given[key] for key in ("shapes", "fix")}
    common |= {"target": options.target, "exact": options.exact, "threads": options.threads}
    common |= {"cache_dir": options.cache_dir}
    whole = compile_model(str(model), rewrite=False, **common)
    if not isinstance(whole, Module):
        raise ParameterError(f"plan paging: found {model}, which is compiled in segments; allowed: one static graph")
    inputs = module_inputs(whole)
    wanted = _results(whole(**inputs))
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    for limit in limits:
        try:
            with compile_paged(str(model), limit, **common) as paged:
                if not isinstance(paged, PagedModule):
                    raise ParameterError("plan paging: found open dimensions; allowed: numbers, by --dim")
                rows.append(_row(paged, limit, inputs, wanted))
        except ParameterError as error:
            refused.append(str(error))
    if options.as_json:
        print_json({"model": str(model), "memory": whole.memory, "budgets": rows, "refused": refused})
    elif rows:
        print_table(_table(rows))
    if refused:
        raise ParameterError(refused[0])


def _results(found: Any) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else (found,)


def _row(paged: PagedModule, limit: int, inputs: dict[str, np.ndarray], wanted: Sequence[np.ndarray]) -> dict[str, Any]:
    began = perf_counter()
    found = _results(paged(**inputs))
    seconds = perf_counter() - began
    assert paged.moved is not None
    same = all(np.array_equal(f, w, equal_nan=f.dtype.kind == "f") for f, w in zip(found, wanted, strict=True))
    others = {name: make(paged.problem, limit).moved for name, make in PLANNERS.items() if name != "best"}
    return {
        "budget": limit, "least": paged.problem.least_capacity, "tensors": sum(paged.problem.nbytes.values()),
        **asdict(paged.moved), "proven": paged.plan.proven, "seconds": seconds, "same": same, "others": others,
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="a call in two memories")
    others = [name for name in PLANNERS if name != "best"]
    for heading in ("main memory", "peak", "loaded", "stored", *(f"{name} moves" for name in others), "answer"):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = [row[key] for key in ("budget", "peak", "loaded", "stored")] + [
            row["others"][name] for name in others
        ]
        table.add_row(*map(text_of, numbers), "same" if row["same"] else "differs")
    return table
