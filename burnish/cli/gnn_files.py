"""Work of `burnish gnn infer | partition | info | convert`: graphs and networks of files, applied, cut and shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.files import write_atomic
from burnish.cli.output import begins, check_input, check_output, is_svg, print_answer
from burnish.errors import ParameterError
from burnish.gnn.data.cost import FEATURES, FeatureSums
from burnish.gnn.data.disjoint import union
from burnish.gnn.data.formats import read
from burnish.gnn.data.generators import dataset, ppi_graphs, write_dataset
from burnish.gnn.data.graph import MASKS, Graph
from burnish.gnn.data.partition import Partitioner, equal_edges, equal_vertices
from burnish.gnn.data.store import SUFFIX, GraphFile, load, save
from burnish.gnn.model.losses import scores
from burnish.gnn.model.models import Network
from burnish.gnn.run.feeds import labels_of, mask_of
from burnish.gnn.run.inference import logits_of
from burnish.gnn.run.picture import partition_facts, partition_picture
from burnish.gnn.run.worker_inference import logits_by_workers

GENERATED, PPI = "dataset:", "ppi"


def infer(
    network: Path,
    graph: str,
    output: Path | None,
    memory_budget: str | None,
    workers: int,
    learned: Path | None,
    threads: int | None,
    cache_dir: Path | None,
    as_json: bool,
) -> None:
    """Applies a network to a graph. Raises ParameterError, ModelError, DataError."""
    check_input(network, "network")
    if output is not None and output.suffix not in (".npy", ".csv"):
        raise ParameterError(f"--output: found '{output}'; allowed: a name that ends in .npy or .csv")
    if output is not None:
        check_output(output, inputs=[network], force=True)
    net = Network.load(network)
    source: Graph | Path = Path(graph) if memory_budget and is_file(graph) else graph_of(graph)
    options: dict[str, Any] = {"threads": threads, "cache_dir": cache_dir, "memory_budget": memory_budget}
    if learned is not None and workers == 1:
        raise ParameterError("--learned: found with one worker; allowed: with --workers 2 or more")
    if workers == 1:
        logits = logits_of(net, source, **options)
    else:
        logits = logits_by_workers(net, source, workers, partitioner=_costs(learned), **options)
    if output is not None:
        _write_logits(output, logits)
    labelled = source if isinstance(source, Graph) else None
    found = {} if labelled is None or labelled.labels is None else _scores(labelled, logits)
    answer = {"network": str(net), "vertices": len(logits), "classes": logits.shape[1], "scores": found}
    lines = [f"{net}: {len(logits)} vertices, {logits.shape[1]} classes"]
    for mask, values in found.items():
        lines.append(f"{mask}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    lines += [] if output is None else [f"written to {output}"]
    print_answer(as_json, {**answer, "output": None if output is None else str(output)}, *lines)


def _costs(learned: Path | None) -> Partitioner | None:
    """Partitioner of a file; None without one. Raises ParameterError, DataError."""
    if learned is None:
        return None
    check_input(learned, "--learned")
    return Partitioner.load(learned)


def partition(
    graph: str, workers: int, by: str, learned: Path | None, width: int | None, picture: Path | None, as_json: bool
) -> None:
    """Cuts a graph into ranges. Raises ParameterError, DataError."""
    if by not in ("edges", "vertices"):
        raise ParameterError(f"--by: found '{by}'; allowed: edges, vertices")
    if picture is not None:
        check_output(picture, "--picture", is_ours=is_svg)
    csr = graph_of(graph).csr
    costs, sums = _costs(learned), None
    if costs is not None:
        by, sums = "learned", costs.features(csr)
        cuts = costs.cuts(sums, workers)
    else:
        cuts = equal_edges(csr, workers) if by == "edges" else equal_vertices(csr.rows, workers)
    facts: list[dict[str, Any]] = [dict(each) for each in partition_facts(csr, cuts.tolist())]
    if width is not None:
        for fact, x in zip(facts, FeatureSums.of(csr, width).between(cuts).tolist(), strict=True):
            fact["features"] = dict(zip(FEATURES, x, strict=True))
    if costs is not None and sums is not None:
        for fact, seconds in zip(facts, costs.predict(sums, cuts).sum(axis=0).tolist(), strict=True):
            fact["seconds"] = seconds
    if picture is not None:
        drawn = partition_picture(partition_facts(csr, cuts.tolist())).replace(
            "<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1
        )
        write_atomic(picture, [drawn.encode()])
    lines = [
        f"worker {k}: vertices {f['begin']} to {f['end'] - 1}, {f['edges']:,} edges, halo of {f['halo']:,} rows"
        + (f", {1e3 * f['seconds']:.3g} ms predicted" if "seconds" in f else "")
        + (": " + ", ".join(f"{name} {value:,.0f}" for name, value in f["features"].items()) if "features" in f else "")
        for k, f in enumerate(facts)
    ]
    print_answer(as_json, {"by": by, "cuts": cuts.tolist(), "workers": facts}, *lines)


def info(path: str, as_json: bool) -> None:
    """Description of a graph or a network is. Raises ParameterError, ModelError, DataError."""
    if Path(path).suffix == ".safetensors":
        check_input(Path(path), "network")
        net = Network.load(path)
        shapes = {name: list(np.shape(value)) for name, value in net.weights.items()}
        facts: dict[str, Any] = {
            "network": str(net), "dropout": net.dropout, "parameters": net.parameters, "weights": shapes,
        }  # fmt: skip
    else:
        facts = dict(graph_of(path).facts())
    print_answer(as_json, facts, *(f"{name}: {_words(value)}" for name, value in facts.items()))


def convert(graph: str, output: Path, symmetrize: bool, force: bool, as_json: bool) -> None:
    """Writes a graph as a .bngraph file. Raises ParameterError, DataError."""
    if output.suffix != SUFFIX:
        raise ParameterError(f"--output: found '{output}'; allowed: a name that ends in {SUFFIX}")
    check_output(output, is_ours=begins(b"BNGRAPH1"), force=force)
    if graph.startswith(GENERATED) and graph != GENERATED + PPI:  # symmetric, and written piece by piece
        write_dataset(output, *_generated(graph))
    else:
        source = graph_of(graph)
        save(output, source.symmetrized() if symmetrize else source)
    size, file = output.stat().st_size, GraphFile.open(output)
    report = {"output": str(output), "bytes": size, **(load(output, "file").facts() if as_json else {})}
    print_answer(as_json, report, f"{output}: {file.vertices:,} vertices, {file.edges:,} edges, {size / 1e6:.1f} MB")


def graph_of(source: str) -> Graph:
    """A graph from a path, or a generated one by its name. Raises ParameterError, DataError, OSError."""
    if not source.startswith(GENERATED):
        if not Path(source).exists():
            raise ParameterError(f"graph: no file or folder '{source}'; allowed also: dataset:reddit/10 and its kin")
        return read(source)
    return union(ppi_graphs()) if source == GENERATED + PPI else dataset(*_generated(source))


def _generated(source: str) -> tuple[str, str]:
    """The name and the kind of a graph that is generated."""
    name, _, kind = source.removeprefix(GENERATED).partition(",")
    return name, kind or "block"


def is_file(source: str) -> bool:
    """Whether a graph is a file that training reads in blocks."""
    return not source.startswith(GENERATED) and Path(source).suffix == SUFFIX and Path(source).is_file()


def _scores(graph: Graph, logits: np.ndarray) -> dict[str, dict[str, float]]:
    """Scores by mask, of masks under which vertices are."""
    found = {}
    for name in MASKS:
        mask = getattr(graph, name)
        if mask is not None and mask.any():
            labels = labels_of(graph, mask_of(graph, name))
            found[name] = {key: metric(logits, labels) for key, metric in scores(graph.multilabel).items()}
    return found


def _write_logits(output: Path, logits: np.ndarray) -> None:
    if output.suffix == ".npy":
        with output.open("wb") as file:
            np.save(file, logits)
        return
    classes: Sequence[int] = np.argmax(logits, 1).tolist()
    write_atomic(output, ["".join(f"{c}\n" for c in classes).encode()])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(v)}" for name, v in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
