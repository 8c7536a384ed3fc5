"""Targets by name, and this machine as one: what schedules, code generation and artifacts ask of a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from burnish.errors import TargetError
from burnish.machines.intrinsics import TensorIntrinsic
from burnish.machines.known import ACCELERATORS, FEATURES, MODELS, machine_for
from burnish.machines.machine import STRICT, Core, Machine, Rates
from burnish.machines.measure import measured_rates
from burnish.machines.probe import host_caches, host_cores, host_cpu, host_features, host_triple
from burnish.machines.scopes import MemoryScope
from burnish.machines.unit import MatrixUnit

RATES_VARIABLE = "BURNISH_RATES"  # environment: "declared" (default) or "measured"


@dataclass(frozen=True)
class Target:
    """One machine. Sizes in bytes; ``features`` are LLVM's names of the instruction sets code may use.

    ``machine`` is the package that describes it. ``rates``: measured ones of a core (None: those that the package
    declares, which are the same everywhere, so that choices by cost can be repeated). ``precision``: what products may
    round, one of the machine's ``precisions``.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> model = bn.compile(graph, target="aarch64-cortex-a53")  # to save here, and load there
    >>> model.executable.target
    'aarch64-unknown-linux-gnu/cortex-a53/neon'
    """

    name: str
    triple: str
    cpu: str
    features: frozenset[str]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    machine: Machine
    rates: Rates | None = None
    precision: str = STRICT

    @property
    def kind(self) -> str:
        """Kind of machine, such as ``cpu``, by which its schedule templates are found."""
        return self.machine.kind

    @property
    def key(self) -> str:
        """Names everything of the machine that decides which code is made for it."""
        own = f"{self.triple} {self.cpu} {self.feature_string} {self.cores}"
        driver = [self.driver.key] if self.machine.offloads else []
        rounding = [] if self.precision == STRICT else [self.precision]
        return " ".join([own, *rounding, *([self.machine.version] if self.machine.version else []), *driver])

    @property
    def driver(self) -> Target:
        """Target for kernels that its machine has no templates for: an accelerator's host CPU, else itself."""
        return host() if self.machine.offloads else self

    @property
    def is_host(self) -> bool:
        """Whether it is this machine's kind of CPU: what is measured here holds for it."""
        return (self.triple, self.cpu) == (host().triple, host().cpu)

    @property
    def core(self) -> Core:
        """Declared core of its CPU, by LLVM's name; the machine's default core for others."""
        return self.machine.cores.get(self.cpu, self.machine.core)

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that a block of threads can have, on a machine with a grid of them."""
        return self.l1_bytes - self.machine.warps.reserved

    @property
    def unit(self) -> MatrixUnit | None:
        """The matrix unit of its cores, if it may be used."""
        return next((unit for unit in self.machine.units if self.has(unit.feature)), None)

    @property
    def lanes(self) -> int:
        """float32 elements of one vector register."""
        return self.vector_bytes // 4

    @property
    def element_lanes(self) -> int:
        """float32 elements of a vector one of which may be the factor of all lanes of another; 0: it is broadcast."""
        return self.machine.dialect.element_bytes // 4

    @property
    def channels_last(self) -> tuple[str, ...]:
        """Dtypes of images that its kernels want channels last."""
        return (*self.machine.channels_last, *self.rounded) if self.machine.channels_last else ()

    @property
    def multiplies_bytes(self) -> bool:
        """Whether it has instructions for products of bytes, whose sums are exact."""
        return self.has(self.machine.dialect.dots_bytes) or "int8" in self.channels_last

    @property
    def multiplies_low_bytes(self) -> bool:
        """Whether it has instructions for products of signed bytes and unsigned ones below 128."""
        dialect = self.machine.dialect
        return any(self.has(need) and lanes == self.lanes for need, lanes, _ in dialect.low_byte_dots)

    @property
    def rounded(self) -> tuple[str, ...]:
        """Dtypes whose products round their factors, by the precision asked for."""
        return self.machine.precisions[self.precision]

    def with_precision(self, precision: str) -> Target:
        """The same target with what products may round. Raises TargetError for what its machine does not have."""
        known = self.machine.precisions
        if precision not in known:
            allowed = ", ".join(map(repr, known))
            raise TargetError(f"target '{self.name}': found precision {precision!r}; allowed: {allowed}")
        if precision == self.precision:
            return self
        base = ",".join(part for part in self.name.split(",") if part != self.precision)
        return replace(self, name=base if precision == STRICT else f"{base},{precision}", precision=precision)

    @property
    def multiply_bytes(self) -> int:
        """Bytes of the vectors two of which are multiplied and added in a cycle: of some cores, half a register."""
        return min(self.vector_bytes, self.core.multiply_bytes or self.vector_bytes)

    def filled(self, channels: int) -> Target:
        """The same target with the vectors that are multiplied at once, where channels leave fewer lanes over."""
        half = replace(self, vector_bytes=self.multiply_bytes)
        return half if -channels % half.lanes < -channels % self.lanes else self

    def for_items(self, nbytes: int) -> Target:
        """The same target with ``lanes`` that are elements of ``nbytes``, where these are more than float32's four."""
        return self if nbytes <= 4 else replace(self, vector_bytes=max(4, self.vector_bytes * 4 // nbytes))

    @property
    def flops(self) -> float:
        """float32 operations a second of all cores."""
        return self.cores * self.rates.flops if self.rates else self.cores * self.multiply_bytes * self.core.clock

    @property
    def matrix_flops(self) -> float:
        """Operations a second of the matrix units, on their own element type; 0 without."""
        unit = self.unit
        if unit is None:
            return 0.0
        return self.cores * (self.rates.matrix_flops if self.rates else unit.operations)

    @property
    def cache_bandwidth(self) -> float:
        """Bytes a second that all cores move through the caches behind the first."""
        return (self.rates or self.core).cache_bandwidth * self.cores

    @property
    def memory_bandwidth(self) -> float:
        """Bytes a second read from memory by all cores."""
        return (self.rates or self.core).memory_bandwidth * self.cores

    @property
    def feature_string(self) -> str:
        """The features as LLVM's ``+a,+b``."""
        return ",".join(f"+{f}" for f in sorted(self.features))

    @property
    def code_features(self) -> str:
        """Feature string for LLVM: features not to use, as ``-a``, before those that may be used."""
        absent = sorted(self.machine.flags.keys() - self.features)
        return ",".join([*(f"-{f}" for f in absent), *([self.feature_string] if self.features else [])])

    def has(self, feature: str | None) -> bool:
        """Whether code may use a feature; None: one that its kind of machine does not know."""
        return feature in self.features

    def using(self, intrinsics: Iterable[TensorIntrinsic] = (), scopes: Iterable[MemoryScope] = ()) -> Target:
        """The same target with tensor intrinsics and memory scopes from outside of the package."""
        return replace(self, machine=self.machine.with_(intrinsics, scopes))


def target(name: str | Target = "cpu", rates: str | Rates | None = None, threads: int | None = None) -> Target:
    """The machine called ``name``: ``cpu`` is this one, ``cpu,-amx`` this one without its matrix tiles; a Target, such
    as one of :meth:`Target.using`, is itself.

    Behind the name may follow features not to use, each as ``,-feature``; a prefix stands for all features that begin
    with it; or a precision, as in ``cuda:sm_90a,tf32``. ``rates``, by which algorithms are chosen: ``declared`` for a
    kind of CPU, ``measured`` on this machine (once, in about a second, rounded, and kept in the cache folder), or any;
    by default what ``$BURNISH_RATES`` says, else declared. ``threads``: those that kernels of a CPU are split for
    (default: its cores). Raises TargetError naming the known machines, features or rates.
    """
    if threads is not None:
        found = target(name, rates)
        split = found.machine.dialect.grid is None and not found.machine.offloads
        return replace(found, cores=int(threads)) if split else found
    if isinstance(name, Target):
        return replace(name, rates=rates) if isinstance(rates, Rates) else name
    if not isinstance(name, str):
        raise TargetError(f"target: found {name!r}; allowed: a name: {_names()}")
    base, *changes = name.split(",")
    if changes and base in MODELS and changes[-1] in MODELS[base][0].precisions:
        return target(",".join([base, *changes[:-1]]), rates).with_precision(changes[-1])
    if base in ACCELERATORS:
        if changes:
            raise TargetError(f"target {name!r}: found features to leave out; allowed for an accelerator: {base}")
        return accelerator(ACCELERATORS[base])
    if base != "cpu" and base not in MODELS:
        raise TargetError(f"target {base!r} is unknown; known: {_names()}")
    machine = host() if base == "cpu" else _known(base)
    found = replace(_without(machine, changes), name=name) if changes else machine
    wanted = rates if rates is not None else os.environ.get(RATES_VARIABLE, "declared")
    if wanted == "declared":
        return found
    if isinstance(wanted, Rates):
        return replace(found, rates=wanted)
    if wanted != "measured":
        raise TargetError(f"target {name!r}: rates are {wanted!r}; allowed: declared, measured, or Rates")
    if base != "cpu" and rates is None:  # the variable speaks of this machine
        return found
    if base != "cpu":
        raise TargetError(f"target {name!r}: rates are measured on this machine, for the target 'cpu' alone")
    own = found.triple, found.cpu, found.feature_string
    return replace(found, rates=measured_rates(*own, found.vector_bytes, found.l2_bytes, found.unit))


def _names() -> str:
    return ", ".join(["cpu", *MODELS, *ACCELERATORS])


def accelerator(machine: Machine) -> Target:
    """The target of a machine that is no CPU, from its first model."""
    model, (width, registers) = machine.models[0], machine.vectors(())
    sizes = model.l1_bytes, model.l2_bytes, model.l3_bytes
    triple = f"{machine.architectures[0]}-none"
    return Target(model.name, triple, model.cpu, frozenset(), width, registers, *sizes, model.cores, machine)


def _known(name: str) -> Target:
    machine, model = MODELS[name]
    features = frozenset(model.features.split())
    triple = f"{machine.architectures[0]}-{machine.system_of_triple}"
    width, registers = machine.vectors(features)
    caches = model.l1_bytes, model.l2_bytes, model.l3_bytes
    return Target(name, triple, model.cpu, features, width, registers, *caches, model.cores, machine, model.rates)


def _without(machine: Target, changes: Sequence[str]) -> Target:
    """The machine with features switched off, and vectors of the width that the others allow."""
    kept = machine.features
    known = {*FEATURES, *machine.features, *host_features()}  # a script may leave out on any machine what others have
    for change in changes:
        if not re.fullmatch(r"-[\w.-]+", change):
            raise TargetError(f"target: {change!r} is not a feature to leave out; allowed: -FEATURE, such as -amx")
        if not any(f.startswith(change[1:]) for f in known):
            has = ", ".join(sorted(machine.features))
            raise TargetError(f"target: no feature begins with {change[1:]!r}; {machine.name} has {has}")
        kept = frozenset(f for f in kept if not f.startswith(change[1:]))
    width, registers = machine.machine.vectors(kept)
    return replace(machine, features=kept, vector_bytes=width, vector_registers=registers)


@cache
def host() -> Target:
    """This machine, from LLVM's feature detection and the kernel's cache description."""
    triple = host_triple()
    machine = machine_for(triple)
    features = frozenset(f for f, on in host_features().items() if on)
    for unit in machine.units:
        if not unit.permit():
            features = frozenset(f for f in features if not f.startswith(unit.prefix))
    width, registers = machine.vectors(features)
    caches = host_caches()
    return Target(
        "cpu", triple, host_cpu(), features, width, registers, caches.get(1, 32 << 10), caches.get(2, 1 << 20),
        caches.get(3, 0), host_cores(), machine,
    )  # fmt: skip
