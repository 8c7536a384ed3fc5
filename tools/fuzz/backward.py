"""Random backward passes against PyTorch: small networks of differentiable operators over awkward values."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from burnish.driver.api import compile as compile_graph
from burnish.errors import UnsupportedOperator
from burnish.frontend.torch.export import import_torch
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph

WRONG = ("wrong", "error")
COMPILED = 10  # of so many networks one is compiled, the others are interpreted
AWKWARD = (0.0, 0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, -3.0, 6.0)
SHAPES = ((3, 4), (3, 4), (1, 4), (3, 1), (4,), ())
TOLERANCE = {"float32": 2e-4, "float64": 1e-8}
ROUGH = {"hardsigmoid", "celu"}  # whose constants PyTorch rounds to float32
NO_NAN = {"hardtanh", "relu6", "max", "min"}  # vectors and scalars of PyTorch's differ at NaN, or all NaN share
NOISE = 1e-6  # a deviation below is that of equal numbers about a rounded mean
FAR = 0.01  # relative, between PyTorch's float32 and float64: rounding decides there
SLACK = 50.0  # of how far PyTorch's own result is from that in float64


@dataclass(frozen=True)
class Trial:
    """The outcome of one network, and the operators in it: "right", "wrong", "error", "refused", "unclear", or "apart":
    PyTorch's is NaN because it multiplies a slope of 0 by what is not finite, where a branch not taken, or a sum
    that comes first, does not; or the network's result is NaN, and the gradients are at other places.
    """

    seed: int
    outcome: str
    detail: str
    operators: tuple[str, ...]


Step = tuple[str, tuple[int, ...], Callable[..., Any]]  # name, operands by their number, function


def _unary() -> Mapping[str, Callable[..., Any]]:
    import torch
    from torch.nn import functional as F

    functions = (
        torch.relu, torch.abs, torch.sigmoid, torch.tanh, torch.exp, torch.sin, torch.cos, torch.neg, torch.square,
        torch.sqrt, torch.log, torch.log1p, torch.expm1, torch.reciprocal, torch.rsqrt, torch.erf, torch.atan,
        torch.sign, torch.round, torch.exp2, torch.log2, torch.nan_to_num, torch.frac, torch.sinh, torch.cosh,
        torch.asinh, torch.tan, torch.trunc,
        F.relu6, F.hardtanh, F.leaky_relu, F.elu, F.celu, F.selu, F.silu, F.gelu, F.mish, F.softplus, F.softsign,
        F.hardswish, F.hardsigmoid, F.softshrink, F.hardshrink, F.logsigmoid, F.tanhshrink,
    )  # fmt: skip
    named = {f.__name__: f for f in functions}
    named |= {f"clamp {low} {high}": partial(torch.clamp, min=low, max=high)
              for low, high in ((-1.0, 1.0), (0.0, None), (None, 0.5), (1.0, -1.0))}  # fmt: skip
    named |= {f"pow {p}": partial(torch.pow, exponent=p) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -1.0, -2.0)}
    named |= {"threshold": lambda x: F.threshold(x, 0.5, 2.0), "masked": lambda x: x.masked_fill(x > 0.5, -2.0),
              "double": lambda x: torch.where(x > 0, x, x * x), "detached": lambda x: x * x.detach()}  # fmt: skip
    return named


def _binary() -> Mapping[str, Callable[..., Any]]:
    import torch

    functions = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmod, torch.pow,
                 torch.remainder, torch.xlogy, torch.logaddexp, torch.clamp_min, torch.clamp_max)  # fmt: skip
    return {f.__name__: f for f in functions} | {
        "where": lambda a, b: torch.where(a > b, a, b), "lerp": lambda a, b: torch.lerp(a + 0 * b, b + 0 * a, 0.3),
        "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5), "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    }  # fmt: skip


def _of_matrices() -> Mapping[str, Callable[..., Any]]:
    """Matrix operator on a tensor [3, 4], in any shape."""
    import torch
    from torch.nn import functional as F

    rows, repeated = torch.tensor([2, 0, 0, 1]), torch.tensor([[0, 3, 3], [1, 1, 1], [2, 0, 2]])
    named: dict[str, Callable[..., Any]] = {
        "take rows": lambda x: x[rows], "index_select": lambda x: x.index_select(0, rows),
        "gather": lambda x: x.gather(1, repeated), "flip": lambda x: x.flip(0), "transposed": lambda x: x.t() @ x,
        "cat": lambda x: torch.cat([x, x * 2, x[:1]]), "pad": lambda x: F.pad(x, (1, 2), value=0.5),
        "scatter_add": lambda x: x.scatter_add(1, repeated, x[:, :3]), "roll": lambda x: x.roll(1, 1),
        "layer_norm": lambda x: F.layer_norm(x, (4,)), "rms_norm": lambda x: F.rms_norm(x, (4,)),
        "max_pool": lambda x: F.max_pool1d(x[None], 2, 1), "avg_pool": lambda x: F.avg_pool1d(x[None], 3, 1, 1),
        "cosine": lambda x: F.cosine_similarity(x, x.flip(1)), "outer": lambda x: torch.outer(x[0], x[:, 1]),
        "strided": lambda x: x[:, ::2], "embedding": lambda x: F.embedding(rows, x),
        "tril": lambda x: x.tril(), "stack": lambda x: torch.stack([x, x.sin()], 1), "glu": lambda x: F.glu(x, 1),
    }  # fmt: skip
    for name, dim in (("0", 0), ("1", 1)):
        kept = {"dim": dim, "keepdim": True}
        named |= {
            f"sum {name}": partial(torch.sum, **kept), f"mean {name}": partial(torch.mean, **kept),
            f"amax {name}": partial(torch.amax, **kept), f"amin {name}": partial(torch.amin, **kept),
            f"prod {name}": partial(torch.prod, **kept), f"std {name}": partial(torch.std, **kept),
            f"var {name}": partial(torch.var, **kept), f"logsumexp {name}": partial(torch.logsumexp, **kept),
            f"max {name}": lambda x, k=kept: x.max(**k).values, f"min {name}": lambda x, k=kept: x.min(**k).values,
            f"softmax {name}": partial(torch.softmax, dim=dim), f"cumsum {name}": partial(torch.cumsum, dim=dim),
            f"log_softmax {name}": partial(torch.log_softmax, dim=dim),
            f"normalize {name}": partial(F.normalize, dim=dim),
        }  # fmt: skip
        named |= {f"norm {p} {name}": partial(torch.linalg.vector_norm, ord=p, **kept)
                  for p in (1, 2, 3, 1.5, 0.5, float("inf"), float("-inf"))}  # fmt: skip
    return named | {"max": torch.max, "min": torch.min, "norm": torch.norm, "std": torch.std, "prod": torch.prod}


def _steps(rng: random.Random) -> tuple[list[tuple[int, ...]], list[Step]]:
    """Shapes of the inputs, and steps over them."""
    shapes: list[tuple[int, ...]] = [(3, 4), *(rng.choice(SHAPES) for _ in range(rng.randint(0, 2)))]
    steps: list[Step] = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.45:
            name, f = rng.choice(sorted(_unary().items(), key=lambda item: item[0]))
            steps.append((name, (rng.randrange(len(shapes) + len(steps)),), f))
        else:
            name, f = rng.choice(sorted(_binary().items(), key=lambda item: item[0]))
            steps.append((name, tuple(rng.randrange(len(shapes) + len(steps)) for _ in range(2)), f))
    if rng.random() < 0.6:
        name, f = rng.choice(sorted(_of_matrices().items(), key=lambda item: item[0]))
        steps.append((name, (-1,), lambda x, f=f: f(x.expand(3, 4) if x.dim() < 2 or x.shape != (3, 4) else x)))
    return shapes, steps


def _values(rng: random.Random, shape: Sequence[int]) -> np.ndarray:
    """Numbers of which many are equal, 0, or at a corner; a few are infinite or NaN."""
    kind = rng.random()

    def one() -> float:
        if kind < 0.15:  # all equal
            return 1.0
        if kind < 0.25 and rng.random() < 0.2:
            return rng.choice((float("inf"), float("-inf"), float("nan")))
        return rng.choice(AWKWARD) if rng.random() < 0.6 else round(rng.gauss(0, 1.5), 3)

    flat = [0.0 if kind > 0.92 else one() for _ in range(int(np.prod(shape)))]
    return np.array(flat).reshape(tuple(shape))


def trial(seed: int) -> Trial:
    """One network, that of a seed."""
    import torch

    rng = random.Random(seed)
    shapes, steps = _steps(rng)
    plain = any(name in NO_NAN for name, _, _ in steps)
    dtype = rng.choice(("float32", "float64", "float64"))
    feeds = [_values(rng, shape) for shape in shapes]
    feeds = [np.nan_to_num(a, nan=1.0, posinf=2.0, neginf=-2.0) for a in feeds] if plain else feeds

    class Network(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            values = [*given]
            for _, operands, f in steps:
                values.append(f(*(values[k] for k in operands)))
            return values[-1]

    def backward(kind: str) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        given = [torch.tensor(a, dtype=getattr(torch, kind), requires_grad=True) for a in feeds]
        y = Network()(*given)
        seeds = torch.linspace(0.5, 1.5, max(y.numel(), 1), dtype=y.dtype)[: y.numel()].reshape(y.shape)
        found = torch.autograd.grad(y, given, seeds, allow_unused=True, materialize_grads=True)
        return y.detach().numpy(), [g.numpy() for g in found], seeds.numpy()

    operators = tuple(f"{name}{list(operands)}" for name, operands, _ in steps)
    done = partial(Trial, seed, operators=(dtype, *operators))
    try:
        y, want, seeds = backward(dtype)
        _, other, _ = backward("float64" if dtype == "float32" else "float32")
    except RuntimeError as error:  # no gradient in PyTorch, or shapes that do not go together
        return done(outcome="no oracle", detail=str(error)[:100])
    examples = tuple(torch.tensor(a, dtype=getattr(torch, dtype), requires_grad=True) for a in feeds)
    try:
        model = import_torch(Network(), examples, training=True).graph
        graph = gradients(model, model.outputs[0], [*model.inputs])
        found = _run(graph, feeds, seeds, y.size, seed % COMPILED == 0)
    except UnsupportedOperator as error:
        return done(outcome="refused", detail=str(error)[:160])
    except Exception as error:  # whatever it is, it is a finding
        return done(outcome="error", detail=f"{type(error).__name__}: {str(error)[:160]}")
    if any(name.startswith("std") for name, _, _ in steps) and ((y != 0) & (np.abs(y) < NOISE)).any():
        return done(outcome="unclear", detail="the deviation is that of rounding")
    rough = any(name in ROUGH for name, _, _ in steps)
    outcome, detail = _judged("float32" if rough else dtype, found, want, other, bool(np.isnan(y).any()))
    return done(outcome=outcome, detail=detail)


def _run(graph: Graph, feeds: Sequence[np.ndarray], seeds: np.ndarray, size: int, compiled: bool) -> list[np.ndarray]:
    """The gradients by all inputs."""
    inputs = [*feeds, *([seeds] if len(graph.inputs) > len(feeds) else [])]
    given = {name: np.asarray(a, graph.types[name].dtype) for name, a in zip(graph.inputs, inputs, strict=True)}
    if compiled:
        results = compile_graph(graph, threads=1)(**given)
        found = dict(zip(graph.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    else:
        found = evaluate(graph, given)
    scale = 1.0 if len(graph.inputs) > len(feeds) else float(seeds.reshape(-1)[0]) if size else 1.0
    return [np.asarray(found[name]) * scale for name in graph.outputs[1:]]


def _judged(
    dtype: str, found: Sequence[np.ndarray], want: Sequence[np.ndarray], others: Sequence[np.ndarray], nan: bool
) -> tuple[str, str]:
    """Right where each element is PyTorch's, up to rounding; unclear where that is another one in the other dtype."""
    tolerance, apart, unclear = TOLERANCE[dtype], False, False
    for number, (own, peer, wide) in enumerate(zip(found, want, others, strict=True)):
        if own.shape != peer.shape:
            return "wrong", f"input {number}: shape {own.shape}, PyTorch {peer.shape}"
        finite = np.isfinite(peer)
        if not np.array_equal(finite, np.isfinite(wide)) or not np.allclose(
            peer[finite], wide[finite], rtol=FAR, atol=FAR
        ):
            unclear = True
            continue
        scale = max(1.0, float(np.abs(peer[finite]).max(initial=0.0)))
        away = np.abs(np.where(finite, peer, 0) - np.where(finite, wide, 0)) * SLACK * (dtype == "float32")
        with np.errstate(all="ignore"):
            same = (np.abs(own - peer) <= tolerance * scale + away) | (own == peer) | (np.isnan(own) & np.isnan(peer))
        apart |= bool((np.isnan(peer) & ~np.isnan(own)).any())
        same |= np.isnan(peer) & ~np.isnan(own)
        if not same.all():
            if nan:
                apart = True
                continue
            place = tuple(int(k) for k in np.argwhere(~same)[0])
            words = f"input {number}{list(place)}: {own[place]:.8g}, PyTorch {peer[place]:.8g}"
            return "wrong", words
    return ("unclear" if unclear else "apart" if apart else "right"), ""


def run(seeds: Sequence[int], tell: Callable[[str], None]) -> int:
    """Trials of all seeds; 1 if any is wrong, else 0."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with np.errstate(all="ignore"):
        for seed in seeds:
            found = trial(seed)
            counts[found.outcome] += 1
            if found.outcome in WRONG:
                tell(f"seed {seed} {found.outcome}: {found.detail}; {' '.join(found.operators)}")
            elif found.outcome != "right":
                reasons[f"{found.outcome}: {found.detail}"] += 1
    tell(f"{sum(counts.values())} networks: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    for reason, count in reasons.most_common(12):
        tell(f"  {count}x {reason}")
    return int(any(counts[outcome] for outcome in WRONG))
