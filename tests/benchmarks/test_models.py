"""Benchmark models: files, inputs and stored cases agree; randomized weights make the answer depend on the input."""

import numpy as np
import onnx
import pytest

from benchmarks import models
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error


def test_there_are_twelve_models() -> None:
    assert len(set(models.names())) == 12


@pytest.mark.parametrize("name", models.LIGHT)
def test_light_model_declares_its_input(name: str) -> None:
    graph = onnx.load(models.build(name)).graph
    weights = {tensor.name for tensor in graph.initializer}
    declared = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in graph.input
        if value.name not in weights
    }
    assert declared == {models.LIGHT[name].name: models.LIGHT[name].shape}


@pytest.mark.parametrize("name", ["light_squeezenet", "light_resnet50"])
def test_onnxruntime_matches_the_stored_case(name: str) -> None:
    inputs, output = models.stored_case(name)
    run = peers.prepare("onnxruntime", models.build(name), threads=2)
    assert scaled_error(run(inputs), [output]) < 1e-5


@pytest.mark.parametrize("name", ["light_squeezenet", "light_resnet50"])
def test_randomized_model_tells_inputs_and_classes_apart(name: str) -> None:
    run = peers.prepare("onnxruntime", models.randomized(name).SerializeToString(), threads=2)
    outputs = [run(models.inputs(name, seed))[0].ravel() for seed in (0, 1)]
    assert all(output.std() > 0.1 * output.mean() for output in outputs)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3 * outputs[0].max()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as torchvision and the ports of NASNet-A (4 @ 1056) list them; Ding et al. 2021 say 9.1 million of RepVGG-A0
        ("resnet50", 25_557_032), ("resnext50", 25_028_904), ("squeezenet", 1_235_496), ("inception_v3", 23_834_568),
        ("nasnet_a", 5_289_978), ("repvgg_a0", 9_108_968),
        ("nasrnn", 16 * 512 * 512 + 512),
    ],
)  # fmt: skip
def test_rewriting_networks_have_the_published_size(name: str, parameters: int) -> None:
    import torch

    from benchmarks import networks

    with torch.device("meta"):
        network = networks.FACTORIES[name]()
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_rewriting_networks_stand_beside_the_twelve() -> None:
    assert len(models.REWRITE_MODELS) == 8
    assert models.REWRITE_MODELS.keys() & set(models.names()) == {"bert_base"}


def test_inputs_follow_the_seed() -> None:
    first, again, other = (models.inputs("bert_base", seed)["ids"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.min() >= 0
    assert first.max() < 30522


@pytest.mark.parametrize("name", ["dqn", "dcgan", "nasrnn"])
def test_exported_model_agrees_with_torch(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(models, "CACHE", tmp_path)
    path = models.build(name)
    assert list(tmp_path.iterdir()) == [path]
    network, inputs = models.network(name)
    expected = peers.torch_eager(network, threads=2)(inputs)
    assert scaled_error(peers.prepare("onnxruntime", path, threads=2)(inputs), expected) < 1e-5
    assert expected[0].std() > 0.05
