"""Export of a compiled model as a C library: writes archive, shared library and headers into a folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from burnish.base.files import write_atomic
from burnish.clib.headers import c_header, cpp_header
from burnish.clib.library import FUNCTIONS, CLibrary
from burnish.errors import ParameterError
from burnish.runtime import variants
from burnish.runtime.executable import Executable
from burnish.runtime.host import host_machine
from burnish.runtime.module import Module


def export_c(
    model: Module | str | Path, folder: str | Path, name: str | None = None, *, variant: str | None = None
) -> dict[str, Path]:
    """C library of a compiled model: writes ``libNAME.a``, ``NAME.h`` and ``NAME.hpp`` into ``folder``, and
    ``libNAME.so`` where a linker for the model's machine is installed; the paths by "archive", "header", "wrapper" and
    "shared".

    ``model``: compiled, or a file that holds one, also of another CPU; ``variant``: which of several in a file.
    ``name`` begins all symbols of the library (default: the folder's name). It has the model's parameters, and states
    as they are now; it needs the C library of the system alone, neither Python nor LLVM, and runs on CPUs with the
    instructions of the model's target. Raises ParameterError; TargetError for models that native code alone cannot
    run; ArtifactError for files.

    >>> import tempfile
    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = bn.export_c(bn.compile(graph, rewrite=False), folder, "net")
    >>> files["header"].name, files["archive"].name
    ('net.h', 'libnet.a')
    """
    folder = Path(folder)
    library = CLibrary(_executable(model, variant), re.sub(r"\W", "_", folder.resolve().name) if name is None else name)
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "archive": folder / f"lib{library.name}.a",
        "header": folder / f"{library.name}.h",
        "wrapper": folder / f"{library.name}.hpp",
    }
    write_atomic(found["archive"], [library.archive()])
    write_atomic(found["header"], [c_header(library).encode()])
    write_atomic(found["wrapper"], [cpp_header(library).encode()])
    linker = linker_for(library.machine, library.system.emulation)
    if linker:
        found["shared"] = folder / f"lib{library.name}.so"
        _link(library, linker, found["shared"])
    return found


def _executable(model: object, variant: str | None) -> Executable:
    """The executable of a module, with its state as it is now, or of a file."""
    if isinstance(model, (str, Path)):
        return variants.read(model, wanted=variant, anywhere=variant is not None)
    if not isinstance(model, Module):
        allowed = "a Module, which bn.compile and bn.load return, or a file of one"
        raise ParameterError(f"export_c: found a {type(model).__name__}; allowed: {allowed}")
    if variant is not None:
        raise ParameterError(f"variant: found {variant!r}; allowed: None, or with the file that holds several")
    return model.current_executable()


def linker_for(machine: str, emulation: str) -> Sequence[str] | None:
    """The command of an installed linker that makes shared libraries for a machine, of the ``emulation`` by
    which GNU's linkers know it; None where there is none.
    """
    lld = shutil.which("ld.lld")
    if lld:
        return (lld, "-m", emulation)
    own = shutil.which("ld") if machine == host_machine() else shutil.which(f"{machine}-linux-gnu-ld")
    return (own,) if own else None


def _link(library: CLibrary, linker: Sequence[str], path: Path) -> None:
    """Writes a shared library that shows its own functions alone. It stays loaded: its threads run its code."""
    visible = "".join(f"    {library.name}_{function};\n" for function in FUNCTIONS)
    texts: Mapping[str, bytes] = {
        **library.object_files,
        "symbols.map": f"{{\n  global:\n{visible}  local: *;\n}};\n".encode(),
    }
    with tempfile.TemporaryDirectory(prefix="burnish-") as made:
        for name, data in texts.items():
            (Path(made) / name).write_bytes(data)
        out = Path(made) / path.name
        command = [
            *linker, "-shared", "-o", str(out), f"--soname={path.name}", "-z", "nodelete", "-z", "noexecstack", "-z",
            "now", "-z", "relro", f"--version-script={made}/symbols.map",
            *(f"{made}/{name}" for name in library.object_files),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ParameterError(f"export_c: {linker[0]} failed: {done.stderr.strip() or done.returncode}")
        write_atomic(path, [out.read_bytes()])
