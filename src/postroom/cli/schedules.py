"""`postroom schedules`: messages from people that are sent repeatedly."""

from typing import Annotated, Any

import typer

from postroom.cli import show
from postroom.cli.call import call, shows
from postroom.cli.help_text import command_group
from postroom.cli.options import HERE, AsJson, DataDir, Project, project_key, seconds
from postroom.contracts.clock import MAX_INTERVAL, every
from postroom.contracts.errors import InvalidArgument

app = command_group(
    "Send messages on a schedule, for example to Ada every Monday at 9:00.",
    "schedules add weekly --from Kim --to Ada --subject Report \\\n    --body News? --cron '0 9 * * MON'",
    "schedules add nine --from Kim --to human:Kim --subject Yesterday \\\n    --catch-up --cron '0 9 * * *'",
    "schedules list",
    "schedules trigger weekly",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@shows(app, "list_schedules")
def _(found: dict[str, Any]) -> str:
    rows = [
        (
            item["name"],
            f"{item['cron']} {item['zone']}" if item["cron"] else every(round(item["every_seconds"] * 1000)),
            item["next_at"] or item["state"],
            ", ".join(item["to"]),
            item["subject"],
            item["last_error"] or "",
        )
        for item in show.items(found.get("schedules"))
    ]
    return show.table(("NAME", "WHEN", "NEXT", "TO", "SUBJECT", "FAILED"), rows, none="No schedules.")


@app.command()
def add(  # noqa: PLR0913 - an option an argument
    name: Name,
    sender: Annotated[
        str,
        typer.Option(
            "--from", metavar="PERSON", help="The person whose name is on the message; see `postroom people`."
        ),
    ],
    to: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="A recipient, such as Ada or Ada@project. Repeatable."),
    ],
    subject: Annotated[str, typer.Option(help="The subject.")],
    body: Annotated[str | None, typer.Option(help="The message in Markdown.")] = None,
    catch_up: Annotated[
        bool,
        typer.Option(
            "--catch-up",
            help="Append a summary of the project's events since the schedule's last message.",
        ),
    ] = False,
    project: Project = HERE,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="LINE", help="A cron expression: minute, hour, day of month, month, day of week."
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="The time between two messages, such as 30m or 1d.")
    ] = None,
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of the cron expression, such as Europe/Berlin.")
    ] = "UTC",
    missed: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="What to do about times that passed while no server was running: skip them, send once, or "
            "send all.",
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
        bool, typer.Option("--replace", help="Replace an existing schedule with this name.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send a message on a schedule. Running the same command again changes nothing.

    `postroom schedules add standup --from Ana --to Ada --cron "0 9 * * MON" --zone Europe/Berlin
    --subject "Plan" --body "What is planned this week?"`
    """
    if body is None and not catch_up:
        raise InvalidArgument("the message has no text", value="", remedy="pass --body, --catch-up, or both")
    arguments = {
        "name": name,
        "project": project_key(project),
        "sender": sender,
        "to": to,
        "subject": subject,
        "body": body or "",
        "catch_up": catch_up,
        "cron": cron,
        "every_seconds": None if every is None else seconds(every, option="--every", most=MAX_INTERVAL),
        "zone": zone,
        "missed": missed,
        "overlap": overlap,
        "jitter_seconds": 0 if jitter is None else seconds(jitter, option="--jitter", most=MAX_INTERVAL),
        "replaces": replaces,
    }
    answer = call("add_schedule", data_dir=data_dir, **arguments)
    show.answer(
        answer, as_json=as_json, text=lambda: f"{show.line(name)}: next message at {answer['next_at']}"
    )


@shows(app, "show_schedule")
def _(found: dict[str, Any]) -> str:
    return show.outline(found)


@shows(app, "pause_schedule")
def _(found: dict[str, Any]) -> str:
    return f"Paused {show.line(found['name'])}."


@shows(app, "resume_schedule")
def _(found: dict[str, Any]) -> str:
    return f"{show.line(found['name'])}: next message at {found['next_at']}"


@shows(app, "trigger_schedule")
def _(found: dict[str, Any]) -> str:
    return f"Sent message {found['message']}."


@shows(app, "remove_schedule")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    name = show.line(sent["name"])
    return f"Deleted {name}." if found.get("removed") else f"No schedule named {name}."
