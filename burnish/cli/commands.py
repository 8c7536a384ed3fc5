"""Commands by the names of their functions, whose modules are imported when a command is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from burnish.cli.options import command_of


@dataclass(frozen=True)
class CommandGroup:
    """Commands of one name: what they are for, and functions by command, as "module:function" of this package."""

    help: str
    commands: Mapping[str, str]


def group_class(table: Mapping[str, str | CommandGroup]) -> type[TyperGroup]:
    """The class of a group with the commands of ``table``."""

    class Commands(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given | {"commands": dict.fromkeys(table)})  # the parser suggests these names

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            each = table.get(cmd_name)
            if isinstance(each, CommandGroup):
                return group_class(each.commands)(name=cmd_name, help=each.help, no_args_is_help=True)
            return None if each is None else _Named(cmd_name, each)

    return Commands


class _Named(TyperCommand):
    """A command that is imported when it is called. Until then, its help is the docstring in its module's source."""

    def __init__(self, name: str, function: str) -> None:
        self._module, _, self._function = function.partition(":")
        tree = ast.parse((Path(__file__).parent / f"{self._module}.py").read_bytes())
        found = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == self._function)
        super().__init__(name, help=ast.get_docstring(found))

    def made(self) -> Any:
        """The command of the function, with its options."""
        return command_of(getattr(import_module(f"burnish.cli.{self._module}"), self._function), self.name or "")

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the function's own command."""
        return self.made().make_context(info_name, args, parent, **extra)
