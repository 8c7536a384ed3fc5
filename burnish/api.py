"""The public door of the compiler: any model in, a callable module out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.arrange import DEFAULTS
from burnish.compiler import Progress, import_graph, link, lower_model
from burnish.graph.align import align_parts
from burnish.rewrite.objective import Objective
from burnish.rewriting import rewrite_model, shipped_rules
from burnish.runtime.module import Module
from burnish.runtime.pool import available_cores
from burnish.target import target as find_target
from burnish.trees import compile_trees, is_boosted

if TYPE_CHECKING:
    from burnish.tune.session import Tune


def compile(
    model: Any,
    *,
    target: str = "cpu",
    threads: int | None = None,
    exact: bool = False,
    rewrite: bool | Objective = True,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    tune: Tune | None = None,
    records: str | Path | None = None,
) -> Module:
    """Compiles ``model`` into a callable module: an ONNX file or ``ModelProto``, a :class:`Graph`, or boosted trees.

    ``threads``: threads it will run on (default: one a core). ``exact``: no transformation that changes rounding beyond
    re-association. ``rewrite``: look for half a second for an equal graph that should be faster, and take it where it
    is measured to be; the module's ``rewrites`` tell. An :class:`Objective` says what else shall be less, and how much
    memory the model may take. ``shapes``: extents of inputs the model leaves open.
    ``progress(stage, done, total)`` is called as work goes on. ``records``: a file of tuning records; kernels that won
    in them are used. ``tune``: how long to look for faster kernels first, which adds to the records (by default
    "records.jsonl"); a model that is not faster as a whole is compiled as without. Raises ModelError,
    UnsupportedOperator or TargetError before any work is lost, and ParameterError for a limit of memory not met.
    """
    machine = find_target(target)
    if is_boosted(model):
        return Module(compile_trees(model, machine, cache_dir, progress), threads)
    graph = import_graph(model, shapes)
    choices = DEFAULTS
    if records is not None and tune is None:
        from burnish.tune.choices import recorded_choices, runs_cold
        from burnish.tune.records import Records

        cold = runs_cold(graph, machine)
        choices = recorded_choices(Records(records), machine, threads or available_cores(), cold)
    if rewrite:
        chosen = rewrite_model(
            graph, shipped_rules(), target=machine, threads=threads, exact=exact, cache_dir=cache_dir,
            progress=progress, choices=choices, objective=rewrite if isinstance(rewrite, Objective) else None,
        )  # fmt: skip
        if tune is None:
            return chosen.module
        graph = chosen.graph if chosen.graph is graph else align_parts(chosen.graph, machine.lanes)
    if tune is not None:
        # The tuner takes a second to import, with its boosted trees, which no other compilation should wait for.
        from burnish.tuning import tune_model

        path = records or "records.jsonl"
        return tune_model(
            graph, tune, path, target=machine, threads=threads, exact=exact, cache_dir=cache_dir, progress=progress
        ).module
    return Module(link(lower_model(graph, machine, exact, cache_dir, progress, choices)), threads)
