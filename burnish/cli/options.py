"""Command-line options from signatures: a dataclass among the parameters of a command becomes an option for each of its
fields, with name, type and default from there, and help from its docstring. The same goes for parameters of functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from burnish.cli.signatures import Declaration
from burnish.errors import ParameterError

PLAIN = (bool, int, float, str, Path)  # types that an option's text is read as, with their enumerations
Options = dict[str, inspect.Parameter]  # of the command line, by the parameters that they give


@dataclass(frozen=True)
class OptionsOf:
    """Options of the parameters of ``target``: those ``only``, or all but those in ``omit``, that have a plain type.

    The command is given a dictionary of them; without a target, an instance of the dataclass that is its parameter's
    type. A target, and choices, of modules that take a while to import are each a :class:`Declaration`. By parameter,
    ``defaults`` that differ from the target's; ``names``: declarations such as "--layers" in their place; ``choices``:
    the names that the help lists; ``least``: the least value, where the target checks none.
    """

    target: Callable[..., Any] | Declaration | None = None
    only: Collection[str] | None = None
    omit: Collection[str] = ()
    defaults: Mapping[str, Any] | None = None
    names: Mapping[str, str] | None = None
    choices: Mapping[str, Iterable[str]] | None = None
    least: Mapping[str, float] | None = None

    def options(self, name: str, hint: Any) -> Options:
        """The options that stand for the command's parameter ``name`` of type ``hint``."""
        defaults, names, choices = self.defaults or {}, self.names or {}, self.choices or {}
        known = {each.name for each in declared(self.target or hint)}
        unknown = {*(self.only or ()), *self.omit, *defaults, *names, *choices, *(self.least or ())} - known
        assert not unknown, f"{name}: no parameters {sorted(unknown)}; there are {sorted(known)}"
        made = {}
        for each in declared(self.target or hint):
            if each.name in self.omit or (self.only is not None and each.name not in self.only):
                continue
            each = each.replace(default=defaults.get(each.name, each.default))
            option = as_option(each, self.target or hint, names.get(each.name), choices.get(each.name))
            if option is not None:
                made[each.name] = option
                if self.least and each.name in self.least:
                    get_args(option.annotation)[1].min = self.least[each.name]
        return made

    def value(self, name: str, hint: Any, given: dict[str, Any]) -> Any:
        """Option value that the command receives. Raises what the dataclass does."""
        return given if self.target is not None else hint(**given)


@dataclass(frozen=True)
class ChoiceOf:
    """An option for a key of ``registry``, whose values are dataclasses, and options for the fields of all of these.

    The command is given an instance. ``defaults``: of fields, where the class that is chosen has them.
    """

    registry: Mapping[str, Any]
    default: str
    defaults: Mapping[str, Any] | None = None

    def options(self, name: str, hint: Any) -> Options:
        """The options that stand for the command's parameter ``name``."""
        help = f"One of {', '.join(self.registry)}."
        made = {name: _parameter(name, Annotated[str, typer.Option(help=help)], self.default)}
        for target in self.registry.values():
            for each in declared(target):
                option = as_option(each.replace(annotation=each.annotation | None, default=None), target)
                if option is not None:
                    made.setdefault(each.name, option)
        assert made.keys() >= (self.defaults or {}).keys(), f"{name}: defaults {self.defaults}; there are {[*made]}"
        return made

    def value(self, name: str, hint: Any, given: dict[str, Any]) -> Any:
        """The instance. Raises ParameterError for a key that is none, and for a field that the class has not."""
        key = given.pop(name)
        if key not in self.registry:
            raise ParameterError(f"{_flag(name)}: found '{key}'; allowed: {', '.join(self.registry)}")
        has = {each: {p.name for p in declared(target)} for each, target in self.registry.items()}
        chosen = {field: value for field, value in given.items() if value is not None}
        for field in chosen.keys() - has[key]:
            others = ", ".join(each for each in self.registry if field in has[each])
            found = f"{_flag(field)}: found {chosen[field]} for {key}"
            raise ParameterError(f"{found}; allowed: with {_flag(name)} {others}")
        usual = {field: value for field, value in (self.defaults or {}).items() if field in has[key]}
        return self.registry[key](**{**usual, **chosen})


