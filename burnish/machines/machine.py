"""Forms of a machine's description: cores, rates, and the package's whole as one object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from burnish.machines.decoupled import Decoupled
from burnish.machines.dialect import Dialect
from burnish.machines.intrinsics import TensorIntrinsic
from burnish.machines.scopes import MemoryScope
from burnish.machines.unit import MatrixUnit

STRICT = "strict"  # the precision of products whose factors count with all their bits


@dataclass(frozen=True)
class Core:
    """One core of a CPU as declared data: ``multiply_bytes`` of the vectors two of which are multiplied and added in a
    cycle (None: whole vectors), cycles a second, bytes a second moved through the caches behind the first, and from
    memory.
    """

    multiply_bytes: int | None
    clock: float
    cache_bandwidth: float
    memory_bandwidth: float


@dataclass(frozen=True)
class Rates:
    """Rates of one core, a second: float32 operations, bytes through the caches behind the first, bytes from memory,
    and operations of the matrix unit (0 without).
    """

    flops: float
    cache_bandwidth: float
    memory_bandwidth: float
    matrix_flops: float = 0.0


@dataclass(frozen=True)
class CpuModel:
    """A target by name: LLVM's CPU and features, caches in bytes, cores; what a core does, where that is declared here
    and not by :class:`Core`.
    """

    name: str
    cpu: str
    features: str
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    rates: Rates | None = None


@dataclass(frozen=True, eq=False)
class Warps:
    """Warps of a grid's threads: ``size`` of them go on together, and combine what each holds without a barrier.

    ``reduce``: the intrinsic that does, by the kind and dtype of a reduction. ``reserved``: bytes of a
    multiprocessor's L1, which shared memory is a part of, that no block can have (``Target.shared_bytes``).
    """

    size: int
    reduce: Mapping[tuple[str, str], TensorIntrinsic]
    reserved: int


@dataclass(frozen=True)
class CpuCheck:
    """LLVM IR of ``i1 @{p}_able()``, whether a program's CPU runs some code, and machine code that it calls by name:
    ``{p}_NAME``, where ``{p}`` is whatever the program's symbols begin with.
    """

    text: str
    code: Mapping[str, bytes] = field(default_factory=dict)


def unchecked(features: Collection[str]) -> CpuCheck:
    """Nothing is asked of the CPU."""
    del features
    return CpuCheck("define internal i1 @{p}_able() nounwind {\n  ret i1 true\n}\n")


@dataclass(frozen=True)
class System:
    """Linux on the machine: system call numbers by name, and the LLVM intrinsic that tells a core it is spinning.
    ``features``: LLVM's, as +a,+b, that every such system has beyond what LLVM takes for granted. ``emulation``: GNU's
    linkers' name of it; ``elf_flags``: in the head of its objects. ``check``: of the CPU that a program runs on.
    """

    calls: Mapping[str, int]
    pause: str
    features: str = ""
    emulation: str = ""
    elf_flags: int = 0
    check: Callable[[Collection[str]], CpuCheck] = unchecked


@dataclass(frozen=True, eq=False)
class Machine:
    """Description of a machine, one for each package of ``machines``.

    ``kind`` is what schedule templates are found by. ``architectures`` are the first words of LLVM's triples; the first
    is that of ``models``, with ``system_of_triple`` behind it. ``vectors``: bytes and number of vector registers, from
    the features. ``cores``: those that differ from ``core``, by LLVM's name. ``flags``: LLVM's feature -> the kernel's
    word for it in /proc/cpuinfo.
    ``flush``: the LLVM intrinsic that writes back and drops a cache line, and the fence behind it.

    A machine that is not programmed through LLVM has ``compile``: (loop program, target) -> code of its own form and
    bytes of scratch a thread; it refuses what it cannot lower by :class:`~burnish.errors.ScheduleError`. One from
    its ``device`` makes what runs that code (:class:`burnish.runtime.device.Device`). One from
    outside of the package brings its schedule ``templates`` (:class:`burnish.kernels.template.Template`), best first;
    its ``version`` is part of the keys of cached kernels.

    ``decoupled``: the units of a machine that run at the same time, and wait for each other by tokens; programs for
    its ``compile`` have gone through its ``passes``, and through the lowering of virtual threads, which inserts tokens.
    ``blocked``: dtypes of images that kernels read and write in blocks of channels. ``channels_last``: those of images
    that are stored with their channels next to each other, as its products take them. ``offloads``: it is driven by a
    CPU, which runs what none of its own templates takes. ``config``: what its templates know of it beyond this.
    ``warps``: how the threads of its grid go on, if it has one. ``precisions``: those that may be asked for, and the
    dtypes whose products each rounds the factors of, to be as fast as those of narrower types.

    ``import_path``, as ``module:name``, is where worker processes import it; without one it is sent to them by its
    parts, whose functions must be those of modules.
    """

    name: str
    architectures: tuple[str, ...]
    vectors: Callable[[Collection[str]], tuple[int, int]]
    core: Core
    dialect: Dialect
    scopes: tuple[MemoryScope, ...]
    intrinsics: tuple[TensorIntrinsic, ...] = ()
    units: tuple[MatrixUnit, ...] = ()
    kind: str = "cpu"
    cores: Mapping[str, Core] = field(default_factory=dict)
    models: tuple[CpuModel, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    system: System | None = None
    flush: Callable[[Collection[str]], tuple[str, str]] | None = None
    compile: Callable[[Any, Any], tuple[bytes, int]] | None = None
    device: Callable[[], Any] | None = None
    templates: tuple[Any, ...] = ()
    version: str = ""
    passes: tuple[Callable[[Any], Any], ...] = ()
    decoupled: Decoupled | None = None
    blocked: tuple[str, ...] = ("float32",)
    channels_last: tuple[str, ...] = ()
    precisions: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {STRICT: ()})
    offloads: bool = False
    config: Any = None
    warps: Warps = Warps(1, {}, 0)
    import_path: str = ""
    system_of_triple: str = "unknown-linux-gnu"

    @cached_property
    def named_intrinsics(self) -> Mapping[str, TensorIntrinsic]:
        """Its intrinsics and those of its units, by name."""
        return {t.name: t for t in (*self.intrinsics, *(t for unit in self.units for t in unit.intrinsics))}

    @cached_property
    def named_scopes(self) -> Mapping[str, MemoryScope]:
        """Its scopes, by name."""
        return {scope.name: scope for scope in self.scopes}

    def with_(
        self, intrinsics: Iterable[TensorIntrinsic] = (), scopes: Iterable[MemoryScope] = (), **changes: Any
    ) -> Machine:
        """A machine that has more intrinsics and scopes; those of a known name take its place."""
        own, places = (*intrinsics,), (*scopes,)
        return replace(
            self,
            intrinsics=(*(t for t in self.intrinsics if t.name not in {o.name for o in own}), *own),
            scopes=(*(s for s in self.scopes if s.name not in {p.name for p in places}), *places),
            **{"import_path": "", **changes},
        )
