"""`postroom subscriptions`: messages that an agent gets when something happens in its project."""

from typing import Any

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import command_group

app = command_group(
    "Add, list and end the subscriptions of an agent.",
    "subscriptions add agent_idle Ben --as Ada --once",
    "subscriptions add task_ready 12 --as Ada",
    "subscriptions add file_changed 'src/**' --as Ada",
    "subscriptions list --as Ada",
    "subscriptions end 2 --as Ada",
)


@shows(app, "subscribe")
def _(found: dict[str, Any]) -> str:
    now = f" You get no message about the current state: {show.line(found['now'])}." if found["now"] else ""
    return f"Subscription {found['id']} is active.{now}"


@shows(app, "list_subscriptions")
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


@shows(app, "end_subscription")
def _(found: dict[str, Any]) -> str:
    return f"The subscription has ended; {len(show.items(found['subscriptions']))} left."
