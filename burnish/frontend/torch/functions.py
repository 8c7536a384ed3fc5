"""Functions of PyTorch with a backward of their own (``autograd.Function``), as graphs that have that gradient.

A backward is linear in the gradient that it is given, ``b(g)``, so the gradient of ``h(x) = bᵀ x``, with what backward
reads held fixed, is ``b(g)``. A function becomes its forward, detached, plus ``h(x) - h(x)``, of which the second is
detached: its value is the forward's, its gradient the backward's.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

from burnish.errors import UnsupportedOperator

SCALES = (1e-3, 1e6)  # by which a linear backward may be scaled
CHECKPOINT = "CheckpointFunction"  # torch.utils.checkpoint: its gradient is that of the function it calls


class FunctionContext:
    """The context of one call, as ``forward`` and ``backward`` have it."""

    def __init__(self, name: str, arguments: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = tuple(_is_real(a) for a in arguments)
        self._name = name

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Nothing: backward gives no gradient of them."""

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: gradients of all results are there."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Raises UnsupportedOperator: an argument that is changed has another gradient afterwards."""
        raise UnsupportedOperator(f"autograd.Function '{self._name}': found mark_dirty; allowed: results of its own")


@contextlib.contextmanager
def own_backward(network: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
    """While it lasts, functions with a backward of their own are traced with it.

    Raises UnsupportedOperator, naming the function, for a backward that cannot be traced or is not linear; the network
    is called for that with the arguments, and is then as it was.
    """
    seen: list[str] = []

    def traced(kind: Any, original: Any, values: tuple[Any, ...]) -> Any:
        seen.append(kind.__qualname__)
        return _traced(kind, values)

    with _replaced(traced):
        try:
            yield
        except Exception as error:
            if not seen or isinstance(error, UnsupportedOperator):
                raise
            words = f"autograd.Function '{seen[-1]}': its backward cannot be followed: {type(error).__name__}: {error}"
            raise UnsupportedOperator(words[:1000]) from error
    if seen:
        import torch

        before = [(buffer, buffer.clone()) for buffer in network.buffers()]
        with _replaced(_checked), torch.random.fork_rng(devices=[]), torch.no_grad():
            network(*arguments, **named)
            for buffer, value in before:
                buffer.copy_(value)


class _Apply:
    """The code that ``apply`` of all functions runs meanwhile, also of those that were bound before: it has the free
    variable ``__class__``, as that of torch has.
    """

    def apply(self, *values: Any, **named: Any) -> Any:
        from burnish.frontend.torch import functions

        __class__  # type: ignore[name-defined]  # noqa: B018
        return functions.applied(self, values, named)


_calls: list[tuple[Any, Any]] = []  # what replaces apply at the time, and torch's own


def applied(kind: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The call of a function while another one is in the place of its ``apply``."""
    call, original = _calls[-1]
    if kind.__name__ == CHECKPOINT:
        return values[0](*values[2:])
    if kind.__module__.startswith("torch.") or named:
        return original(kind, *values, **named)
    return call(kind, original, values)


@contextlib.contextmanager
def _replaced(call: Any) -> Iterator[None]:
    """``apply`` of all functions by ``call``, of the class, torch's own ``apply`` and the arguments."""
    from torch.autograd import Function

    method = Function.__dict__["apply"].__func__
    code = method.__code__
    original = types.FunctionType(code, method.__globals__, code.co_name, method.__defaults__, method.__closure__)
    _calls.append((call, original))
    method.__code__ = _Apply.apply.__code__
    try:
        yield
    finally:
        method.__code__ = code
        _calls.pop()


def _is_real(value: Any) -> bool:
    return hasattr(value, "detach") and value.is_floating_point()


def _forward(kind: Any, values: Sequence[Any]) -> tuple[FunctionContext, Any]:
    """The context of a call with detached arguments, and what it gives."""
    from torch.autograd import Function

    given = [v.detach() if hasattr(v, "detach") else v for v in values]
    call = FunctionContext(kind.__qualname__, values)
    if kind.setup_context is Function.setup_context:
        return call, kind.forward(call, *given)
    result = kind.forward(*given)
    kind.setup_context(call, tuple(given), result)
    return call, result


def _backward(kind: Any, call: FunctionContext, gradients: Sequence[Any]) -> tuple[Any, ...]:
    backward = getattr(kind.backward, "__wrapped__", kind.backward)  # that of once_differentiable
    found = backward(call, *gradients)
    return found if isinstance(found, tuple) else (found,)


def _traced(kind: Any, values: tuple[Any, ...]) -> Any:
    import torch

    call, result = _forward(kind, values)
    results = result if isinstance(result, tuple) else (result,)
    with torch.enable_grad():
        seeds = [torch.zeros_like(r).requires_grad_() if _is_real(r) else None for r in results]
        found = _backward(kind, call, seeds)
        terms = [(d * v).sum() for d, v in zip(found, values, strict=False) if d is not None and _is_real(v)]
        real = [s for s in seeds if s is not None]
        linked = [t for t in terms if t.requires_grad]
        own = (
            torch.autograd.grad(sum(linked), real, create_graph=True, allow_unused=True)
            if linked
            else [None] * len(real)
        )
        parts = iter(own)
        made = []
        for r, seed in zip(results, seeds, strict=True):
            h = None if seed is None else next(parts)
            plain = r.detach() if hasattr(r, "detach") else r
            made.append(plain if h is None else plain + (h - h.detach()))
    return tuple(made) if isinstance(result, tuple) else made[0]


def _checked(kind: Any, original: Any, values: tuple[Any, ...]) -> Any:
    """The call, after its backward was found to be linear."""
    import torch

    with torch.no_grad():
        _, result = _forward(kind, values)
        results = result if isinstance(result, tuple) else (result,)
        generator = torch.Generator().manual_seed(0)
        first, second = (
            [torch.rand(r.shape, generator=generator).sub(0.3).to(r) if _is_real(r) else None for r in results]
            for _ in range(2)
        )

        def backward(gradients: Sequence[Any]) -> list[Any]:
            found = _backward(kind, _forward(kind, values)[0], gradients)
            return [d.double() for d in found if d is not None]

        def combined(scale: float) -> list[Any]:
            return [a if b is None else a + b * scale for a, b in zip(first, second, strict=True)]

        one, two = backward(first), backward(second)
        for scale in SCALES:
            for a, b, both in zip(one, two, backward(combined(scale)), strict=True):
                bound = 1e-3 * max(1e-30, float((a + b * scale).abs().max())) if a.numel() else 0.0
                if not torch.allclose(both, a + b * scale, rtol=0, atol=bound):
                    raise UnsupportedOperator(
                        f"autograd.Function '{kind.__qualname__}': found a backward that is not linear in its "
                        "gradient; allowed: a linear one, which a compiled step can differentiate by"
                    )
    return original(kind, *values)
