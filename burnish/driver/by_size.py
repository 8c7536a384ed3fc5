"""Specialization by size: a whole model compiled for the sizes that calls bring, kept by least recent use.

The first sizes get code of their own. Where others come, code for all sizes is tried: extents that differ from call to
call stay open in it, those that have always been equal, or apart by a constant, are one. Inputs whose values decide
shapes (a sampling rate, a number of steps) are constants of what is compiled for these values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from burnish.driver.open_inputs import TEXT, OpenSpec
from burnish.errors import InputError, ModelError, UnsupportedOperator
from burnish.frontend.onnx.context import RuntimeValue
from burnish.loops.sizes import dim
from burnish.runtime.module import Module
from burnish.runtime.sized import bind

KEPT_SIZES = 16  # compiled forms, each for one combination of sizes
FEW_SIZES = 1  # combinations that get code of their own before code for all sizes is tried
MOST_SEEN = 64  # combinations that tell which extents change, and which of them alike
MOST_VALUES = 8  # combinations of values that are constants of a form: more are no modes but data
SMALL_VALUE = 16  # elements of an input that may be such a value
MOST_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4  # of parameters of all forms
ROOM = 8  # code for all sizes takes this many times the largest that was met

Make = Callable[[Mapping[str, Any], Mapping[str, Any]], Module]
"""Shapes by input, whose extents are numbers or sizes; values of inputs -> the module for them."""


@dataclass(eq=False)
class SizedForm:
    """A compiled model for a call: ``places`` of the call's arguments that are its inputs; None where all are."""

    module: Module
    places: tuple[int, ...] | None
    used: int = 0

    def run(self, args: Sequence[Any]) -> Any:
        """The output or the tuple of outputs. Raises InputError."""
        return self.module(*(args if self.places is None else [args[p] for p in self.places]))


@dataclass(eq=False)
class _Sizes:
    """Sizes met with the same values, in order, and the compiled form for all sizes, if there is one."""

    seen: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    open: SizedForm | None = None


