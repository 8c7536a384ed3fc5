"""Options of the command line follow from dataclasses and signatures: name, type, default, help, refusals."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import burnish
from burnish.cli import COMMANDS, app
from burnish.cli.commands import CommandGroup
from burnish.cli.options import ChoiceOf, OptionsOf, command_of, declared, documented, plain_type
from burnish.cli.signatures import Declaration
from burnish.errors import ParameterError


@dataclass(frozen=True)
class Kiln:
    """A kiln.

    ``heat``: how hot, in :class:`burnish.Kelvin`; more is worse. ``tools``: that lie beside. ``door``: open or not.
    ``maker`` is not said. ``model``: by its name, or as it is.
    """

    heat: float
    tools: Sequence[str] = ()
    door: bool = True
    lit: bool = False
    maker: Mapping[str, int] | None = None
    model: str | Kiln | None = None
    log: Annotated[Path | None, typer.Option("--log", "-l")] = None


@dataclass(frozen=True)
class Oak:
    """A wood. ``age``: years."""

    age: int = 100


@dataclass(frozen=True)
class Ash:
    """Another."""

    age: int = 60
    dry: bool = False


def fire(kiln: Kiln, cup: str, *, times: int = 1, glaze: str | int = "none", far: Any = None) -> None:
    """``times``: how often."""


SEEN: list[Any] = []


def burn(
    kiln: Kiln,
    wood: Annotated[Any, ChoiceOf({"oak": Oak, "ash": Ash}, "oak", {"age": 7})],
    firing: Annotated[
        dict[str, Any], OptionsOf(fire, omit=("cup",), defaults={"times": 3}, names={"times": "--often"})
    ],
    name: str = "x",
) -> None:
    """Burn it."""
    SEEN[:] = [kiln, wood, firing, name]


def invoke(*words: str) -> list[Any]:
    """What the command's function is given."""
    command_of(burn, "burn").main([*words], standalone_mode=False)
    return SEEN


def test_a_dataclass_is_built_of_its_options() -> None:
    kiln, wood, firing, name = invoke("--heat", "3")
    assert kiln == Kiln(3.0, tools=kiln.tools) and list(kiln.tools) == []
    assert (wood, name, firing) == (Oak(7), "x", {"times": 3, "glaze": "none"})
    more = ["--tools", "a", "--tools", "b", "--no-door", "--lit", "--model", "m", "-l", "out", "--often", "2"]
    kiln, wood, firing, _ = invoke("--heat", "3", *more, "--wood", "ash", "--dry")
    assert kiln == Kiln(3.0, ["a", "b"], False, True, None, "m", Path("out"))
    assert (wood, firing["times"]) == (Ash(7, True), 2)


def test_choices_refuse_by_the_names_of_options() -> None:
    with pytest.raises(ParameterError, match="--wood: found 'elm'; allowed: oak, ash"):
        invoke("--heat", "3", "--wood", "elm")
    with pytest.raises(ParameterError, match="--dry: found True for oak; allowed: with --wood ash"):
        invoke("--heat", "3", "--dry")


def test_help_is_the_clause_of_the_docstring() -> None:
    assert documented(Kiln, "heat") == "How hot, in Kelvin."
    assert documented(Kiln, "door") == "Open or not."
    assert documented(Kiln, "maker") == documented(Kiln, "lit") == ""


@pytest.mark.parametrize(
    ("hint", "plain"),
    [
        (int, int), (int | None, int | None), (str | int | Mapping[str, int] | None, str | None), (str | Path, Path),
        (tuple[str, ...], list[str]), (Sequence[Path] | None, list[Path] | None), (Mapping[str, int], None),
        (int | float, None), (Kiln, None), (Any, None),
    ],
)  # fmt: skip
def test_types_of_options(hint: Any, plain: Any) -> None:
    assert plain_type(hint) == plain


def test_two_options_of_one_name_are_a_fault() -> None:
    def twice(kiln: Kiln, heat: float = 1.0) -> None:
        """Twice."""

    with pytest.raises(AssertionError, match="two options heat"):
        command_of(twice, "twice")


def test_a_parameter_that_is_none_is_a_fault() -> None:
    with pytest.raises(AssertionError, match=r"kiln: no parameters \['hot'\]; there are \['door', 'heat'"):
        OptionsOf(omit=("hot",)).options("kiln", Kiln)
    with pytest.raises(AssertionError, match=r"there are \['wood', 'age'\]"):
        ChoiceOf({"oak": Oak}, "oak", {"years": 7}).options("wood", Any)


def test_a_least_value_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    def lit(times: Annotated[dict[str, Any], OptionsOf(fire, only=("times",), least={"times": 1})]) -> None:
        """Lit."""

    with pytest.raises(SystemExit) as end:
        command_of(lit, "lit").main(["--times", "0"])
    assert end.value.code == 2 and "--times" in capsys.readouterr().err


def leaves() -> Iterator[list[str]]:
    """The words of every command."""
    for name, each in COMMANDS.items():
        yield from ([name, inner] for inner in each.commands) if isinstance(each, CommandGroup) else [[name]]


@pytest.mark.parametrize("words", [*leaves()], ids=" ".join)
def test_every_command_explains_itself(words: list[str]) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "-h"], catch_exceptions=False)
    assert result.exit_code == 0 and f"{' '.join(words)} [OPTIONS]" in result.stdout


SOURCES = sorted(
    {place for path in (Path(burnish.__file__).parent / "cli").glob("*.py")
     for place in re.findall(r'Declaration\("([\w.:]+)"\)', path.read_text())}
)  # fmt: skip


@pytest.mark.parametrize("place", SOURCES)
def test_what_is_read_from_source_is_what_an_import_gives(place: str) -> None:
    source, found = Declaration(place), Declaration(place).load()
    if not callable(found):
        assert [*source] == [*found] if isinstance(found, (Mapping, tuple)) else source.constant == found
        return
    assert source.doc == inspect.getdoc(found)
    live = {p.name: p for p in declared(found) if p.kind is not p.VAR_KEYWORD}
    assert [p.name for p in source.parameters] == [*live]
    for each in source.parameters:
        plain = plain_type(live[each.name].annotation)
        assert plain_type(each.annotation) == plain
        assert plain is None or each.default == live[each.name].default


def test_a_mapping_of_types_names_each_by_its_kind() -> None:
    for place in ("burnish.gnn.model.layers:LAYERS", "burnish.tune.strategy:STRATEGIES"):
        registry = Declaration(place).load()
        assert [*registry] == [getattr(each, "kind", None) or each.name for each in registry.values()]


def test_help_imports_no_compiler() -> None:
    """Of all commands in one process: what they import is what their options need."""
    code = f"""if True:
        import sys
        from burnish.cli import app
        for words in {[*leaves()]}:
            try:
                app(args=[*words, "-h"], prog_name="burnish", standalone_mode=False)
            except SystemExit:
                pass
        heavy = {{"numba", "onnx", "scipy", "torch", "burnish.driver"}}
        print(sorted(heavy & {{*sys.modules}}), file=sys.stderr)
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"
