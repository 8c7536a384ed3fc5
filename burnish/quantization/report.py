"""Report of quantization: each layer in integers or left in floats and why, the model's error and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LayerChoice:
    """A layer. ``reason``: why it is left in floats; empty where it is quantized. ``ratio``: its time in integers over
    that in floats, NaN where it was not timed; ``noise``: of rounding its operands, the mean square over theirs.
    """

    name: str
    op: str
    quantized: bool
    reason: str = ""
    ratio: float = math.nan
    noise: float = math.nan

    def __str__(self) -> str:
        parts = ["integers" if self.quantized else "floats  ", f"{self.op:7}"]
        parts.append(f"{self.ratio:5.2f}x" if math.isfinite(self.ratio) else "      ")
        parts.append(f"{decibels(math.sqrt(self.noise)):5.1f} dB" if self.noise > 0 else "        ")
        return "  ".join((*parts, self.name)) + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class QuantizationReport:
    """The layers' choices. ``error``: of the model's outputs on batches that calibration did not see, by their norm,
    where ``allowed`` was; ``ratio``: the model's time over the float one's, NaN if not timed. ``fallback``: why nothing
    is quantized in the end; ``equalized``: pairs of layers; ``batches``: of calibration and of the error;
    ``bytes``: of constants, in floats and now.
    """

    layers: Sequence[LayerChoice]
    error: float
    allowed: float
    ratio: float
    fallback: str
    equalized: int
    batches: tuple[int, int]
    bytes: tuple[int, int]

    def __repr__(self) -> str:
        """Its numbers in one line."""
        count = sum(layer.quantized for layer in self.layers)
        said = self.fallback or f"error {self.error:.2g}"
        return f"QuantizationReport({count} of {len(self.layers)} layers in integers, {said})"

    def __str__(self) -> str:
        count = sum(layer.quantized for layer in self.layers)
        lines = [*map(str, self.layers), f"{count} of {len(self.layers)} layers in integers"]
        if self.fallback:
            lines.append(f"nothing is quantized: {self.fallback}")
        else:
            lines.append(
                f"error {self.error:.2g} of the outputs' norm ({decibels(self.error):.1f} dB), "
                f"allowed {self.allowed:g}, on {self.batches[1]} batches"
            )
        if math.isfinite(self.ratio):
            lines.append(f"time {self.ratio:.2f} of the float model's")
        lines.append(f"weights {self.bytes[1] / 1e6:.2f} MB, in floats {self.bytes[0] / 1e6:.2f} MB")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON holds it: None for what was not measured."""
        found = asdict(self)
        found["layers"] = [
            {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in layer.items()}
            for layer in found["layers"]
        ]
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()}


def decibels(share: float) -> float:
    """Signal to noise in decibels of an error relative to a signal."""
    return -20 * math.log10(share) if share > 0 else math.inf
