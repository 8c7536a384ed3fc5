"""Compile an ONNX model, run it, save it, load it again. `python examples/compile_onnx.py [MODEL.onnx]`"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import burnish as bn

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"  # small models that come with onnx


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else LIGHT / "light_squeezenet.onnx"
    module = bn.compile(path)
    print(module)

    random = np.random.default_rng(0)
    inputs = [random.random(spec.shape).astype(spec.dtype) for spec in module.inputs]
    outputs = module(*inputs)

    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "model.bn"
        module.save(artifact)
        print(f"artifact: {artifact.stat().st_size / 1e6:.1f} MB")
        again = bn.load(artifact)(*inputs)
    np.testing.assert_array_equal(outputs, again)
    print("the loaded model gives the same answer")


if __name__ == "__main__":
    main()