class BySize:
    """Compiled forms of a model. ``make`` compiles one; ``behind`` tells the inputs by whose values a tensor is known,
    None where that is not a matter of inputs' values alone.

    ``refused``: why the model is no whole, "" as long as it may be one. ``closed``: why there is no form for all sizes.
    """

    def __init__(self, specs: Sequence[OpenSpec], make: Make, behind: Callable[[str], set[str] | None]) -> None:
        self._specs, self._make, self._behind = tuple(specs), make, behind
        self._forms: dict[tuple[Any, ...], SizedForm] = {}
        self._valued: tuple[int, ...] = ()  # inputs that are constants of a form, by position
        self._sizes: dict[tuple[Any, ...], _Sizes] = {}  # by their values
        self._unfit: set[tuple[Any, ...]] = set()  # sizes, with values, of which the model is no whole
        self._clock = 0
        self.compilations = 0
        self.refused = "" if all(s.kind == "tensor" and s.dtype != TEXT for s in specs) else "inputs that are no arrays"
        self.closed = ""

    def known(self, args: Sequence[Any]) -> SizedForm | None:
        """The form for arguments of sizes that were met before."""
        try:
            form = self._forms.get(self._key(args))
        except (AttributeError, IndexError, TypeError):
            return None
        if form is not None:
            form.used = self._clock = self._clock + 1
        return form

    def find(self, arrays: Sequence[np.ndarray]) -> SizedForm | None:
        """The form for these inputs, compiled if their sizes are new; None where the model is no whole for them.

        Calls take turns. Raises what compilation raises but for sizes that the model does not take.
        """
        if self.refused:
            return None
        form = self.known(arrays)
        if form is not None or self._key(arrays) in self._unfit:
            return form
        form = self._new(arrays)
        if form is not None:
            self._forms[self._key(arrays)] = form
            form.used = self._clock = self._clock + 1
            self._evict()
        elif not self.refused and len(self._unfit) < MOST_SEEN:
            self._unfit.add(self._key(arrays))  # or every call would look again
        return form

    def modules(self) -> Iterator[Module]:
        """The compiled forms, each once."""
        yield from {id(form.module): form.module for form in list(self._forms.values())}.values()

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        shapes = [a.shape for a in args]
        return (*shapes, *self._values(args)) if self._valued else tuple(shapes)

    def _values(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([(args[p].tobytes(), args[p].dtype.char) for p in self._valued])

    def _new(self, arrays: Sequence[np.ndarray]) -> SizedForm | None:
        """A form for sizes or values that are new."""
        shapes = tuple(a.shape for a in arrays)
        while True:
            values = self._values(arrays)
            if values not in self._sizes and len(self._sizes) >= MOST_VALUES:
                names = ", ".join(f"'{self._specs[p].name}'" for p in self._valued)
                self.refused = f"values of {names} change from call to call"
                return None
            met = self._sizes.setdefault(values, _Sizes())
            try:
                form = self._of_all(met, arrays) or self._of_one(shapes, arrays)
            except RuntimeValue as error:
                if not self._take_values(error, arrays):
                    return None
                continue
            except UnsupportedOperator as error:
                self.refused = str(error)
                return None
            except ModelError:
                return None  # sizes that the model does not take, which the parts of it say
            if shapes not in met.seen and len(met.seen) < MOST_SEEN:
                met.seen.append(shapes)
            return form

    def _take_values(self, error: RuntimeValue, arrays: Sequence[np.ndarray]) -> bool:
        """Makes the inputs behind a value that was missed constants of forms, if they may be."""
        names = self._behind(error.tensor)
        places = {p for p, spec in enumerate(self._specs) if spec.name in (names or ())} - {*self._valued}
        if not places or any(arrays[p].size > SMALL_VALUE or arrays[p].dtype.kind not in "iub" for p in places):
            self.refused = str(error)
            return False
        self._valued = tuple(sorted({*self._valued, *places}))
        self._forms.clear()
        self._sizes.clear()
        self._unfit.clear()  # whose values are not in their keys
        return True

    def _form(self, shapes: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> SizedForm:
        fix = {self._specs[p].name: arrays[p] for p in self._valued}
        module = self._make({name: s for name, s in shapes.items() if name not in fix}, fix)
        self.compilations += 1
        names = [spec.name for spec in self._specs]
        places = tuple(names.index(spec.name) for spec in module.inputs)
        return SizedForm(module, None if places == tuple(range(len(names))) else places)

    def _of_one(self, shapes: Sequence[tuple[int, ...]], arrays: Sequence[np.ndarray]) -> SizedForm:
        """A form for these sizes alone."""
        return self._form({spec.name: shape for spec, shape in zip(self._specs, shapes, strict=True)}, arrays)

    def _of_all(self, met: _Sizes, arrays: Sequence[np.ndarray]) -> SizedForm | None:
        """The form for all sizes, made where enough have come; None where there is none for these."""
        shapes = tuple(a.shape for a in arrays)
        if met.open is not None and _takes(met.open, shapes):
            return met.open
        if len(met.seen) < FEW_SIZES or self.closed:
            return None
        wanted = self._open_shapes([*met.seen, shapes])
        if wanted is None:
            return None
        try:
            form = self._form(wanted, arrays)
        except ModelError as error:
            self.closed = str(error)
            return None
        if not _takes(form, shapes):
            return None
        met.open = form
        return form

    def _open_shapes(self, seen: Sequence[tuple[tuple[int, ...], ...]]) -> dict[str, Any] | None:
        """Shapes in which the extents that differed from call to call are dimensions, or so much more than one as they
        always were; None without such extents.
        """
        columns: dict[tuple[int, int], tuple[int, ...]] = {}
        for place, _ in enumerate(self._specs):
            shapes = [each[place] for each in seen]
            if len({len(shape) for shape in shapes}) > 1:
                return None
            columns |= {(place, axis): extents for axis, extents in enumerate(zip(*shapes, strict=True))}
        moving = {extents for extents in columns.values() if len({*extents}) > 1}
        if not moving or any(min(extents) < 1 for extents in moving):
            return None  # an empty one is compiled alone
        taken = {spec.name for spec in self._specs}
        dims: dict[tuple[int, ...], int] = {}  # by differences from the first call
        firsts: dict[tuple[int, ...], int] = {}
        for place, axis in sorted((at for at, e in columns.items() if e in moving), key=lambda at: columns[at][0]):
            extents = columns[place, axis]
            growth = tuple(e - extents[0] for e in extents)
            if growth not in dims:
                shape = self._specs[place].shape
                declared = shape[axis] if shape is not None else ""
                name = declared if isinstance(declared, str) and declared.isidentifier() else f"size{len(dims)}"
                name = name if name not in taken else f"{name}_{len(dims)}"
                taken.add(name)
                dims[growth] = dim(name, 1, 1 << (ROOM * max(extents)).bit_length(), hint=extents[-1])
                firsts[growth] = extents[0]
        return {
            spec.name: tuple(
                extents[0] if extents not in moving
                else dims[growth] + (extents[0] - firsts[growth])
                for extents in (columns[place, axis] for axis in range(len(seen[0][place])))
                for growth in [tuple(e - extents[0] for e in extents)]
            )
            for place, spec in enumerate(self._specs)
        }  # fmt: skip

    def _evict(self) -> None:
        """Forgets forms that were not used for the longest time, where there are too many, or too large ones."""
        forms = {id(form.module): form for form in self._forms.values()}
        latest = sorted(forms.values(), key=lambda form: form.used, reverse=True)
        held = accumulate(form.module.memory["params"] for form in latest)
        kept = {
            id(form.module) for form, nbytes in zip(latest[:KEPT_SIZES], held, strict=False) if nbytes <= MOST_BYTES
        }
        kept.add(id(latest[0].module))
        if len(forms) > len(kept):
            self._forms = {key: form for key, form in self._forms.items() if id(form.module) in kept}
        while len(self._forms) > 64 * KEPT_SIZES:  # sizes of forms for all
            self._forms.pop(next(iter(self._forms)))


def _takes(form: SizedForm, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a form for all sizes takes these."""
    own = [shapes[p] for p in form.places] if form.places is not None else shapes
    specs = form.module.inputs
    if not all(spec.accepts(shape) for spec, shape in zip(specs, own, strict=True)):
        return False
    try:
        bind(specs, own)
    except InputError:
        return False
    return True
