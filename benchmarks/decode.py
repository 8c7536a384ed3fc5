"""A language model that decodes, tokens a second: against onnxruntime and torch, and the time to read its weights.

`python -m benchmarks.decode [--tokens N] [--layers N] [--width N] [--threads N] [--int4] [--json]`: the decoder of
examples/generate.py with a cache that grows, one module for every length; float32 weights and bfloat16 ones. With
`--layers 12` it has 124 million parameters. Sides take turns; `bound` is the share of the tokens a second that reading
all weights once a token allows, at the bandwidth that is measured. `--int4`: instead, one file with MatMulNBits in
blocks of 32 by both, at accuracy level 0 (the other factor float32) and 4 (bytes).
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

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
    parser.add_argument("--int4", action="store_true", help="weights of 4 bits")
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
    if options.int4:
        row = four_bits(options, network, given, example["generate"], empty)
        print(stored(row, indent=2) if options.json else row)
        return
    steps: dict[str, Any] = {"torch": network}
    compiled = {}
    for name, weights in (("burnish", None), ("burnish bfloat16", "bfloat16")):
        start = time.perf_counter()
        steps[name] = bn.compile(network, given, dynamic=opened, weights=weights, threads=options.threads)
        compiled[name] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        exported(network, given, path)
        steps["onnxruntime"] = session(str(path), options.threads)
        rates, tokens = in_turns(steps, options, example["generate"], empty)
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


def in_turns(
    steps: Mapping[str, Any], options: argparse.Namespace, generate: Any, empty: Any
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Tokens a second of each side in each turn, and the tokens."""
    torch: Any = require("torch", extra="torch")
    rates: dict[str, list[float]] = {name: [] for name in steps}
    tokens: dict[str, list[int]] = {}
    with torch.inference_mode():
        for turn in range(options.turns):
            for name in sorted(steps, reverse=bool(turn % 2)):
                tokens[name], seconds = generate(steps[name], empty, [1, 7, 42], options.tokens, False)
                rates[name].append(1 / seconds)
    return rates, tokens


def four_bits(options: argparse.Namespace, network: Any, given: Any, generate: Any, empty: Any) -> dict[str, Any]:
    """The decoder with weights of 4 bits, at both levels of accuracy, by Burnish and by onnxruntime."""
    steps: dict[str, Any] = {}
    logits: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.onnx"
        exported(network, given, path)
        read, float_step = 0, session(str(path), options.threads)
        for level in (0, 4):
            model, read = in_blocks(onnx.load(path), level)
            opened = {"past": (0, options.tokens + 8)}
            module = bn.compile(model, shapes=opened, threads=options.threads, rewrite=False)
            steps[f"burnish level {level}"] = by_arrays(module)
            steps[f"onnxruntime level {level}"] = session(model.SerializeToString(), options.threads)
        for name, step in {**steps, "float": float_step}.items():
            logits[name] = step(*given)[0].numpy().astype(np.float64)
        rates, tokens = in_turns(steps, options, generate, empty)
    found = {name: statistics.median(rate) for name, rate in rates.items()}
    exact = logits["burnish level 0"]
    return {
        "parameters": sum(p.numel() for p in network.parameters()), "weights_mb": read / 1e6,
        "tokens_per_second": found, "turns": rates,
        "over_onnxruntime": {
            str(level): found[f"burnish level {level}"] / found[f"onnxruntime level {level}"] for level in (0, 4)
        },
        "bound_tokens_per_second": bandwidth(options.threads) / read,
        "logits_from_burnish_level_0": {
            name: float(np.linalg.norm(value - exact) / np.linalg.norm(exact)) for name, value in logits.items()
        },
        "row_over_memory_bound": {str(threads): over_bound(threads) for threads in (1, 2)},
        "same_tokens_level_0": sum(
            a == b for a, b in zip(tokens["burnish level 0"], tokens["onnxruntime level 0"], strict=True)
        ),
        "of": options.tokens,
    }  # fmt: skip


