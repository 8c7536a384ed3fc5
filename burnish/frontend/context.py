"""Translation context: what translators of ONNX and of torch ask of the graph under construction and add to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from burnish.graph.graph import Attribute, GraphBuilder

Name = TypeVar("Name", bound=str)  # of a tensor


@dataclass
class TranslationContext(Generic[Name]):
    """Adds operators to the graph on behalf of the node being translated."""

    builder: GraphBuilder

    @abstractmethod
    def named(self, x: str) -> Name:
        """The name of a tensor in the form that translators get."""

    @abstractmethod
    def add_many(self, op: str, *inputs: str, **attrs: Attribute) -> tuple[Name, ...]:
        """All outputs of ``op``."""

    @abstractmethod
    def constant(self, value: Any, dtype: str | None = None) -> Name:
        """A constant tensor; Python numbers need ``dtype``."""

    def add(self, op: str, *inputs: str, **attrs: Attribute) -> Name:
        """The single output of ``op``."""
        (output,) = self.add_many(op, *inputs, **attrs)
        return output

    def scalar(self, value: float | int | bool, like: str) -> Name:
        """A constant of no dimensions with the dtype of tensor ``like``."""
        return self.constant(value, self.dtype(like))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.builder.types[name].shape

    def rank(self, name: str) -> int:
        """The number of dimensions of a tensor."""
        return len(self.builder.types[name].shape)

    def dtype(self, name: str) -> str:
        """The dtype of a tensor."""
        return self.builder.types[name].dtype

    def reshape(self, x: str, shape: Sequence[int]) -> Name:
        """``x`` in another shape, itself if that is its shape."""
        return self.named(x) if self.shape(x) == tuple(shape) else self.add("reshape", x, shape=tuple(shape))

    def transpose(self, x: str, perm: Sequence[int]) -> Name:
        """``x`` with permuted dimensions, itself if they stay."""
        return self.named(x) if tuple(perm) == tuple(range(len(perm))) else self.add("transpose", x, perm=tuple(perm))

    def cast(self, x: str, dtype: str) -> Name:
        """``x`` as ``dtype``, itself if that is its dtype."""
        return self.named(x) if self.dtype(x) == dtype else self.add("cast", x, to=dtype)
