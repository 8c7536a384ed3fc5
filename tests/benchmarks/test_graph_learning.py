"""What `benchmarks.graph_learning` calls a miss."""

from benchmarks.graph_learning import missed


def row(apart: float, accuracy: float) -> dict:
    return {"network": "gcn", "apart": apart, "test accuracy": accuracy, "PyG accuracy": 0.8}


def test_other_curves_and_lower_accuracies_are_missed() -> None:
    assert missed([row(1e-4, 0.795), row(0.0, 0.9)]) == []
    assert missed([row(2e-3, 0.8)]) == ["gcn: losses differ by 2.0e-03, allowed 0.001"]
    assert missed([row(0.0, 0.78)]) == ["gcn: accuracy 0.780 after PyG's 0.800"]
