"""`burnish boost inspect`: what is in a model file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from burnish.boost import Model, importance, render
from burnish.cli.output import check_input, print_json, print_table

KINDS = ("gain", "cover", "weight")


def run(path: Path, trees: Sequence[int], most: int, as_json: bool) -> None:
    """Prints the model's parameters, the importance of features, and the trees asked for."""
    check_input(path, "model")
    model = Model.load(path)
    texts = {number: render.text(model, number) for number in trees}
    summary = summary_of(model)
    scores = {kind: importance.importance_by_name(model, kind) for kind in KINDS}
    if as_json:
        print_json({"model": str(path), **summary, "importance": scores, "trees_text": texts})
        return
    for key, value in summary.items():
        print(f"{key}: {value}")
    if most and scores["gain"]:
        print_table(importance_table(scores, most))
    for number, text in texts.items():
        print(f"\ntree {number}:\n{text}")


def summary_of(model: Model) -> dict[str, Any]:
    """A model's parameters and its size."""
    leaves = [tree.leaves for tree in model.trees]
    return {
        "objective": model.objective,
        "objective_parameters": dict(model.objective_parameters),
        "rounds": model.rounds,
        "best_iteration": model.best_iteration,
        "outputs": model.outputs,
        "base_score": model.base_score.tolist(),
        "features": model.features,
        "categorical_features": sum(values is not None for values in model.categories),
        "category_policy": model.category_policy,
        "trees": len(model.trees),
        "leaves": sum(leaves),
        "most_leaves": max(leaves, default=0),
        "attributes": dict(model.attributes),
    }


def importance_table(scores: dict[str, dict[str, float]], most: int) -> Table:
    """The features that gain most, with their share of the total gain."""
    gains = scores["gain"]
    table = Table(title=f"importance: {min(most, len(gains))} of {len(gains)} features that trees test")
    table.add_column("feature")
    for heading in ("gain", "cover", "nodes", "share of gain"):
        table.add_column(heading, justify="right")
    totals = {name: gain * scores["weight"][name] for name, gain in gains.items()}
    whole = sum(totals.values()) or 1.0
    for name, gain in list(gains.items())[:most]:
        cover, nodes = scores["cover"][name], int(scores["weight"][name])
        table.add_row(name, f"{gain:.4g}", f"{cover:.4g}", str(nodes), f"{totals[name] / whole:.1%}")
    return table
