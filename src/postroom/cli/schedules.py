"""`postroom schedules`: messages from people that are sent repeatedly."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import HERE, AsJson, DataDir, OneProject, Project, project_key, seconds
from postroom.contracts.clock import every
from postroom.contracts.errors import InvalidArgument

app = typer.Typer(
    help="Send messages on a schedule, for example to Ada every Monday at 9:00.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples(
        "schedules add weekly --from Kim --to Ada --subject Report --body News? --cron '0 9 * * MON'",
        "schedules list",
        "schedules trigger weekly",
    ),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@app.command("list")
def list_all(project: OneProject = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the schedules and their next times."""
    asked = "" if project is None else "?" + urlencode({"project": project_key(project)})
    found = Server.find(data_dir=data_dir).admin("GET", f"/admin/schedules{asked}")
    rows = [
        (
            one["name"],
            _rhythm(one),
            one["next_at"] or one["state"],
            ", ".join(one["to"]),
            one["subject"],
            one["last_error"] or "",
        )
        for one in show.items(found.get("schedules"))
    ]
    head = ("NAME", "WHEN", "NEXT", "TO", "SUBJECT", "FAILED")
    show.answer(found, as_json=as_json, text=lambda: show.table(head, rows, none="No schedules."))


@app.command()
def add(  # noqa: PLR0913 - an option an argument
    name: Name,
    sender: Annotated[
        str,
        typer.Option(
            "--from", metavar="PERSON", help="The person who sends the message; see `postroom people`."
        ),
    ],
    to: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="A recipient, such as Ada or Ada@project. Repeatable."),
    ],
    subject: Annotated[str, typer.Option(help="The subject.")],
    body: Annotated[str, typer.Option(help="The message in Markdown.")],
    project: Project = HERE,
    cron: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="The times: minute, hour, day of month, month, day of week."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="The interval, such as 30m or 1d.")
    ] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of the cron line, such as Europe/Berlin.")
    ] = "UTC",
    missed: Annotated[
        str,
        typer.Option(
            metavar="POLICY", help="Times missed while no server ran: skip, send once, or send all."
        ),
    ] = "once",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="POLICY", help="If the previous message is still unread: queue (send anyway) or skip."
        ),
    ] = "queue",
    jitter: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Add a random delay of up to TIME.", show_default="none"),
    ] = None,
    replaces: Annotated[
        bool, typer.Option("--replace", help="Replace another schedule of this name.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send a message on a schedule. Repeating the command changes nothing.

    `postroom schedules add standup --from Ana --to Ada --cron "0 9 * * MON" --zone Europe/Berlin
    --subject "Plan" --body "What is planned this week?"`
    """
    if (cron is None) == (every is None):
        raise InvalidArgument(
            "a schedule needs either a cron line or an interval",
            value=cron,
            remedy='use either --cron "0 9 * * MON" or --every 1h',
        )
    asked = {
        "name": name,
        "project": project_key(project),
        "sender": sender,
        "to": to,
        "subject": subject,
        "body": body,
        "cron": cron,
        "every_seconds": None if every is None else seconds(every),
        "zone": zone,
        "missed": missed,
        "overlap": overlap,
        "jitter_seconds": 0 if jitter is None else seconds(jitter),
        "replaces": replaces,
    }
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules", asked)
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)}: next message at {found['next_at']}")


@app.command("show")
def show_one(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a schedule: its message, its times, and the result of the last time."""
    found = Server.find(data_dir=data_dir).admin("GET", f"/admin/schedules/one?{urlencode({'name': name})}")
    show.answer(found, as_json=as_json, text=lambda: show.outline(found))


@app.command()
def pause(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Pause a schedule. It sends nothing until it is resumed."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/pause", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"Paused {show.line(name)}.")


@app.command()
def resume(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Resume a schedule at its next time. Times missed during the pause are not sent."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/resume", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)}: next message at {found['next_at']}")


@app.command()
def trigger(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send the message now, also if the schedule is paused. Its times stay the same."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/trigger", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"Sent message {found['message']}.")


@app.command()
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove a schedule. Messages that were sent stay."""
    found = Server.find(data_dir=data_dir).admin("DELETE", "/admin/schedules", {"name": name})
    said = f"Deleted {show.line(name)}." if found.get("removed") else f"No schedule named {show.line(name)}."
    show.answer(found, as_json=as_json, text=lambda: said)


def _rhythm(one: Mapping[str, Any]) -> str:
    return f"{one['cron']} {one['zone']}" if one["cron"] else every(round(one["every_seconds"] * 1000))
