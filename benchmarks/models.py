"""The benchmark models as ONNX files: six of the `onnx` package's light models, six exported from PyTorch, and those on
which the rewriting of graphs is measured.

`python -m benchmarks.models` builds them all.
"""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from burnish.base.optional import require
from burnish.measure.peers import export_onnx

CACHE = Path(__file__).parent / ".cache"
LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass(frozen=True)
class Input:
    """One model input. Floats are drawn from the standard normal distribution, integers from [0, high)."""

    name: str
    shape: tuple[int, ...]
    high: int = 0

    def draw(self, random: np.random.Generator) -> np.ndarray:
        if self.high:
            return random.integers(0, self.high, self.shape, dtype=np.int64)
        return random.standard_normal(self.shape, dtype=np.float32)


LIGHT = {
    "light_resnet50": Input("gpu_0/data_0", (1, 3, 224, 224)),
    "light_squeezenet": Input("data_0", (1, 3, 224, 224)),
    "light_vgg19": Input("data_0", (1, 3, 224, 224)),
    "light_bvlc_alexnet": Input("data_0", (1, 3, 224, 224)),
    "light_zfnet512": Input("gpu_0/data_0", (1, 3, 224, 224)),
    "light_inception_v1": Input("data_0", (1, 3, 224, 224)),
}
EXPORTED = {
    "resnet18": Input("image", (1, 3, 224, 224)),
    "mobilenet_v2": Input("image", (1, 3, 224, 224)),
    "bert_base": Input("ids", (1, 128), high=30522),
    "lstm_lm": Input("ids", (35, 1), high=10_000),
    "dqn": Input("frames", (1, 4, 84, 84)),
    "dcgan": Input("latent", (1, 100, 1, 1)),
}
REWRITE_MODELS = {
    "resnet50": Input("image", (1, 3, 224, 224)),
    "inception_v3": Input("image", (1, 3, 299, 299)),
    "nasrnn": Input("steps", (5, 1, 512)),
    "nasnet_a": Input("image", (1, 3, 224, 224)),
    "resnext50": Input("image", (1, 3, 224, 224)),
    "squeezenet": Input("image", (1, 3, 224, 224)),
    "bert_base": EXPORTED["bert_base"],
    "repvgg_a0": Input("image", (1, 3, 224, 224)),
}
"""The networks of TASO's evaluation (thesis-jia section 2.9), SqueezeNet and RepVGG: all exported from PyTorch."""

INPUTS = {**LIGHT, **EXPORTED, **REWRITE_MODELS}


def names() -> list[str]:
    """Names of the twelve models."""
    return [*EXPORTED, *LIGHT]


def build(name: str) -> Path:
    """Path of the model's ONNX file. A model from PyTorch is exported on first use (needs torch) and kept in CACHE."""
    if name in LIGHT:
        return LIGHT_FOLDER / f"{name}.onnx"
    folder = Path(__file__).parent
    sources = [folder / "networks.py", *sorted((folder / "architectures").glob("*.py"))]
    source = b"".join(path.read_bytes() for path in sources)
    digest = hashlib.sha256(source + repr(INPUTS[name]).encode()).hexdigest()[:12]
    path = CACHE / f"{name}-{digest}.onnx"
    if not path.exists():
        export(name, path)
    return path


def network(name: str) -> tuple[object, dict[str, np.ndarray]]:
    """The torch.nn.Module behind an exported model, and inputs to call it with (needs torch)."""
    torch = require("torch", extra="torch")
    from benchmarks import networks

    arrays = inputs(name, seed=0)
    (example,) = arrays.values()
    return networks.build(name, torch.from_numpy(example)), arrays


def export(name: str, path: Path) -> None:
    """Writes the ONNX file through a temporary name, so that an interrupted export leaves no half file behind."""
    module, arrays = network(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        export_onnx(module, arrays, temporary)
        temporary.replace(path)


def inputs(name: str, seed: int) -> dict[str, np.ndarray]:
    """Random inputs by name."""
    spec = INPUTS[name]
    return {spec.name: spec.draw(np.random.default_rng(seed))}


def stored_case(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The input and the expected output that the `onnx` package tests a light model with.

    The output is stored beside the model; the input is the ramp i / n, defined by `Runner.generate_dummy_data` in
    onnx/backend/test/runner.
    """
    spec = LIGHT[name]
    size = int(np.prod(spec.shape))
    ramp = (np.arange(size).reshape(spec.shape) / size).astype(np.float32)
    tensor = onnx.TensorProto.FromString((LIGHT_FOLDER / f"{name}_output_0.pb").read_bytes())
    return {spec.name: ramp}, onnx.numpy_helper.to_array(tensor)


def randomized(name: str, seed: int = 0) -> onnx.ModelProto:
    """A light model with seeded weights in place of its constant ones, whose output is the same for every input.

    The weights are drawn by their role in the node that reads them, at a scale that keeps activations finite.
    """
    model = onnx.load(build(name))
    random = np.random.default_rng(seed)
    roles = {
        source: (node.op_type, position)
        for node in model.graph.node
        for position, source in enumerate(node.input)
        if node.op_type in ("Conv", "Gemm", "BatchNormalization")
    }
    shapes = {tensor.name: tuple(onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.output[0] in roles:
            array = draw_weight(*roles[node.output[0]], shapes[node.input[0]], random)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def draw_weight(operator: str, position: int, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """One parameter, named by the operator that reads it and its position among that operator's inputs."""
    if operator == "BatchNormalization":
        # Inputs are (x, scale, bias, mean, variance). Small scales keep residual sums from growing with depth.
        low, high = {1: (0.2, 0.4), 2: (-0.2, 0.2), 3: (-0.2, 0.2), 4: (0.5, 1.5)}[position]
        return random.uniform(low, high, shape).astype(np.float32)
    if len(shape) == 1:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
    gain = 2 if operator == "Conv" else 1
    return random.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(gain / np.prod(shape[1:])))


if __name__ == "__main__":
    for model_name in INPUTS:
        print(f"{model_name:20} {build(model_name)}")
