"""`postroom schedules`: messages of people that are sent again and again."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.help_text import examples
from postroom.cli.options import HERE, AsJson, DataDir, OneProject, Project, project_key, seconds
from postroom.contracts.errors import InvalidArgument
from postroom.web.wording import every

app = typer.Typer(
    help="Have messages sent again and again: every Monday at 9:00, a message to Ada.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples(
        "schedules add weekly --from Kim --to Ada --subject Report --body News? --cron '0 9 * * MON'",
        "schedules list",
        "schedules trigger weekly",
    ),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What the schedule is called.")]


@app.command("list")
def list_all(project: OneProject = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the schedules, and when each is due."""
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
    show.answer(found, as_json=as_json, text=lambda: show.table(head, rows, none="there is no schedule"))


@app.command()
def add(  # noqa: PLR0913 - an option an argument
    name: Name,
    sender: Annotated[
        str, typer.Option("--from", metavar="PERSON", help="The person who sends it: see postroom people.")
    ],
    to: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="Who gets it, such as Ada or Ada@project; repeatable."),
    ],
    subject: Annotated[str, typer.Option(help="The subject.")],
    body: Annotated[str, typer.Option(help="The message in Markdown.")],
    project: Project = HERE,
    cron: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="When: minute, hour, day of month, month, day of week."),
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="TIME", help="How often, such as 30m or 1d.")] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of the line, such as Europe/Berlin.")
    ] = "UTC",
    missed: Annotated[
        str, typer.Option(metavar="POLICY", help="What was missed while no server ran: skip, once or all.")
    ] = "once",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="POLICY", help="While somebody has not read the last one: queue (send it) or skip."
        ),
    ] = "queue",
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="Send it up to so much later.", show_default="none")
    ] = None,
    replaces: Annotated[
        bool, typer.Option("--replace", help="Take the place of another schedule of this name.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Have a message sent again and again. The same command again changes nothing.

    `postroom schedules add standup --from Ana --to Ada --cron "0 9 * * MON" --zone Europe/Berlin
    --subject "Plan" --body "What is planned this week?"`
    """
    if (cron is None) == (every is None):
        raise InvalidArgument(
            "a schedule has a line of cron or an interval, one of them",
            value=cron,
            remedy='give --cron "0 9 * * MON", or --every 1h',
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
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} is sent next at {found['next_at']}")


@app.command("show")
def show_one(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a schedule: what it sends, when, and what became of the last time."""
    found = Server.find(data_dir=data_dir).admin("GET", f"/admin/schedules/one?{urlencode({'name': name})}")
    show.answer(found, as_json=as_json, text=lambda: show.outline(found))


@app.command()
def pause(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send nothing more until it is resumed."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/pause", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} is paused")


@app.command()
def resume(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Go on with the next time. What the pause left out is not sent."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/resume", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} is sent next at {found['next_at']}")


@app.command()
def trigger(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Send the message now, paused or not. The times of the schedule stay where they are."""
    found = Server.find(data_dir=data_dir).admin("POST", "/admin/schedules/trigger", {"name": name})
    show.answer(found, as_json=as_json, text=lambda: f"message {found['message']} is sent")


@app.command()
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove a schedule. What it has sent stays."""
    found = Server.find(data_dir=data_dir).admin("DELETE", "/admin/schedules", {"name": name})
    said = "is sent no more" if found.get("removed") else "was not there"
    show.answer(found, as_json=as_json, text=lambda: f"{show.line(name)} {said}")


def _rhythm(one: Mapping[str, Any]) -> str:
    return f"{one['cron']} {one['zone']}" if one["cron"] else every(round(one["every_seconds"] * 1000))
