import copy
import os
import pickle
import subprocess
import sys
import threading

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from burnish.errors import ArtifactError, InputError, VerificationError
from burnish.runtime.build import build
from burnish.runtime.executable import Executable, KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.runtime.workspace import borrow

# dst = src, {n} bytes at a time.
COPY = """
define void @{name}(ptr %args, ptr %rt) {{
  %src = load ptr, ptr %args
  %dst.at = getelementptr ptr, ptr %args, i64 1
  %dst = load ptr, ptr %dst.at
  call void @llvm.memcpy.inline.p0.p0.i64(ptr %dst, ptr %src, i64 {n}, i1 false)
  ret void
}}
declare void @llvm.memcpy.inline.p0.p0.i64(ptr, ptr, i64, i1)
"""


def swap_executable(compile_object, dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> Executable:
    """(first, second) -> (second, first)."""
    specs = [TensorSpec(name, shape, dtype) for name in ("first", "second")]
    size = specs[0].nbytes
    return build(
        inputs=specs,
        outputs=[TensorSpec("b", shape, dtype), TensorSpec("a", shape, dtype)],
        steps=[
            KernelCall("copy", (Slot("input", 0, 0, size), Slot("output", 1, 0, size)), "one"),
            KernelCall("copy", (Slot("input", 1, 0, size), Slot("output", 0, 0, size)), "two"),
        ],
        objects={"copy": compile_object(COPY.format(name="copy", n=size))},
        params=np.zeros(0, np.uint8),
        arena_bytes=0,
        scratch_bytes=0,
        target=fingerprint(llvm.get_process_triple(), "generic", ()),
    )


X = np.linspace(-1, 1, 1000, dtype=np.float32)
Y = 2 * (X + np.arange(1000, dtype=np.float32))


@pytest.fixture(scope="module")
def add(make_executable) -> Module:
    return Module(make_executable(), threads=2)


@pytest.fixture(scope="module")
def swap(compile_object) -> Module:
    return Module(swap_executable(compile_object))


@pytest.mark.parametrize("threads", [None, 1, 2, 3])
def test_kernels_run_in_order_through_parameters_and_arena(make_executable, threads) -> None:
    module = Module(make_executable(), threads)
    assert np.array_equal(module(X), Y)
    assert module.threads == (threads or len(os.sched_getaffinity(0)))


def test_outputs_are_fresh_and_aligned(add) -> None:
    outputs = [add(X) for _ in range(4)]
    assert all(y.ctypes.data % 64 == 0 and y.flags.writeable and y.flags.c_contiguous for y in outputs)
    assert len({y.ctypes.data for y in outputs}) == 4


def test_small_outputs_of_many_calls_are_apart(swap) -> None:
    """More calls than one block of memory has room for."""
    given = [np.full((2, 3), i, np.float32) for i in range(100)]
    found = [swap(x, -x) for x in given]
    for result in found:
        assert all(y.ctypes.data % 64 == 0 and y.flags.writeable and y.flags.c_contiguous for y in result)
    for i, (first, second) in enumerate(found):
        assert np.array_equal(first, -given[i]) and np.array_equal(second, given[i])
        first[...], second[...] = np.nan, np.nan


def test_inputs_by_position_by_name_or_both(swap) -> None:
    a, b = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    for result in (swap(a, b), swap(second=b, first=a), swap(a, second=b)):
        assert isinstance(result, tuple)
        assert np.array_equal(result[0], b) and np.array_equal(result[1], a)


def test_strided_and_misaligned_inputs_are_copied(add) -> None:
    wide = np.zeros((1000, 3), np.float32)
    wide[:, 1] = X
    assert np.array_equal(add(wide[:, 1]), Y)
    raw = np.zeros(4001, np.uint8)
    odd = raw[1:].view(np.float32)
    odd[:] = X
    assert not odd.flags.aligned
    assert np.array_equal(add(odd), Y)


def test_read_only_inputs_are_accepted(add) -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    assert np.array_equal(add(frozen), Y)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int8", "bool", "uint8", "float64"])
def test_every_dtype_passes_through(compile_object, dtype) -> None:
    module = Module(swap_executable(compile_object, dtype))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    a, b = np.arange(6).reshape(2, 3).astype(kind), np.ones((2, 3), kind)
    second, first = module(a, b)
    assert first.dtype == kind and np.array_equal(first, a) and np.array_equal(second, b)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_tensors_and_scalars(compile_object, shape) -> None:
    module = Module(swap_executable(compile_object, shape=shape))
    a, b = np.full(shape, 2, np.float32), np.full(shape, 3, np.float32)
    second, first = module(a, b)
    assert first.shape == shape and np.array_equal(first, a) and np.array_equal(second, b)
    assert np.array_equal(module(a[()], b[()])[0], b)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"input x: float32\[1000\] is missing"),
        ((), {"z": X}, r"input 'z' is unknown; the model's inputs: x: float32\[1000\]"),
        ((X,), {"x": X}, "input 'x' is given twice, by position and by name"),
        ((X, X), {}, r"2 inputs given, the model has 1: x: float32\[1000\]"),
        ((X.astype(np.float64),), {}, r"input 'x' is float64\[1000\], allowed: float32\[1000\]"),
        ((X.astype(">f4"),), {}, r"input 'x' is >f4\[1000\], allowed: float32\[1000\]"),
        ((X[:10],), {}, r"input 'x' is float32\[10\], allowed: float32\[1000\]"),
        ((X.reshape(10, 100),), {}, r"input 'x' is float32\[10, 100\], allowed: float32\[1000\]"),
        (([1.0] * 1000,), {}, "input 'x' is a list, allowed: a NumPy array or an object with __dlpack__"),
        ((None,), {}, "input 'x' is a NoneType"),
    ],
)
def test_wrong_arguments_are_named(add, args, kwargs, message) -> None:
    with pytest.raises(InputError, match=message):
        add(*args, **kwargs)


