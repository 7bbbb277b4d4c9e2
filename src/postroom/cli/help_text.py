"""Headings and examples for `--help`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from typer import BadParameter, Typer
from typer.core import TyperGroup

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Every day": ("init", "up", "inbox", "top", "open", "status", "demo"),
    "Mail and files": ("whoami", "mail", "agents", "people", "reservations", "watch", "events", "catch-up"),
    "Work": ("tasks", "notes", "subscriptions", "runs", "questions", "schedules"),
    "Clients and chats": ("setup", "mcp", "hook", "guard", "gateway"),
    "Upkeep": (
        "doctor",
        "backup",
        "restore",
        "projects",
        "prune",
        "rebuild",
        "database",
        "cluster",
        "tokens",
        "config",
        "support-bundle",
        "version",
    ),
}
"""Every command, in the order in which the help lists them."""


_NO_NUMBER: Final = "Input should be a valid integer, unable to parse string as an integer"


class GroupedCommands(TyperGroup):
    """A command group that lists commands under the headings of `GROUPS`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; errors for invalid option values are in plain language."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            error.message = error.message.replace(_NO_NUMBER, "it must be an integer")
            error.message = error.message.replace("Input should be", "it must be")
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for each group, with aligned columns."""
        width = max(map(len, self.commands))
        for head, names in GROUPS.items():
            rows = [(f"{name:<{width}}", self.commands[name].get_short_help_str(60)) for name in names]
            with formatter.section(head):
                formatter.write_dl(rows)


def examples(*lines: str) -> str:
    """Return the section with example commands for a help text."""
    return "\n".join(["\b", "Examples:", *(f"  postroom {line}" for line in lines)])


def command_group(help_text: str, *lines: str) -> Typer:
    """Return a command group that prints help with example commands if no command is given."""
    return Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None, epilog=examples(*lines))
