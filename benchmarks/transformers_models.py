"""Ten architectures of the transformers package by both doors of PyTorch, against eager, inductor and onnxruntime.

`python -m benchmarks.transformers_models [MODEL ...] [--threads 2] [--json]`: seeded random weights at the sizes of the
published configurations, measured as `benchmarks.torch_models` measures. Needs the packages transformers and
onnxscript, which Burnish does not install.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks import harness
from benchmarks.torch_models import measure
from burnish.base.optional import require

Inputs = dict[str, np.ndarray]
Made = tuple[Any, Inputs]


def _ids(tokens: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, vocabulary, (1, tokens))


def _image() -> Inputs:
    return {"pixel_values": np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)}


def _outputs(network: Any, names: tuple[str, ...], **fixed: Any) -> Any:
    """A module of positional tensors, whose answer is the first output of `network`."""
    torch = require("torch", extra="torch")

    class Positional(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *tensors: Any) -> Any:
            return self.network(**dict(zip(names, tensors, strict=True)), **fixed, return_dict=False)[0]

    return Positional().eval()


def _positional(network: Any, inputs: Inputs, **fixed: Any) -> Made:
    return _outputs(network, tuple(inputs), **fixed), inputs


def _bert(hub: Any) -> Made:
    return _positional(hub.BertModel(hub.BertConfig()), {"input_ids": _ids(128, 30_000)})


def _gpt2(hub: Any) -> Made:
    """One step of decoding behind 128 cached tokens."""
    torch = require("torch", extra="torch")
    config = hub.GPT2Config()
    network = hub.GPT2LMHeadModel(config)

    class Step(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, *past: Any) -> Any:
            cache = hub.DynamicCache(zip(past[::2], past[1::2], strict=True))
            logits, cache = self.network(ids, past_key_values=cache, use_cache=True, return_dict=False)[:2]
            return (logits, *(part for layer in cache.layers for part in (layer.keys, layer.values)))

    random = np.random.default_rng(0)
    shape = (1, config.n_head, 128, config.n_embd // config.n_head)
    past = {f"past{i}": random.standard_normal(shape, np.float32) for i in range(2 * config.n_layer)}
    return Step().eval(), {"input_ids": _ids(1, 50_000), **past}


def _vit(hub: Any) -> Made:
    return _positional(hub.ViTModel(hub.ViTConfig()), _image())


def _whisper(hub: Any) -> Made:
    config = hub.WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )  # fmt: skip
    sound = np.random.default_rng(0).standard_normal((1, 80, 3000), np.float32)
    inputs = {"input_features": sound, "decoder_input_ids": _ids(16, 50_000)}
    return _positional(hub.WhisperModel(config), inputs, use_cache=False)


def _llama(hub: Any) -> Made:
    config = hub.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4,
        vocab_size=32_000,
    )  # fmt: skip
    return _positional(hub.LlamaForCausalLM(config), {"input_ids": _ids(128, 32_000)}, use_cache=False)


def _t5(hub: Any) -> Made:
    inputs = {"input_ids": _ids(64, 32_000), "decoder_input_ids": _ids(32, 32_000)}
    config = hub.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8)
    return _positional(hub.T5Model(config), inputs, use_cache=False)


def _mobilenet(hub: Any) -> Made:
    return _positional(hub.MobileNetV2Model(hub.MobileNetV2Config()), _image())


def _convnext(hub: Any) -> Made:
    return _positional(hub.ConvNextModel(hub.ConvNextConfig()), _image())


def _swin(hub: Any) -> Made:
    return _positional(hub.SwinModel(hub.SwinConfig()), _image())


def _efficientnet(hub: Any) -> Made:
    config = hub.EfficientNetConfig(image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)
    return _positional(hub.EfficientNetModel(config), _image())


MODELS: dict[str, Callable[[Any], Made]] = {
    "bert": _bert, "gpt2": _gpt2, "vit": _vit, "whisper_tiny": _whisper, "llama": _llama, "t5_small": _t5,
    "mobilenet_v2": _mobilenet, "convnext": _convnext, "swin": _swin, "efficientnet_b0": _efficientnet,
}  # fmt: skip


def network(name: str) -> Made:
    """A model of the package with seeded random weights, ready for inference, and its inputs by name."""
    require("torch", extra="torch").manual_seed(0)
    module, inputs = MODELS[name](require("transformers", extra="transformers"))
    return module.eval(), inputs


def main() -> int:
    parser = harness.options(__doc__, seconds=8)
    arguments = parser.parse_args()
    names = harness.chosen(arguments, parser, tuple(MODELS))
    measured = [
        measure(name, *network(name), arguments.threads, arguments.seconds, opset=18)
        for name in track(names, "networks", disable=arguments.json, transient=True)
    ]
    extra: dict[str, object] = {"first_seconds": {row.name: first for row, first in measured}}
    title = f"Networks of the transformers package, {arguments.threads} threads"
    return harness.show(title, [row for row, _ in measured], arguments.json, unit="ms", extra=extra)


if __name__ == "__main__":
    sys.exit(main())
