"""ONNX's operator schemas: how many inputs and outputs, which dtypes and attributes, in each opset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import onnx
import onnx.defs

from burnish.frontend.onnx.domains import split_key

_ELEMENTS = {  # the schemas' own names of element types
    "float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}  # fmt: skip
_NUMBERS = {f"AttrType.{name}": number for name, number in onnx.AttributeProto.AttributeType.items()}
_OPTION = onnx.defs.OpSchema.FormalParameterOption


@dataclass(frozen=True)
class OperatorSchema:
    """An ONNX operator: the type parameters of inputs and outputs (the last may repeat), and the dtypes they allow.

    ``single_inputs`` and ``single_outputs`` are positions that must be there; ``attributes`` maps names to the number
    of their type in ``AttributeProto`` and whether they must be given. Inputs that repeat are ``variadic``; all of them
    must be there, and have one dtype if they have the ``same_dtypes``.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    allowed: Mapping[str, frozenset[str]]
    input_count: tuple[int, int]
    output_count: tuple[int, int]
    single_inputs: frozenset[int]
    single_outputs: frozenset[int]
    attributes: Mapping[str, tuple[int, bool]]
    variadic: bool
    same_dtypes: bool


@cache
def described_domains() -> frozenset[str]:
    """The domains whose operators the standard describes."""
    return frozenset(schema.domain for schema in onnx.defs.get_all_schemas())


def known_operator(key: str) -> bool:
    """Whether the standard describes an operator in some opset."""
    domain, name = split_key(key)
    return bool(onnx.defs.has(name, domain=domain))


@lru_cache(maxsize=1024)
def signature(op_type: str, opset: int) -> OperatorSchema | None:
    """The signature of an operator, ``domain.Operator`` of other domains than the default one, in an opset.

    None if it is not defined there (any more).
    """
    domain, name = split_key(op_type)
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated and onnx.defs.get_schema(name, domain=domain).deprecated:
        return None  # for good: a version that a later one replaces is defined
    allowed = {c.type_param_str: _dtypes(c.allowed_type_strs) for c in schema.type_constraints}
    formals = [*schema.inputs, *schema.outputs]
    allowed.update({f.type_str: _dtypes([f.type_str]) for f in formals if f.type_str not in allowed})
    return OperatorSchema(
        inputs=tuple(f.type_str for f in schema.inputs),
        outputs=tuple(f.type_str for f in schema.outputs),
        allowed=allowed,
        input_count=(schema.min_input, schema.max_input),
        output_count=(schema.min_output, schema.max_output),
        single_inputs=frozenset(i for i, f in enumerate(schema.inputs) if f.option == _OPTION.Single),
        single_outputs=frozenset(i for i, f in enumerate(schema.outputs) if f.option == _OPTION.Single),
        attributes={name: (_NUMBERS[str(a.type)], a.required) for name, a in schema.attributes.items()},
        variadic=any(f.option == _OPTION.Variadic for f in schema.inputs),
        same_dtypes=not schema.inputs or schema.inputs[-1].is_homogeneous,
    )


def _dtypes(type_strings: Collection[str]) -> frozenset[str]:
    elements = (text.removeprefix("tensor(").removesuffix(")") for text in type_strings if text.startswith("tensor("))
    return frozenset(_ELEMENTS.get(element, element) for element in elements)
