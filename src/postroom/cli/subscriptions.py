"""`postroom subscriptions`: messages that an agent gets when something happens in its project."""

from typing import Any

import typer

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import examples

app = typer.Typer(
    help="Add, list and end the subscriptions of an agent.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples(
        "subscriptions add agent_idle Ben --as Ada --once",
        "subscriptions add task_ready 12 --as Ada",
        "subscriptions add file_changed 'src/**' --as Ada",
        "subscriptions list --as Ada",
        "subscriptions end 2 --as Ada",
    ),
)


@shows(app, "subscribe", takes_data_dir=False)
def _(found: dict[str, Any]) -> str:
    now = f" No message comes about the present state: {show.line(found['now'])}." if found["now"] else ""
    return f"Subscription {found['id']} is active.{now}"


@shows(app, "list_subscriptions", takes_data_dir=False)
def _(found: dict[str, Any]) -> str:
    rows = [
        (
            item["id"],
            item["kind"],
            item["about"] or "every task",
            "once" if item["once"] else "",
            item["created_ts"],
        )
        for item in show.items(found["subscriptions"])
    ]
    return show.table(("ID", "KIND", "ABOUT", "ENDS", "SINCE"), rows, none="No subscriptions.")


@shows(app, "end_subscription", takes_data_dir=False)
def _(found: dict[str, Any]) -> str:
    return f"The subscription has ended; {len(show.items(found['subscriptions']))} left."
