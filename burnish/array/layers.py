"""Layers: symbols that bring their parameters with them, as free variables whose shapes follow from the input's."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.array.symbol import Extent, Symbol, apply, mode, state, variable


def fully_connected(x: Symbol, units: int, name: str, bias: bool = True) -> Symbol:
    """``x`` [..., K] times ``name.weight`` [K, units], plus ``name.bias`` [units]."""
    weight = variable(f"{name}.weight", (Extent(-1), units), like=x)
    product = apply("matmul", [x, weight], {"name": name if not bias else f"{name}.product"})
    return apply("add", [product, variable(f"{name}.bias", (units,))], {"name": name}) if bias else product


def convolution(
    x: Symbol, channels: int, kernel: Sequence[int], name: str, *, strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0), bias: bool = True,
) -> Symbol:  # fmt: skip
    """``x`` [N, C, H, W] convolved with ``name.weight`` [channels, C, *kernel], plus ``name.bias`` [channels]."""
    weight = variable(f"{name}.weight", (channels, Extent(1), *kernel), like=x)
    operands = [x, weight, variable(f"{name}.bias", (channels,))] if bias else [x, weight]
    return apply("conv2d", operands, {"strides": tuple(strides), "pads": tuple(pads), "name": name})


def batch_normalization(x: Symbol, name: str, *, momentum: float = 0.1, epsilon: float = 1e-5) -> Symbol:
    """``x`` [N, C, ...] normalized: in training by the batch's statistics, which move the running ones, the auxiliary
    states ``name.mean`` and ``name.variance`` [C], by ``momentum`` of the way; in inference by these.
    """
    channels = (Extent(1),)
    scale, shift = (variable(f"{name}.{part}", channels, like=x) for part in ("scale", "bias"))
    mean = state(f"{name}.mean", shape=channels, like=x)
    variance = state(f"{name}.variance", shape=channels, like=x, fill=1.0)
    own = apply("batch_norm_training", [x, scale, shift], {"epsilon": epsilon, "name": f"{name}.training"})
    trained = own[0]
    for kept, batch in ((mean, own[1]), (variance, own[2])):
        trained = trained.updating(kept, apply("add", [_scaled(kept, 1.0 - momentum), _scaled(batch, momentum)], {}))
    fixed = apply("batch_norm", [x, scale, shift, mean, variance], {"epsilon": epsilon, "name": f"{name}.inference"})
    return mode(trained, fixed, name)


def _scaled(x: Symbol, factor: float) -> Symbol:
    scaled: Symbol = apply("mul", [x, factor], {})
    return scaled
