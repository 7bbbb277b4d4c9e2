"""The tree of commands. Only the module of the command that runs is imported: all take half a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import typer

from postroom.cli.help_text import GROUPS, GroupedCommands, examples

_MODULES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("up", "mcp", "status", "doctor", "open", "version"), "server"),
    "catch-up": "events",
    "demo": "demo.command",
    "events": "events",
    "hook": "hook_command",
    "inbox": "inbox",
    "init": "init",
    "prune": "prune",
    "restore": "backup",
    "support-bundle": "support",
    "top": "top",
    "watch": "watch",
    "whoami": "init",
}
"""The modules of single commands. Every other command is a group, in the module with the same name."""
_GROUPS: Final[Mapping[str, str]] = {"backup": "backup.backups", "config": "settings.app"}
"""The variables of groups that are not named `app` in their modules."""


def tree(only: str = "") -> typer.Typer:
    """Return the tree of commands.

    If `only` names a command, only the module with this command is loaded.
    """
    names = [name for group in GROUPS.values() for name in group]
    app = typer.Typer(
        name="postroom",
        cls=GroupedCommands,
        help="The post room for a team of AI agents and the people they work with.",
        epilog=examples(
            "up", "top", "mail send --as Ada --to Ben -s Lights 'The north pier?'", "mail inbox --as Ben"
        )
        + (
            "\n\nEvery command accepts --help. All commands except `up`, `mcp`, `hook`, `guard check` and "
            "`gateway run` "
            "accept --json, which prints one JSON document. --version prints the version. "
            "Exit codes: 0 success, 1 failed, 2 wrong usage or rejected, 75 temporary failure, "
            "78 wrong configuration."
        ),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    wanted = [only] if only in names else names
    parts = [
        (f"{_MODULES[name]}.app", None) if name in _MODULES else (_GROUPS.get(name, f"{name}.app"), name)
        for name in wanted
    ]
    for place, group in dict.fromkeys(parts):
        module, _, part = place.rpartition(".")
        app.add_typer(getattr(import_module(f"postroom.cli.{module}"), part), name=group)
    return app
