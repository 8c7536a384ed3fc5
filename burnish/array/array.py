"""NumPy-like arrays, lazily evaluated: signs and methods record operators, and whoever reads a value runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.array.geometry import NoView, ViewGeometry, reshaped
from burnish.array.lazy import LazyValue, change, flush, materialize
from burnish.array.memory import keep_apart, view_of
from burnish.array.operators import ABSOLUTE, CAST, COPY, EXPAND, NEGATIVE, RESHAPE, SIGNS, TRANSPOSE
from burnish.array.recording import apply, as_number, from_numpy, part, refuse_operand, scalar_beside
from burnish.array.signs import binary, in_place, quick
from burnish.array.types import array_type, dtype_name, fits
from burnish.errors import InputError
from burnish.runtime.dlpack import CPU, exported_array


class Array:
    """An array of numbers. Operations on it are recorded, and run when a value is asked for.

    What shares its memory (an index by integers and slices, ``reshape``, ``T``) is a view: changes of either are seen
    in the other, as with NumPy. ``value``: what it holds now.
    """

    __slots__ = ("value",)
    __array_ufunc__ = None  # NumPy's arrays leave the operation to this class
    __hash__ = None  # type: ignore[assignment]

    value: LazyValue

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.value.type.shape

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype; bfloat16 is that of ``ml_dtypes``."""
        return self.value.type.numpy

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.value.type.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.value.type.tensor.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.value.type.nbytes

    # --- values ----------------------------------------------------------------------------------------------------

    def wait(self) -> Array:
        """Returns when the value is in memory. Raises what its computation raised."""
        value = self.value
        if value.block is None:
            flush()
        if value.block is None or value.block.tag is not None:
            materialize(value)
        return self

    def numpy(self) -> np.ndarray:
        """A copy as an array of NumPy."""
        return self._view().copy()

    asnumpy = numpy

    def item(self) -> Any:
        """The only element, as a number of Python. Raises InputError where there are others."""
        if self.size != 1:
            raise InputError(f"array of shape {list(self.shape)}; allowed: one element, for it to be a number")
        return self._view().item()

    def tolist(self) -> Any:
        """Nested lists of numbers."""
        return self._view().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a view of an array without a copy: use numpy.from_dlpack")
        return self.numpy() if dtype is None else self._view().astype(dtype)

    def __dlpack__(self, **asked: Any) -> Any:
        """The memory itself: from now on changes are made there, and seen on both sides."""
        block = materialize(self.value)
        keep_apart(block)
        return exported_array(self._view(), **asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def _view(self) -> np.ndarray:
        """The memory as an array of NumPy, for use while this array holds it."""
        value = self.value
        block = materialize(value)
        return view_of(block, value.address, value.type.shape, value.type.numpy)

    def __repr__(self) -> str:
        text = np.array2string(self._view(), separator=", ", prefix="array(")
        return f"array({text}, dtype={self.value.type.dtype})"

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self._view().__index__()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[at] for at in range(len(self)))

    def __contains__(self, number: Any) -> bool:
        return number in self._view()

    # --- signs -----------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:  # the others are made from the table of signs

        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __matmul__(self, other: Any) -> Array: ...
        def __pow__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __neg__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __lt__(self, other: Any) -> Array: ...

    def __pos__(self) -> Array:
        return self.copy()

    def __invert__(self) -> Array:
        return self.__xor__(True if self.value.type.dtype == "bool" else -1)

    # --- copies and views ------------------------------------------------------------------------------------------

    def copy(self) -> Array:
        """A copy, which shares nothing."""
        return holding(apply(COPY, [self.value], {})[0])

    def astype(self, dtype: Any) -> Array:
        """A copy converted to another dtype."""
        name = dtype_name(dtype)
        return self.copy() if name == self.value.type.dtype else holding(apply(CAST, [self.value], {"to": name})[0])

    def __getitem__(self, index: Any) -> Array:
        if is_basic(index):
            return self._derived(lambda a: a[as_view(index)])
        return holding(from_numpy(self._view()[plain_index(index)]))

    def __setitem__(self, index: Any, new: Any) -> None:
        if is_basic(index):
            self[index]._assign(as_value(new, self.value.type.dtype))
            return
        place, value = plain_index(index), as_value(new, self.value.type.dtype)
        self._write(lambda memory, source: memory.__setitem__(place, source), value)

    def reshape(self, *shape: Any) -> Array:
        """A view of another shape with as many elements; one extent may be -1. A copy where no view can have it."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        try:
            return self._derived(lambda a: reshaped(a, wanted))
        except NoView:
            return holding(apply(RESHAPE, [self.value], {"shape": wanted})[0])

    def transpose(self, *axes: int) -> Array:
        """A view with the dimensions in this order; by default reversed."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        return self._derived(lambda a: a.transpose(order or None))

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """A view with the dimensions reversed."""
        return self.transpose()

    def ravel(self) -> Array:
        """A view of one dimension."""
        return self.reshape(-1)

    def flatten(self) -> Array:
        """A copy of one dimension."""
        return self.reshape(-1).copy()

    def _derived(self, make: Callable[[np.ndarray], np.ndarray]) -> Array:
        """A view, by what makes one of NumPy's."""
        return ArrayView(self, ViewGeometry.of(self.value.type).changed(make))

    def _assign(self, value: LazyValue) -> None:
        """Gives the array a new value in place. Raises InputError where it does not fit."""
        own = self.value
        if value.type is own.type and (own.block is None or own.block.home is not None):
            self.value = value  # in the memory of the old one, if nobody else holds that
            return
        check_fits(value, own.type.shape, own.type.dtype)
        if own.block is None or own.block.home is not None:
            self.value = stretched(value, own)
        else:
            self._write(_fill, value)

    def _write(self, write: Callable[[np.ndarray, np.ndarray], Any], source: LazyValue) -> None:
        """Changes the memory by ``write(memory, source)``."""
        own = self.value
        given, block = materialize(source), materialize(own)
        memory = view_of(block, own.address, own.type.shape, own.type.numpy)
        new = view_of(given, source.address, source.type.shape, source.type.numpy)
        change(block, lambda: write(memory, new), [given])


