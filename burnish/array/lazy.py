"""Lazy evaluation: operations are recorded, and run together when somebody asks for a value.

A value never changes: what changes an array in place gives it another value, in the memory of the old one if nobody
else holds that. Recorded expressions are known by their calls and by which results are still held; of those that repeat
a program of fused kernels is compiled, others run call by call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

from burnish.array.engine import Engine
from burnish.array.memory import MemoryBlock
from burnish.array.program import ArrayProgram, GraphCall, OperatorCall, graph_of
from burnish.array.types import ArrayType
from burnish.errors import BurnishError, EngineError

MOST_RECORDED = 128  # operations, before they run unasked
MOST_PROGRAMS = 4096  # of expressions that are remembered
HELD = 3  # references to an operand while its record is unpacked, if there are no others
REPEATED = 2  # how often an expression is met until a program is compiled of it

engine = Engine()


class LazyValue:
    """Lazy value of an array: recorded, while it has no ``block``, or in memory at an address within one.

    ``index`` is its number while a program is looked up. ``error``: why there is no value.
    """

    __slots__ = ("address", "block", "error", "index", "type")

    type: ArrayType
    block: MemoryBlock | None
    address: int
    index: int | None
    error: BurnishError


def concrete(kind: ArrayType, block: MemoryBlock, address: int) -> LazyValue:
    """A value in memory."""
    value = LazyValue()
    value.type, value.block, value.address, value.index = kind, block, address, None
    return value


def pending(kind: ArrayType) -> LazyValue:
    """A value that is still to be computed."""
    value = LazyValue()
    value.type, value.block, value.index = kind, None, None
    return value


Record = tuple[Any, ...]  # a call, its result or the tuple of its results, and its operands

recorded: list[Record] = []  # appended to by any thread: one append is one operation of the interpreter
_flushing = threading.RLock()
_acquire, _release = _flushing.acquire, _flushing.release
os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)  # none forks in a flush
_programs: dict[tuple[Any, ...], Any] = {}  # how often an expression was met, or its program
record = recorded.append


def call(found: OperatorCall, operands: Sequence[LazyValue]) -> tuple[LazyValue, ...]:
    """Records a call; returns its results."""
    results = tuple([pending(kind) for kind in found.results])
    record((found, results if found.many else results[0], *operands))
    if len(recorded) >= MOST_RECORDED:
        flush()
    return results


def materialize(value: LazyValue) -> MemoryBlock:
    """The memory of a value, when it is there. Raises what its computation raised, or an EngineError."""
    block = value.block
    if block is None:
        flush()
        block = value.block
        if block is None:
            raise value.error
    if block.tag is not None:
        engine.wait(block.tag)
    return block


def flush() -> None:
    """Runs all that is recorded, or hands it to the engine where it takes long."""
    _acquire()
    try:
        if len(recorded) == 1:
            item = recorded.pop(0)
            if len(item) != 4 or not _run_binary(*item):
                found, result, *operands = item
                del item
                results = result if found.many else (result,)
                try:
                    launch(found.alone or found.program(), operands, results)
                except BurnishError as error:
                    _fail(results, error)
        else:
            records = recorded[:]
            del recorded[: len(records)]
            if records:
                _run_together(records)
    finally:
        _release()


def _run_binary(found: OperatorCall, result: LazyValue, a: LazyValue, b: LazyValue) -> bool:
    """Runs one operation of two values at rest, as :func:`launch` does, in two thirds of the time; False if that must.

    Operands that nobody else holds are left to it: a result may take their memory.
    """
    run = found.quick
    if run is None or engine.pending or getrefcount(a) <= HELD or getrefcount(b) <= HELD:
        return False
    own, other = a.block, b.block
    if own is None or other is None or own.tag is not None or other.tag is not None:
        return False
    block = found.result.recycler.block()
    result.address = address = block.address
    run((a.address, b.address, address))
    result.block = block
    return True


def _run_together(records: list[Record]) -> None:
    """Runs several records as one program, or one after the other. Empties the list, so that what is held by others
    can be told from reference counts.
    """
    key: list[Any] = []
    leaves: list[LazyValue] = []
    values: list[LazyValue] = []
    for item in records:
        if len(item) <= 4 and not item[0].many and len(item) > 2:  # one operand or two: in half of the time
            i = item[2].index
            if i is None:
                i = item[2].index = ~len(leaves)
                leaves.append(item[2])
            if len(item) == 4:
                j = item[3].index
                if j is None:
                    j = item[3].index = ~len(leaves)
                    leaves.append(item[3])
                key += (item[0], i, j)
            else:
                key += (item[0], i)
            item[1].index = len(values)
            values.append(item[1])
            continue
        key.append(item[0])
        for value in item[2:]:
            number = value.index
            if number is None:
                number = value.index = ~len(leaves)
                leaves.append(value)
            key.append(number)
        for value in item[1] if item[0].many else (item[1],):
            value.index = len(values)
            values.append(value)
    records.clear()
    del item
    for value in leaves:
        value.index = None
    for value in values:
        value.index = None
    value = None
    held = tuple([number for number, count in enumerate(map(getrefcount, values)) if count > 2])
    if not held:
        return
    known = (*key, held)
    program = _programs.get(known, 0)
    if type(program) is int:
        program = _learn(known, program + 1)
    if program is None or any(value.block is None for value in leaves):  # or something has failed before
        _run_in_turn(_calls(key), leaves, values)
    else:
        results = [values[number] for number in held]
        try:
            launch(program, leaves, results)
        except BurnishError as error:
            _fail(results, error)


def _calls(key: Sequence[Any]) -> list[tuple[OperatorCall, tuple[int, ...]]]:
    """Calls, each with the numbers of its operands."""
    calls: list[tuple[OperatorCall, list[int]]] = []
    for part in key:
        if isinstance(part, OperatorCall):
            calls.append((part, []))
        else:
            calls[-1][1].append(part)
    return [(found, tuple(operands)) for found, operands in calls]


def _learn(known: tuple[Any, ...], times: int) -> ArrayProgram | None:
    """The program of an expression if it is met often enough, and there is one."""
    if len(_programs) >= MOST_PROGRAMS:
        _programs.clear()
    _programs[known] = times
    if times < REPEATED:
        return None
    try:
        calls = _calls(known[:-1])
        threads = next((found.threads for found, _ in calls if isinstance(found, GraphCall)), None)
        program = ArrayProgram(graph_of(calls, known[-1]), threads)
    except BurnishError:
        _programs[known] = None  # what is wrong with it, its calls will tell by themselves
        return None
    _programs[known] = program
    return program


def _run_in_turn(
    calls: Sequence[tuple[OperatorCall, tuple[int, ...]]], leaves: list[LazyValue], values: list[LazyValue]
) -> None:
    """Runs calls one after the other. What fails leaves the rest as it is, but for what needs its result."""
    done = 0
    for found, numbers in calls:
        results = values[done : done + len(found.results)]
        done += len(results)
        try:
            launch(found.program(), [values[n] if n >= 0 else leaves[~n] for n in numbers], results)
        except BurnishError as error:
            _fail(results, error)


def _fail(results: Sequence[LazyValue], error: BurnishError) -> None:
    """Keeps an error for who reads the results."""
    for value in results:
        value.error = error


def launch(program: ArrayProgram, leaves: list[LazyValue], results: Sequence[LazyValue]) -> None:
    """Runs a program on values in memory, or pushes it to the engine, and gives its results their memory.

    A result takes the memory of an input that nobody holds but ``leaves``, where the program allows it.
    """
    if engine.pending:  # what is done holds no memory that a result could take
        engine.help([value.block.tag for value in leaves if value.block is not None and value.block.tag is not None])
    addresses = []
    now = not (engine.pending or (program.long and engine.threads > 1))
    for value in leaves:
        block = value.block
        if block is None:
            raise value.error
        addresses.append(value.address)
        if block.tag is not None and not block.rests():
            now = False
    block = None
    for number, value in enumerate(results):
        source = _last_holder(leaves, program.replaceable[number]) if number in program.replaceable else None
        if source is None:
            value.block = block = value.type.recycler.block()
            value.address = block.address
        else:
            value.block, value.address = leaves[source].block, leaves[source].address
        addresses.append(value.address)
    if not now:
        _push(program, addresses, leaves, results)
        return
    try:
        program.run(addresses)
    except Exception as error:
        for value in results:
            value.block = None
        raise EngineError(f"operation '{program}' failed: {type(error).__name__}: {error}") from error


def _last_holder(leaves: list[LazyValue], numbers: Sequence[int]) -> int | None:
    """The number of a value that nobody holds but this list, in memory that nobody else holds."""
    for number in numbers:
        if getrefcount(leaves[number]) == 2:  # the list, and the question
            block = leaves[number].block
            if block is not None and block.home is not None and not block.held_by_others():
                return number
    return None


def _push(program: ArrayProgram, addresses: list[int], leaves: list[LazyValue], results: Sequence[LazyValue]) -> None:
    def run(kept: Any = (leaves, results)) -> None:  # which have to stay in memory until it is done
        program.run(addresses)

    reads = dict.fromkeys(value.block.resource() for value in leaves if value.block is not None)
    writes = [value.block.resource() for value in results if value.block is not None]
    engine.push(run, reads, [program.tag, *writes], name=str(program), long=program.long)


def evaluate(program: ArrayProgram, operands: list[LazyValue]) -> list[LazyValue]:
    """The results of a program on values, which are recorded if they are not in memory."""
    _acquire()
    try:
        if any(value.block is None for value in operands):
            flush()
        results = [pending(kind) for kind in program.outputs]
        launch(program, operands, results)
        return results
    finally:
        _release()


def change(block: MemoryBlock, run: Callable[[], None], sources: Sequence[MemoryBlock] = ()) -> None:
    """Changes memory by ``run()``, which may read it and that of ``sources``, when its turn has come: after all that
    was recorded before.
    """
    flush()
    if engine.pending:
        tag, others = block.resource(), [source.resource() for source in sources]
        engine.push(run, dict.fromkeys([tag, *others]), [tag], name="write to an array", long=False)
    else:
        run()


def wait_all() -> None:
    """Returns when all that was recorded and pushed is done. Raises EngineError for what failed meanwhile."""
    flush()
    engine.wait_all()