class Foreign:
    """A tensor of another library: nothing but the DLPack protocol."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_dlpack_inputs(add) -> None:
    assert np.array_equal(add(Foreign(X)), Y)
    assert np.array_equal(add(x=Foreign(X)), Y)
    with pytest.raises(InputError, match=r"input 'x': tensor on DLPack device \(2, 0\), allowed: CPU memory"):
        add(Foreign(X, device=(2, 0)))
    with pytest.raises(InputError, match=r"input 'x' is float64\[1000\], allowed: float32\[1000\]"):
        add(Foreign(X.astype(np.float64)))


def test_run_into_writes_to_given_arrays(swap) -> None:
    a, b = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    second, first = np.empty((2, 3), np.float32), np.empty((2, 3), np.float32)
    swap.run_into([a, b], [second, first])
    assert np.array_equal(first, a) and np.array_equal(second, b)


def test_run_into_refuses_arrays_it_cannot_write(swap) -> None:
    a, b, c, d = (np.zeros((2, 3), np.float32) for _ in range(4))
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    for outputs, message in (
        ([c], "1 output arrays given, the model has 2"),
        ([c, d.astype(np.int32)], r"output 'a' is int32\[2, 3\], allowed: float32\[2, 3\]"),
        ([c, d.T.copy().T], "output 'a' is not contiguous or not writable"),
        ([frozen, d], "output 'b' is not contiguous or not writable"),
        ([c, c], "output 'a' shares memory"),
        ([a, d], "output 'b' shares memory"),
    ):
        with pytest.raises(InputError, match=message):
            swap.run_into([a, b], outputs)


def test_profile_has_a_row_for_every_call(add) -> None:
    rows = add.profile(X, repeat=3)
    assert [(row.node, row.kernel) for row in rows] == [("first", "add"), ("second", "add")]
    assert all(row.microseconds > 0 for row in rows)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert np.array_equal(add(X), Y)


def test_what_a_module_tells_about_itself(add) -> None:
    assert add.graph == "y = 2 * (x + weights)"
    memory = add.memory
    assert (memory["arena"], memory["params"]) == (128 + 4000, 64 + 4000)
    assert memory["scratch"] >= 2 * 100 and memory["code"] > 0
    assert repr(add) == "Module(x: float32[1000] -> y: float32[1000]; 2 kernels, 2 threads)"


def test_a_large_arena_works(make_executable) -> None:
    n = 1 << 20
    y = Module(make_executable(n))(np.zeros(n, np.float32))
    assert np.array_equal(y, 2 * np.arange(n, dtype=np.float32))


def test_threads_may_call_one_module_and_several(make_executable) -> None:
    shared, executable = Module(make_executable(), threads=2), make_executable()
    wrong = []

    def work(number: int) -> None:
        module = shared if number % 2 else Module(executable, threads=2)
        x = X + number
        expected = 2 * (x + np.arange(1000, dtype=np.float32))
        wrong.extend(1 for _ in range(300) if not np.array_equal(module(x), expected))

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_forked_child_can_call_even_if_another_thread_held_the_lock(add) -> None:
    add(X)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with add._lock:
            add._caller = threading.get_ident()
            held.set()
            release.wait(60)
            add._caller = 0

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    try:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if np.array_equal(add(X), Y) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        release.set()
        other.join()
    assert np.array_equal(add(X), Y)


def test_a_model_for_another_cpu_is_refused(make_executable, monkeypatch) -> None:
    executable = make_executable()
    monkeypatch.setattr("burnish.runtime.host.cpu_flags", lambda: frozenset({"avx2"}))
    object.__setattr__(executable, "target", "x86_64-unknown-linux-gnu/znver5/avx2,avx512bf16,avx512f")
    monkeypatch.setattr("burnish.runtime.host.host_machine", lambda: "x86_64")
    with pytest.raises(ArtifactError, match="compiled for znver5, but this CPU lacks avx512bf16, avx512f"):
        Module(executable)


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (Slot("input", 2), "argument 0 of 'copy' is .*, which does not exist"),
        (Slot("param", offset=1), "argument 0 of 'copy' is .*, allowed: offsets from 0 to 0"),
        (Slot("output", 0, -4), "allowed: offsets from 0 to 24"),
    ],
)
def test_calls_must_refer_to_what_exists(swap, slot, message) -> None:
    e = swap.executable
    with pytest.raises(VerificationError, match=message):
        Executable(e.inputs, e.outputs, (KernelCall("copy", (slot,), "n"),), e.driver, e.code, e.params, 0, 0, e.target)
    with pytest.raises(VerificationError, match="node 'n' calls 'absent', which is undefined"):
        Executable(e.inputs, e.outputs, (KernelCall("absent", (), "n"),), e.driver, e.code, e.params, 0, 0, e.target)


def replace_step(module, patch, step, make) -> None:
    """Puts ``make(step)`` in the place of a step of a call: of a quick one, where the module has such, or of others."""
    if step == "borrow":
        patch.setattr(f"burnish.runtime.{'quick' if module._quick else 'module'}.borrow", make(borrow))
    elif module._quick:
        patch.setattr(module._quick, "_native", make(module._quick._native))
    else:
        patch.setattr(module, "_run", make(module._run))


def with_calls(module, quick):
    """The module, whose calls are quick ones or not."""
    assert module._quick is not None
    module._quick = module._quick if quick else None
    return module


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("step", ["borrow", "run"])
def test_a_call_in_the_middle_of_a_call_is_right_and_so_is_the_other(make_executable, monkeypatch, step, quick) -> None:
    module, inner = with_calls(Module(make_executable(), threads=2), quick), []

    def interrupted(function):
        """``function`` after what a signal handler or a finalizer may do at this point."""

        def call(*args):
            if not inner:
                inner.append(None)
                inner.append(module(X + 1))
                inner.append(module.profile(X, repeat=1))
            return function(*args)

        return call

    replace_step(module, monkeypatch, step, interrupted)
    assert np.array_equal(module(X), Y)
    assert np.array_equal(inner[1], 2 * (X + 1 + np.arange(1000, dtype=np.float32))) and len(inner[2]) == 2
    assert np.array_equal(module(X), Y)


def test_signal_handlers_may_call_the_module_that_they_interrupt(tmp_path, make_executable) -> None:
    Module(make_executable()).save(tmp_path / "model.bn")
    script = (
        "import signal, sys, numpy as np; from burnish.driver.loading import load\n"
        "module, x, seen = load(sys.argv[1], threads=2), np.zeros(1000, np.float32), []\n"
        "expected = [module(x + i) for i in range(2)]\n"
        "signal.signal(signal.SIGALRM, lambda *_: seen.append(np.array_equal(module(x + 1), expected[1])))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "calls = 0\n"
        "while len(seen) < 200:\n"
        "    calls += 1; assert np.array_equal(module(x), expected[0])\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "assert all(seen)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.bn")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("step", ["borrow", "run", "start"])
def test_a_module_is_usable_after_an_interrupt(make_executable, monkeypatch, step, quick) -> None:
    module = with_calls(Module(make_executable(), threads=2), quick)

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step != "start":
            replace_step(module, patch, step, lambda _: interrupt)
        else:
            patch.setattr(module._pool, "running", False)
            patch.setattr(module._pool, "_create_workers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            module(X)
    assert np.array_equal(module(X), Y)
    caller = threading.Thread(target=lambda: module(X))
    caller.start()
    caller.join(30)
    assert not caller.is_alive()


@pytest.mark.parametrize("quick", [True, False])
def test_a_child_forked_by_a_handler_in_the_middle_of_a_call_goes_on(make_executable, monkeypatch, quick) -> None:
    module, child = with_calls(Module(make_executable(), threads=2), quick), []

    def forking(run):
        def call(*args):
            if not child:
                child.append(os.fork())
                if not child[0] and not np.array_equal(module(X + 1), 2 * (X + 1 + np.arange(1000, dtype=np.float32))):
                    os._exit(2)
            return run(*args)

        return call

    replace_step(module, monkeypatch, "run", forking)
    found = module(X)
    if not child[0]:
        os._exit(0 if np.array_equal(found, Y) else 1)
    assert np.array_equal(found, Y)
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 0


def test_arrays_that_are_not_read_as_they_are_take_the_other_way(add) -> None:
    wide = np.zeros((1000, 2), np.float32)
    wide[:, 0] = X
    unaligned = np.frombuffer(b"\0" + X.tobytes(), np.float32, 1000, 1)
    readonly = X.copy()
    readonly.flags.writeable = False
    for given in (wide[:, 0], unaligned, readonly, X.view(np.recarray)):
        assert np.array_equal(add(given), Y)
    with pytest.raises(InputError, match=r"is float64\[1000\]"):
        add(X.astype(np.float64))


def test_copies_share_code_and_parameters_and_nothing_else(add) -> None:
    for twin in (copy.copy(add), copy.deepcopy(add), copy.deepcopy({"m": add})["m"]):
        assert twin is not add and twin.executable is add.executable and twin.threads == add.threads
        assert twin._params is add._params and twin._runner.args is not add._runner.args and twin._lock is not add._lock
        assert np.array_equal(twin(X), Y) and np.array_equal(add(X), Y)
        assert np.array_equal(twin(X + 1), 2 * (X + 1 + np.arange(1000, dtype=np.float32)))


def test_pickling_says_what_to_do(add) -> None:
    for dump in (pickle.dumps, lambda m: pickle.dumps([m])):
        with pytest.raises(TypeError, match=r"cannot be pickled: write it with m\.save\(path\)"):
            dump(add)


def test_memory_that_the_machine_does_not_have_is_a_refusal(make_executable) -> None:
    executable = make_executable()
    object.__setattr__(executable, "arena_bytes", 1 << 47)
    with pytest.raises(ArtifactError, match=r"the model needs 1407\d+ bytes of memory for a call"):
        Module(executable)
