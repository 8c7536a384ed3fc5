"""`import burnish` stays light, its public names resolve, and its errors name what to do."""

import subprocess
import sys
from types import ModuleType

import pytest

import burnish
from burnish.base.optional import require
from burnish.errors import MissingDependencyError

HEAVY = ("numpy", "onnx", "llvmlite", "numba", "torch", "onnxruntime", "openvino", "rich", "typer")


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, burnish; print([name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "bench", "boost", "boost train"])
def test_help_loads_neither_compiler_nor_boosting(command: str) -> None:
    heavy = [name for name in HEAVY if name not in ("rich", "typer")] + ["burnish.driver.compilation", "burnish.boost"]
    code = (
        f"import sys, burnish.cli; sys.argv = ['burnish', *{command.split()!r}, '--help']\n"
        "try: burnish.cli.main()\n"
        f"except SystemExit as end: print(end.code, [name for name in {heavy!r} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "0 []"


@pytest.mark.parametrize("name", burnish.__all__)
def test_public_names_resolve(name: str) -> None:
    found = getattr(burnish, name)
    assert callable(found) or isinstance(found, ModuleType)


@pytest.mark.parametrize("package", [burnish, burnish.boost, burnish.gnn, burnish.train, burnish.nd, burnish.sym])
def test_a_face_shows_its_public_names_and_no_others(package: ModuleType) -> None:
    assert dir(package) == sorted(package.__all__) and len({*package.__all__}) == len(package.__all__)
    for name in package.__all__:
        found = getattr(package, name)
        assert isinstance(found, ModuleType) or (found.__doc__ and not name.startswith("_")), name


def test_operators_of_passes_are_not_shown() -> None:
    for name in ("winograd_weight", "byte_words", "split_stem", "aggregate_ties", "address_of", "as_number"):
        assert name not in dir(burnish.nd) and name not in dir(burnish.sym)
    with pytest.raises(AttributeError, match="'split_stem'"):
        _ = burnish.nd.split_stem


def test_compile_stays_a_function_when_its_module_is_imported() -> None:
    import burnish.driver.api

    assert burnish.compile is burnish.driver.api.compile


def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = burnish.nonsense


def test_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r'pip install "burnish\[bench\]"'):
        require("no_such_package_of_burnish.part", extra="bench")


def test_broken_package_keeps_its_own_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "burnish_test_broken.py").write_text("import no_such_dependency_of_it")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_of_it"):
        require("burnish_test_broken", extra="bench")
