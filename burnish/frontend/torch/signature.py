"""Call signatures of exported networks: structures of arguments and results, names, and buffers that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import UnsupportedOperator


@dataclass(frozen=True)
class CallSignature:
    """Call signature of a network: the structures of arguments and results, whose leaves are numbered.

    ``inputs``: of every leaf of the arguments the number of the graph's input, or the value that it had as an example.
    ``outputs``: of every leaf of the result the number of the graph's output, or its value. ``names``: of arguments, in
    order, of which the first ``positional`` were given by position.
    """

    in_spec: Any
    out_spec: Any
    inputs: tuple[tuple[int, Any], ...]  # number or -1, value
    outputs: tuple[tuple[int, Any], ...]
    names: tuple[str, ...]
    positional: int


def children_of(spec: Any) -> list[Any]:
    """The children of a structure of arguments (TreeSpec), whose name differs with PyTorch's version."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def argument_names(program: Any, names: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Number of arguments that the example gave by position, and the names of all arguments."""
    positional, named = children_of(program.call_spec.in_spec)
    own = list(named.context or [])
    if not names:
        lead = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        names = [*lead[: positional.num_children], *own]
    return positional.num_children, tuple(names)


def output_names(spec: Any) -> list[str]:
    """Names for the leaves of a result: its keys where it has some, else "output"."""
    from torch.utils import _pytree

    try:
        tree = _pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        paths = [path for path, _ in _pytree.tree_flatten_with_path(tree)[0]]
    except Exception:  # a class of the user's own may not take numbers in place of tensors
        return ["output"] * spec.num_leaves
    keys = [[str(getattr(step, "key", getattr(step, "name", getattr(step, "idx", "")))) for step in p] for p in paths]
    return [".".join(k) if k and not k[0].isdigit() else ".".join(["output", *k]) for k in keys]


def changed_buffers(signature: Any) -> frozenset[str]:
    """The buffers that the program changes. Raises UnsupportedOperator for inputs that it does."""
    found = set()
    for spec in signature.output_specs:
        kind = spec.kind.name
        if kind == "BUFFER_MUTATION":
            found.add(spec.target)
        elif kind != "USER_OUTPUT":
            allowed = "a network that changes its buffers at most"
            raise UnsupportedOperator(f"model: '{spec.target}': found {kind.lower()}; allowed: {allowed}")
    return frozenset(found)