class ArrayView(Array):
    """Part of another array's memory, or all of it in another order: what either changes, the other sees."""

    __slots__ = ("geometry", "root")

    def __init__(self, of: Array, geometry: ViewGeometry) -> None:
        self.root: Array = of.root if isinstance(of, ArrayView) else of
        self.geometry = geometry

    @property
    def value(self) -> LazyValue:  # type: ignore[override]
        """The elements as they are now, as a value."""
        geometry, root = self.geometry, self.root.value
        if geometry.permutation is None:
            return from_numpy(self._view())
        if root.block is None and geometry.type.nbytes != root.type.nbytes:
            materialize(root)  # a part of it, that begins at another place each time, would be another program each
        order = geometry.permutation
        kind = array_type(tuple(geometry.shape[d] for d in order), geometry.type.dtype)
        if root.block is None:
            dense = apply(RESHAPE, [root], {"shape": kind.shape})[0] if kind is not root.type else root
        else:
            dense = part(root, kind, geometry.offset)
        if geometry.contiguous:
            return dense
        inverse = tuple(order.index(d) for d in range(len(order)))
        return apply(TRANSPOSE, [dense], {"perm": inverse})[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.geometry.shape

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype."""
        return self.geometry.type.numpy

    def wait(self) -> Array:
        """Returns when the value is in memory."""
        self.root.wait()
        return self

    def _view(self) -> np.ndarray:
        root, geometry = self.root.value, self.geometry
        return view_of(
            materialize(root), root.address + geometry.offset, geometry.shape, self.dtype, geometry.strides
        )  # fmt: skip

    def __dlpack__(self, **asked: Any) -> Any:
        keep_apart(materialize(self.root.value))
        return exported_array(self._view(), **asked)

    def _derived(self, make: Callable[[np.ndarray], np.ndarray]) -> Array:
        return ArrayView(self, self.geometry.changed(make))

    def _assign(self, value: LazyValue) -> None:
        check_fits(value, self.geometry.shape, self.geometry.type.dtype)
        self._write(_fill, value)

    def _write(self, write: Callable[[np.ndarray, np.ndarray], Any], source: LazyValue) -> None:
        given = materialize(source)
        new = view_of(given, source.address, source.type.shape, source.type.numpy)
        memory = self._view()
        block = self.root.value.block
        assert block is not None
        if given is block:
            new = new.copy()  # a part of the same array, which may overlap
        change(block, lambda: write(memory, new), [given])


def holding(value: LazyValue) -> Array:
    """The array of a value that no other array holds."""
    array = Array()
    array.value = value
    return array


def as_value(given: Any, beside: str = "float32") -> LazyValue:
    """Operand as a lazy value: an array's own, a copy of a NumPy array, or a scalar for a number.

    ``beside``: the dtype of the other operand, which a number follows. Raises InputError.
    """
    if isinstance(given, Array):
        return given.value
    number = as_number(given)
    if number is not None:
        return scalar_beside(number, beside)
    if isinstance(given, np.ndarray | np.generic):
        return from_numpy(np.asarray(given))
    if isinstance(given, list | tuple):
        return from_numpy(
            np.asarray(plain_index(given) if isinstance(given, tuple) else [plain_index(g) for g in given])
        )
    raise refuse_operand(given)


def stretched(value: LazyValue, own: LazyValue) -> LazyValue:
    """A value as one of another's type."""
    if value.type.dtype != own.type.dtype:
        value = apply(CAST, [value], {"to": own.type.dtype})[0]
    return value if value.type is own.type else apply(EXPAND, [value], {"shape": own.type.shape})[0]


def check_fits(value: LazyValue, shape: tuple[int, ...], dtype: str) -> None:
    """Raises InputError for a value that cannot be written to an array of this type."""
    try:
        same = np.broadcast_shapes(value.type.shape, shape) == shape
    except ValueError:
        same = False
    if not same:
        raise InputError(
            f"in place: found a result of shape {list(value.type.shape)}; allowed: one that broadcasts to {list(shape)}"
        )
    if not fits(value.type.dtype, dtype):
        raise InputError(f"in place: found a result of dtype {value.type.dtype}; allowed: one that fits into {dtype}")


def _fill(memory: np.ndarray, new: np.ndarray) -> None:
    np.copyto(memory, new, casting="unsafe")


def is_basic(index: Any) -> bool:
    """Whether an index is made of integers, slices, ``...`` and ``None``, and gives a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        isinstance(p, slice) or p is None or p is Ellipsis
        or (hasattr(p, "__index__") and not isinstance(p, bool | np.bool_ | np.ndarray | Array))
        for p in parts
    )  # fmt: skip


def as_view(index: Any) -> Any:
    """A basic index that gives a view of an element too."""
    parts = index if isinstance(index, tuple) else (index,)
    return parts if any(p is Ellipsis for p in parts) else (*parts, ...)


def plain_index(index: Any) -> Any:
    """An index of NumPy's."""
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    return index.numpy() if isinstance(index, Array) else index


def _unary(operator: str) -> Callable[[Array], Array]:
    return quick(lambda x: holding(apply(operator, [x.value], {})[0]), Array)


setattr(Array, "__neg__", _unary(NEGATIVE))  # noqa: B010
setattr(Array, "__abs__", _unary(ABSOLUTE))  # noqa: B010
for _sign in SIGNS:
    _forward, _reverse = binary(_sign, Array, as_value)
    setattr(Array, f"__{_sign.method}__", _forward)
    if _sign.reflected:
        setattr(Array, f"__r{_sign.method}__", _reverse)
    if _sign.in_place:
        setattr(Array, f"__i{_sign.method}__", in_place(_forward))