def over_bound(threads: int, depth: int = 4096, columns: int = 65536, block: int = 32) -> dict[str, float]:
    """A product of one row with a matrix of 4 bits: its time over that to read the matrix and its scales, at the best
    rate at which this process reads so much memory, by a product of float32 numbers or by a sum of torch's.
    """
    from burnish.graph.graph import GraphBuilder

    torch: Any = require("torch", extra="torch")
    torch.set_num_threads(threads)
    rng, builder = np.random.default_rng(0), GraphBuilder()
    integers = rng.integers(0, 16, (depth, columns), dtype=np.uint8)
    scale = rng.random((depth // block, columns), np.float32)
    parts = [builder.constant(a) for a in (integers, scale, np.full_like(scale, 8))]
    weight = builder.add("block_dequantize", *parts, bits=4, block=block)
    product = builder.add("matmul", builder.input("x", (1, depth)), weight)
    module = bn.compile(builder.build(product), threads=threads, rewrite=False)
    x, floats = np.ones((1, depth), np.float32), torch.ones(1 << 26)
    read, own, rate = depth * columns // 2 + scale.nbytes, [], []
    for _ in range(12):
        start = time.perf_counter()
        module(x)
        between = time.perf_counter()
        floats.sum()
        own.append(between - start)
        rate.append(4 * len(floats) / (time.perf_counter() - between))
    best = max(*rate, bandwidth(threads))
    return {
        "bytes": read,
        "gb_per_second": read / min(own) / 1e9,
        "memory": best / 1e9,
        "ratio": min(own) * best / read,
    }


def in_blocks(model: onnx.ModelProto, level: int, block: int = 32) -> tuple[onnx.ModelProto, int]:
    """The model with products by constant matrices as MatMulNBits of 4 bits around 8, and their bytes with scales."""
    known = {t.name: t for t in model.graph.initializer}
    nodes, read = [], 0
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in known:
            nodes.append(node)
            continue
        weight = onnx.numpy_helper.to_array(known[node.input[1]])
        depth, columns = weight.shape
        parts = weight.T.reshape(columns, depth // block, block)
        peak = np.take_along_axis(parts, np.abs(parts).argmax(-1)[..., None], -1)[..., 0]  # becomes -8
        scale = np.where(peak == 0, 1, peak / -8).astype(np.float32)
        whole = np.clip(np.rint(parts / scale[..., None]) + 8, 0, 15).astype(np.uint8)
        packed = whole[..., ::2] | whole[..., 1::2] << 4
        names = [f"{node.output[0]}.{what}" for what in ("integers", "scales")]
        for name, array in zip(names, (packed, scale), strict=True):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            read += array.nbytes
        sizes = {"K": depth, "N": columns, "bits": 4, "block_size": block, "accuracy_level": level}
        nodes.append(
            onnx.helper.make_node(
                "MatMulNBits", [node.input[0], *names], [*node.output], domain="com.microsoft", **sizes
            )
        )
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [t for t in model.graph.initializer if t.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model, read


NAMES = ("token", "position", "cache")


def exported(network: Any, given: Any, path: Path) -> None:
    """Writes the decoder as ONNX, by torch's exporter."""
    torch = require("torch", extra="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, given, path, input_names=[*NAMES], output_names=["logits", "longer"], opset_version=17,
            dynamo=False, dynamic_axes={"cache": {2: "past"}, "longer": {2: "next"}},
        )  # fmt: skip


def by_arrays(run: Any) -> Any:
    """A step of tensors, of what takes arrays by name."""
    torch = require("torch", extra="torch")

    def step(*arguments: Any) -> tuple[Any, ...]:
        feeds = {name: value.numpy() for name, value in zip(NAMES, arguments, strict=True)}
        return tuple(torch.from_numpy(np.asarray(array)) for array in run(**feeds))

    return step


def session(model: str | bytes, threads: int) -> Any:
    """A model by onnxruntime: tensors in, tensors out."""
    ort = require("onnxruntime", extra="bench")
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3
    made = ort.InferenceSession(model, settings)
    return by_arrays(lambda **feeds: made.run(None, feeds))


if __name__ == "__main__":
    main()
