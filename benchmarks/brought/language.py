"""Networks of the transformers package, most of them small, some with keys and values as inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.brought.exporting import BATCH, Architecture, Axes, Network, ids, image

SEQUENCE: Axes = {0: {0: "batch", 1: "seq"}}
SMALL = {
    "vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
GPT2 = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
DECODER = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}
WHISPER = {
    "vocab_size": 200, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50,
    "max_target_positions": 32, "num_mel_bins": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
VISION: dict[str, Any] = {key: value for key, value in SMALL.items() if key != "vocab_size"}


def _outputs_of(model: Any, names: Sequence[str], outputs: Sequence[str], **fixed: Any) -> Any:
    """A module of positional tensors that calls ``model`` by names."""
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *tensors: Any) -> Any:
            found = self.inner(**dict(zip(names, tensors, strict=True)), **fixed, return_dict=True)
            return found[outputs[0]] if len(outputs) == 1 else tuple(found[name] for name in outputs)

    return Positional()


def _configured(kind: str, **config: Any) -> Any:
    """A model of the package by its class and the settings of its configuration."""
    import transformers

    model = getattr(transformers, kind)
    return model(model.config_class(**config))


def _encoder(kind: str, outputs: Sequence[str] = ("last_hidden_state",), masked: bool = True, **config: Any) -> Network:
    import torch

    model = _configured(kind, **(config if "dim" in config else {**SMALL, **config}))
    tokens = ids()
    mask = torch.ones_like(tokens)
    mask[1, 10:] = 0
    names = ["input_ids", "attention_mask"][: 1 + masked]
    axes = {i: {0: "batch", 1: "seq"} for i in range(len(names))}
    return Network(_outputs_of(model, names, outputs), (tokens, mask)[: 1 + masked], axes, names)


def _pixels(kind: str, size: int, output: str = "last_hidden_state", **config: Any) -> Network:
    model = _configured(kind, **config)
    return Network(_outputs_of(model, ["pixel_values"], [output]), (image(size, batch=1),), BATCH, ["pixel_values"])


def _vectors(kind: str, name: str, shape: tuple[int, ...], **config: Any) -> Network:
    import torch

    model = _configured(kind, **config)
    return Network(_outputs_of(model, [name], ["last_hidden_state"]), (torch.randn(shape),), BATCH, [name])


def _tokens_to_logits(kind: str, masked: bool = True, **config: Any) -> Network:
    """A decoder without a cache."""
    import torch

    model = _configured(kind, **config)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, tokens: Any) -> Any:
            mask = {"attention_mask": torch.ones_like(tokens)} if masked else {}
            return self.inner(input_ids=tokens, use_cache=False, **mask).logits

    return Network(Plain(), (ids(2, 12),), SEQUENCE, ["input_ids"])


def _cached(kind: str, past: int = 8, new: int = 4, **config: Any) -> Network:
    """A decoder whose keys and values are inputs and outputs, as people export it for generation."""
    import torch
    from transformers import DynamicCache

    model = _configured(kind, **config, attn_implementation="sdpa")
    facts = model.config
    layers = facts.num_hidden_layers

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, tokens: Any, mask: Any, *kept: Any) -> Any:
            cache = DynamicCache()
            for layer in range(layers):
                cache.update(kept[2 * layer], kept[2 * layer + 1], layer)
            found = self.inner(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True)
            after = found.past_key_values.layers
            return (found.logits, *(part for layer in after for part in (layer.keys, layer.values)))

    heads = getattr(facts, "num_key_value_heads", None) or facts.num_attention_heads
    width = getattr(facts, "head_dim", None) or facts.hidden_size // facts.num_attention_heads
    kept = tuple(torch.randn(1, heads, past, width) for _ in range(2 * layers))
    names = ["input_ids", "attention_mask", *(f"past.{i // 2}.{'kv'[i % 2]}" for i in range(2 * layers))]
    axes = {0: {0: "batch", 1: "seq"}, 1: {0: "batch", 1: "total"}}
    axes |= {2 + i: {0: "batch", 2: "past"} for i in range(2 * layers)}
    arguments = (ids(1, new, facts.vocab_size), torch.ones(1, past + new, dtype=torch.int64), *kept)
    return Network(Cached(), arguments, axes, names)


def _part(kind: str, part: str, output: str, inputs: Callable[[], dict[str, Any]], config: dict[str, Any]) -> Network:
    """The encoder or decoder of a model alone."""
    model = _configured(kind, **config)
    given = inputs()
    axes = {i: {0: "batch", 1: "seq" if i == 0 else "enc"} for i, a in enumerate(given.values()) if a.dim() > 1}
    fixed = {"use_cache": False} if "decoder" in part else {}
    for name in part.split("."):
        model = getattr(model, name)
    return Network(_outputs_of(model, list(given), [output], **fixed), tuple(given.values()), axes, list(given))


def _clip() -> Network:
    import torch

    text = {**SMALL, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    vision = {**VISION, "image_size": 32, "patch_size": 8}
    model = _configured("CLIPModel", text_config=text, vision_config=vision, projection_dim=32)
    tokens = ids()
    names = ["input_ids", "pixel_values", "attention_mask"]
    arguments = (tokens, image(32), torch.ones_like(tokens))
    return Network(_outputs_of(model, names, ["logits_per_image"]), arguments, {}, names)


def _hidden(length: int) -> dict[str, Any]:
    import torch

    return {"input_ids": ids(2, 6), "encoder_hidden_states": torch.randn(2, length, 64)}


def _frames() -> dict[str, Any]:
    import torch

    return {"input_features": torch.randn(2, 16, 100)}


def _masked_ids() -> dict[str, Any]:
    import torch

    tokens = ids()
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


DPT = {
    "image_size": 64, "patch_size": 16, "neck_hidden_sizes": [16, 16, 32, 32], "fusion_hidden_size": 16,
    "backbone_out_indices": [0, 1, 2, 3], "readout_type": "project", "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [16, 32, 32, 32], "num_attention_heads": [1, 2, 2, 2], "depths": [1, 1, 1, 1],
    "decoder_hidden_size": 32, "num_labels": 4,
}  # fmt: skip
WAV2VEC = {
    **SMALL, "conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
BERT_BASE: dict[str, Any] = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}
LLAMA_160M = {
    "vocab_size": 8000, "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 2048, "max_position_embeddings": 2048,
}  # fmt: skip
TRANSFORMERS: Mapping[str, tuple[str, Callable[[], Network]]] = {
    **{
        f"hf-{name}": (forms, partial(_encoder, kind, **config))
        for name, kind, forms, config in (
            ("bert", "BertModel", "static open script", {}),
            ("roberta", "RobertaModel", "static open", {}),
            ("mpnet", "MPNetModel", "static open", {}),
            ("xlm_roberta", "XLMRobertaModel", "static", {}),
            ("electra", "ElectraModel", "static script", {}),
            ("albert", "AlbertModel", "static open", {"embedding_size": 32}),
            ("deberta_v2", "DebertaV2Model", "static", {}),
            ("squeezebert", "SqueezeBertModel", "static", {"embedding_size": 64}),
            ("longformer", "LongformerModel", "static", {"attention_window": 8}),
            (
                "nomic",
                "ModernBertModel",
                "static",
                {"pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 8},
            ),
            (
                "distilbert",
                "DistilBertModel",
                "static open script",
                {"vocab_size": 200, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
            ),
            ("bert-tokens", "BertForTokenClassification", "open", {"outputs": ("logits",)}),
            (
                "bert-answers",
                "BertForQuestionAnswering",
                "static open",
                {"outputs": ("start_logits", "end_logits"), "masked": False},
            ),
        )
    },
    **{
        f"hf-{name}": (forms, partial(_tokens_to_logits, kind, **config))
        for name, kind, forms, config in (
            ("gpt2", "GPT2LMHeadModel", "static open", GPT2),
            ("llama", "LlamaForCausalLM", "static open script", DECODER),
            (
                "mamba",
                "MambaForCausalLM",
                "static script",
                {"vocab_size": 200, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "masked": False},
            ),
            (
                "rwkv",
                "RwkvForCausalLM",
                "static script",
                {
                    "vocab_size": 200,
                    "hidden_size": 32,
                    "attention_hidden_size": 32,
                    "num_hidden_layers": 2,
                    "context_length": 32,
                    "masked": False,
                },
            ),
            ("phi", "PhiForCausalLM", "static", {**SMALL, "max_position_embeddings": 128}),
            ("gemma", "GemmaForCausalLM", "static open", {**DECODER, "head_dim": 16}),
            (
                "opt",
                "OPTForCausalLM",
                "static",
                {
                    "vocab_size": 200,
                    "hidden_size": 64,
                    "word_embed_proj_dim": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "ffn_dim": 128,
                    "max_position_embeddings": 64,
                },
            ),
            (
                "mixtral",
                "MixtralForCausalLM",
                "static script",
                {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"},
            ),
        )
    },
    **{
        f"hf-{name}-cache": (forms, partial(_cached, kind, **config))
        for name, kind, forms, config in (
            ("gpt2", "GPT2LMHeadModel", "static open script", GPT2),
            ("llama", "LlamaForCausalLM", "static open script", DECODER),
            ("qwen3", "Qwen3ForCausalLM", "static open", {**DECODER, "head_dim": 16}),
            ("gpt_neox", "GPTNeoXForCausalLM", "static", SMALL),
            ("smollm3", "SmolLM3ForCausalLM", "open", {**DECODER, "pad_token_id": 0}),
        )
    },
    "hf-t5-encoder": (
        "static script",
        partial(_part, "T5EncoderModel", "encoder", "last_hidden_state", _masked_ids, T5),
    ),
    "hf-t5-decoder": (
        "static script",
        partial(
            _part,
            "T5ForConditionalGeneration",
            "decoder",
            "last_hidden_state",
            partial(_hidden, 16),
            {**T5, "decoder_start_token_id": 0},
        ),
    ),
    "hf-whisper-encoder": (
        "static script",
        partial(_part, "WhisperModel", "encoder", "last_hidden_state", _frames, WHISPER),
    ),
    "hf-whisper-decoder": (
        "static open script",
        partial(_part, "WhisperModel", "decoder", "last_hidden_state", partial(_hidden, 50), WHISPER),
    ),
    "hf-clip": ("static script", _clip),
    "hf-siglip": ("static", partial(_pixels, "SiglipVisionModel", 32, image_size=32, patch_size=8, **VISION)),
    "hf-vit": ("static open", partial(_pixels, "ViTModel", 32, image_size=32, patch_size=8, **VISION)),
    "hf-dinov2": (
        "static",
        partial(
            _pixels,
            "Dinov2Model",
            56,
            image_size=56,
            patch_size=14,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
        ),
    ),
    "hf-dpt": ("static", partial(_pixels, "DPTForDepthEstimation", 64, "predicted_depth", **DPT)),
    "hf-segformer": ("static open", partial(_pixels, "SegformerForSemanticSegmentation", 64, "logits", **SEGFORMER)),
    "hf-convnext": (
        "static",
        partial(_pixels, "ConvNextModel", 64, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    ),
    "hf-resnet": (
        "script",
        partial(_pixels, "ResNetModel", 64, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], embedding_size=16),
    ),
    "hf-ast": (
        "static",
        partial(_vectors, "ASTModel", "input_values", (1, 64, 32), num_mel_bins=32, max_length=64, **VISION),
    ),
    "hf-wav2vec2": ("static open", partial(_vectors, "Wav2Vec2Model", "input_values", (1, 4000), **WAV2VEC)),
    "hf-hubert": ("script", partial(_vectors, "HubertModel", "input_values", (1, 4000), **WAV2VEC)),
    "hf-patchtst": (
        "static",
        partial(
            _vectors,
            "PatchTSTModel",
            "past_values",
            (2, 32, 3),
            num_input_channels=3,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=32,
        ),
    ),
    "real-bert-base": (
        "script",
        partial(_encoder, "BertModel", num_attention_heads=12, intermediate_size=3072, **BERT_BASE),
    ),
    "real-llama-160m-step": ("script", partial(_cached, "LlamaForCausalLM", 255, 1, **LLAMA_160M)),
}


def architectures() -> dict[str, Architecture]:
    return {name: Architecture(make, forms, ("torch", "transformers")) for name, (forms, make) in TRANSFORMERS.items()}
