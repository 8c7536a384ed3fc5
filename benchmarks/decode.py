"""A language model that decodes, tokens a second: beside onnxruntime and torch, and the time to read its weights.

`python -m benchmarks.decode [--tokens N] [--layers N] [--width N] [--threads N] [--json]`: the decoder of
examples/generate.py with a cache that grows, one module for every length; float32 weights and bfloat16 ones. Sides
take turns; `bound` is the share of the tokens a second that reading all weights once a token allows, at the bandwidth
that is measured.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.provenance import stored
from burnish.base.optional import require

EXAMPLE = Path(__file__).parent.parent / "examples" / "generate.py"


def bandwidth(threads: int) -> float:
    """Bytes a second at which both cores read memory: the best of some runs of a product with one row."""
    from burnish.graph.graph import GraphBuilder

    builder, depth, columns = GraphBuilder(), 1024, 65536
    weight = np.ones((depth, columns), np.float32)
    product = builder.add("matmul", builder.input("x", (1, depth)), builder.constant(weight))
    module = bn.compile(builder.build(product), threads=threads, rewrite=False)
    x, times = np.ones((1, depth), np.float32), []
    for _ in range(12):
        start = time.perf_counter()
        module(x)
        times.append(time.perf_counter() - start)
    return weight.nbytes / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch: Any = require("torch", extra="torch")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    example = runpy.run_path(str(EXAMPLE))
    network = example["Decoder"](options.width, options.layers).eval()
    head, shared = example["HEAD"], network.layers[0].shared
    empty = torch.zeros(2 * options.layers, shared, 0, head)
    given = (torch.tensor([[1]]), torch.tensor([3]), empty.new_zeros(*empty.shape[:2], 3, head))
    opened = {"cache": {2: "past"}, "past": (0, options.tokens + 8, 1, max(options.tokens // 2, 2))}
    steps: dict[str, Any] = {"torch": network}
    compiled = {}
    for name, weights in (("burnish", None), ("burnish bfloat16", "bfloat16")):
        start = time.perf_counter()
        steps[name] = bn.compile(network, given, dynamic=opened, weights=weights, threads=options.threads)
        compiled[name] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        steps["onnxruntime"] = session(network, given, Path(folder) / "decoder.onnx", options.threads)
        rates: dict[str, list[float]] = {name: [] for name in steps}
        tokens: dict[str, list[int]] = {}
        with torch.inference_mode():
            for turn in range(options.turns):
                for name in sorted(steps, reverse=bool(turn % 2)):
                    tokens[name], seconds = example["generate"](steps[name], empty, [1, 7, 42], options.tokens, False)
                    rates[name].append(1 / seconds)
    read = sum(p.numel() for n, p in network.named_parameters() if "embedding" not in n) * 4
    best = bandwidth(options.threads) / read
    found = {name: statistics.median(rate) for name, rate in rates.items()}
    same = sum(a == b for a, b in zip(tokens["burnish"], tokens["torch"], strict=True))
    row = {
        "tokens_per_second": found, "bound_tokens_per_second": best, "bound": found["burnish"] / best,
        "over_onnxruntime": found["burnish"] / found["onnxruntime"],
        "bfloat16_gain": found["burnish bfloat16"] / found["burnish"], "same_as_torch": same, "of": options.tokens,
        "weights_mb": read / 1e6, "compile_seconds": compiled, "bfloat16": steps["burnish bfloat16"].stored,
    }  # fmt: skip
    if options.json:
        print(stored(row, indent=2))
        return
    for name, rate in found.items():
        print(f"{name:18} {rate:7.1f} tokens a second")
    print(
        f"{row['bound']:.2f} of what reading {read / 1e6:.0f} MB of weights allows; {row['over_onnxruntime']:.2f} "
        f"times onnxruntime; bfloat16 {row['bfloat16_gain']:.2f} times float32; {same} of {options.tokens} tokens are "
        "torch's"
    )


def session(network: Any, given: Any, path: Path, threads: int) -> Any:
    """The decoder by onnxruntime, from torch's exporter: tensors in, tensors out."""
    torch, ort = require("torch", extra="torch"), require("onnxruntime", extra="bench")
    names = ["token", "position", "cache"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, given, path, input_names=names, output_names=["logits", "longer"], opset_version=17, dynamo=False,
            dynamic_axes={"cache": {2: "past"}, "longer": {2: "next"}},
        )  # fmt: skip
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3
    made = ort.InferenceSession(str(path), settings)

    def step(*arguments: Any) -> tuple[Any, ...]:
        feeds = {name: value.numpy() for name, value in zip(names, arguments, strict=True)}
        return tuple(torch.from_numpy(array) for array in made.run(None, feeds))

    return step


if __name__ == "__main__":
    main()
