"""The page of the commands: the tree that `postroom` runs, and its exit codes."""

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from from_code.markdown import table
from postroom.cli import exit_codes
from postroom.cli.commands import tree


def page() -> str:
    """Return the page."""
    command = get_command(tree())
    sections = "\n\n".join(_command(words, command) for words, command in _leaves(command, "postroom"))
    _, _, codes = (exit_codes.__doc__ or "").partition("\n\n")
    return f"""
# Commands

{tree().info.help}

Every command accepts `--help`. With `--json` a command prints one JSON document on standard output, even if
it fails: `{{"error": {{"code": ..., "message": ..., "value": ..., "remedy": ...}}}}`. `up`, `mcp`, `hook`,
`guard check` and `gateway run` do not accept `--json`. Commands that write use the running server. They find
it by a file in the data folder, or by `POSTROOM_URL`.

## Exit codes

{codes.strip()}

The table of [errors](errors.md) has the exit code of each failure.

{sections}
"""


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, one in inner.items():
        yield from _leaves(one, f"{words} {name}")


def _command(words: str, command: Any) -> str:
    shown = [one for one in command.params if not one.hidden]
    named = " ".join(map(_argument, (one for one in shown if not _is_option(one))))
    usage = f"{words} {named} [OPTIONS]".replace("  ", " ")
    rows = [(_option(one), _option_default(one), one.help or "") for one in shown]
    options = table(("option", "default", "meaning"), rows)
    return f"## {words}\n\n{_described(command.help)}\n\n```text\n{usage}\n```\n\n{options}"


def _is_option(parameter: Any) -> bool:
    return str(parameter.opts[0]).startswith("-")


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return f"{name if parameter.required else f'[{name}]'}{'' if parameter.nargs == 1 else '...'}"


def _described(text: str) -> str:
    """Return a command's help; what it keeps line by line for a terminal is a block."""
    before, mark, block = text.partition("\b\n")
    return f"{before}```text\n{block}\n```" if mark else text


def _option(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"`{_argument(parameter)}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag:
        return names
    kind = parameter.type_descriptor.annotation
    if choices := typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ():
        return f"{names} {' or '.join(f'`{one}`' for one in choices)}"
    word = parameter.metavar or {int: "NUMBER", Path: "PATH"}.get(kind, "TEXT")
    return f"{names} {word}{' (repeatable)' if parameter.multiple else ''}"


def _option_default(parameter: Any) -> str:
    if parameter.required:
        return f"required, or `{parameter.envvar}`" if parameter.envvar else "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    return "" if parameter.default in (None, False) else f"`{parameter.default}`"