def command_of(function: Callable[..., Any], name: str) -> Any:
    """The command that calls ``function`` with what the command line gives its parameters; help is its docstring.

    A parameter whose type is a dataclass, or ``Annotated`` with :class:`OptionsOf` or :class:`ChoiceOf`, stands for the
    options of that, a part of the help; others are declared as typer has it.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(_flat(function))
    return typer.main.get_command(app)


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with every group of options as parameters of its own."""
    flat: Options = {}
    groups: dict[str, tuple[Any, Any, dict[str, str]]] = {}
    hints = get_type_hints(function, include_extras=True)
    for each in inspect.signature(function).parameters.values():
        hint, group = _group(hints[each.name])
        if group is None:
            own = {each.name: _parameter(each.name, hint, each.default)}
        else:
            own = {field: _in_part(option, each.name) for field, option in group.options(each.name, hint).items()}
            groups[each.name] = group, hint, {field: option.name for field, option in own.items()}
        for option in own.values():
            assert option.name not in flat, f"{function.__name__}: two options {option.name}"
            flat[option.name] = option

    @wraps(function)
    def called(**given: Any) -> Any:
        made = {}
        for name, (group, hint, own) in groups.items():
            made[name] = group.value(name, hint, {field: given.pop(option) for field, option in own.items()})
        return function(**given, **made)

    called.__signature__ = inspect.Signature([*flat.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {name: option.annotation for name, option in flat.items()}
    del called.__wrapped__
    return called


def _group(hint: Any) -> tuple[Any, Any]:
    """A parameter's type, and the group of options that it stands for, if it is one."""
    if get_origin(hint) is Annotated:
        plain, *extras = get_args(hint)
        group = next((extra for extra in extras if isinstance(extra, (OptionsOf, ChoiceOf))), None)
        return (hint, None) if group is None else (plain, group)
    return hint, OptionsOf() if is_dataclass(hint) else None


def declared(target: Callable[..., Any] | Declaration) -> list[inspect.Parameter]:
    """The parameters of a function, or of a dataclass's constructor, with their types for annotations."""
    if isinstance(target, Declaration):
        return target.parameters
    hints = get_type_hints(target, include_extras=True)
    return [p.replace(annotation=hints.get(p.name, Any)) for p in inspect.signature(target).parameters.values()]


def as_option(
    each: inspect.Parameter, target: Any, declaration: str | None = None, choices: Iterable[str] | None = None
) -> inspect.Parameter | None:
    """The parameter of ``target`` as typer has options; None where its type has no plain form."""
    hint, *extras = get_args(each.annotation) if get_origin(each.annotation) is Annotated else (each.annotation,)
    plain = hint if extras else plain_type(hint)
    if plain is None:
        return None
    if not extras and declaration is None:
        both = plain in (bool, bool | None) and each.default is not False  # a flag that is off needs no opposite
        declaration = f"{_flag(each.name)}/--no-{_flag(each.name)[2:]}" if both else _flag(each.name)
    info = copy(extras[0]) if extras else typer.Option(declaration)
    listed = "" if choices is None else f"One of {', '.join(choices)}."
    again = "Repeatable." if get_origin(plain) is list or any(get_origin(m) is list for m in get_args(plain)) else ""
    info.help = info.help or " ".join(filter(None, (documented(target, each.name), listed, again)))
    name = each.name if declaration is None else declaration.partition("/")[0][2:].replace("-", "_")
    return _parameter(name, Annotated[plain, info], each.default)


def plain_type(hint: Any) -> Any:
    """The type of an option for a parameter of type ``hint``; None: there is none. Of a union it is the text's, if one
    is in it; a sequence is a list.
    """
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        text = next((member for member in (Path, str) if member in members), None)
        plain = plain_type(text or members[0]) if text or len(members) == 1 else None
        return plain | None if plain is not None and len(members) < len(get_args(hint)) else plain
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list[get_args(hint)[0]] if get_args(hint)[0] in PLAIN else None  # type: ignore[misc]
    return hint if isinstance(hint, type) and issubclass(hint, PLAIN) else None


def documented(target: Any, name: str) -> str:
    """Help of a parameter from its target's docstring: the clause behind "``name``:", alone or among several names."""
    described = target.doc if isinstance(target, Declaration) else inspect.getdoc(target) or ""
    for text in described.split("\n\n"):
        found = re.search(rf"``{name}``(?:, ``\w+``)*: (.+?)(?:[.;:](?= |$)|$)", " ".join(text.split()))
        if found is not None:
            clause = re.sub(r":\w+:`(?:[\w.]*\.)?(\w+)`", r"\1", found[1]).replace("``", "")
            return f"{clause[0].upper()}{clause[1:]}."
    return ""


def _in_part(option: inspect.Parameter, part: str) -> inspect.Parameter:
    """The option, in a part of the help."""
    plain, info = get_args(option.annotation)
    info = copy(info)
    info.rich_help_panel = part.capitalize()
    return option.replace(annotation=Annotated[plain, info])


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
